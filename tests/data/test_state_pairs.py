"""Pairs `IN:OUT` of states, as users write them.

What these would catch: a pair that is taken for another one, a mistake that is told as a failure of onnxruntime or as
one of the data, names with colons that are cut in the wrong place.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import pytest
from onnx import TensorProto, helper

from rnnqc.data.state_pairs import state_pairs
from rnnqc.errors import UsageError

OUTPUTS = "yz"


def model(**shapes: Sequence[int | str] | None) -> onnx.ModelProto:
    """A model without nodes; names that begin with y or z are outputs."""
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
    inputs, outputs = ([v for n, v in values.items() if (n[0] in OUTPUTS) is o] for o in (False, True))
    return helper.make_model(helper.make_graph([], "states", inputs, outputs))


def test_states() -> None:
    proto = model(y=None, h=[2, "B", 8])
    assert state_pairs(["h:y"], proto) == {"h": "y"}
    for text, message in (("h", "not of the form"), ("q:y", "no input 'q'"), ("h:q", "no output 'q'")):
        with pytest.raises(UsageError, match=message):
            state_pairs([text], proto)
    assert state_pairs(None, proto) == {}


def test_names_with_colons_carry_states() -> None:
    proto = model(**{"y:0": None, "h:0": [2, 8]})
    assert state_pairs(["h:0:y:0"], proto) == state_pairs({"h:0": "y:0"}, proto) == {"h:0": "y:0"}


def test_an_input_has_one_state_and_one_text_is_no_list() -> None:
    proto = model(y=None, z=None, h=[2, 8])
    with pytest.raises(UsageError, match=r"state: input 'h' has two outputs, 'y' and 'z'.*leave one out"):
        state_pairs(["h:y", "h:z"], proto)
    with pytest.raises(UsageError, match="state = 'h:y' is one text"):
        state_pairs("h:y", proto)


STEP = model(x=[1, 3], h=[1, 96], g=[1, 64], y_h=[1, 96], y_g=[1, 64])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["h:y_g"], r"input 'h' has shape \[1, 96\], output 'y_g' has \[1, 64\]\. Supported: an output of"),
        (["y_h:h"], r"'y_h' is an output .* 'h' is an input: the two are swapped.* Resolution: .*\{\"h\": \"y_h\"\}"),
        (["h:y_h,g:y_g"], r"commas between them.* by spaces: state=\{\"h\": \"y_h\", \"g\": \"y_g\"\}"),
        (["h:y_h,q:y_g"], r"the model has no output 'y_h,q:y_g'"),
    ],
)
def test_mistakes(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        state_pairs(texts, STEP)


def test_a_pair_that_is_swapped_may_have_colons() -> None:
    proto = model(**{"y:0": [2, 8], "h:0": [2, 8]})
    for state in (["y:0:h:0"], {"y:0": "h:0"}):
        with pytest.raises(UsageError, match=r"'y:0' is an output .* 'h:0' is an input"):
            state_pairs(state, proto)


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        ([1, 8], [1, 8], True),
        (["B", 8], [3, 8], True),
        ([-1, 8], ["other", 8], True),
        ([1, 8], None, True),
        (["B", 8], ["B", 7], False),
        ([1, 8], [1, 1, 8], False),
    ],
)
def test_shapes_that_can_be_equal(before: list[int | str], after: list[int | str] | None, fits: bool) -> None:
    proto = model(h=before, y=after)
    if fits:
        assert state_pairs(["h:y"], proto) == {"h": "y"}
    else:
        with pytest.raises(UsageError, match="name the output that is the state after the call"):
            state_pairs(["h:y"], proto)


def test_the_state_that_fits_is_named() -> None:
    proto = model(h=[1, 8], y=[1, 8], z=[1, 7])
    proto.graph.output[0].name = "h_next"
    with pytest.raises(UsageError, match=r"Resolution: carry state=\{\"h\": \"h_next\"\}"):
        state_pairs(["h:z"], proto)
