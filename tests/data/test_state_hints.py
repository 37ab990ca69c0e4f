"""Hints about states that the given data carries incorrectly.

What these would catch: crossed states and states left out of a stream without a warning; a state that is missed
because another output is its value in another shape; a pair that `--state` refuses.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.state_hints import hinted_states, likely_states, named_states, state_remarks, states_of
from rnnqc.data.state_pairs import state_pairs
from tests.subjects.protos import parse

LIKELY = {"h": "h_out", "c": "c_out"}


def test_states_as_they_look() -> None:
    assert state_remarks(LIKELY, LIKELY, 10) == []
    assert state_remarks({}, {"h": "c_out"}, 10) == []
    assert state_remarks(LIKELY, {}, 1) == [], "one call starts where its arrays say"


def test_crossed_states() -> None:
    remarks = state_remarks(LIKELY, {"h": "c_out", "c": "h_out"}, 10)
    assert [action.split(",")[0] for _, action in remarks] == ["--state h:h_out", "--state c:c_out"]
    assert "'h' is carried from output 'c_out', and its final value is 'h_out'" in remarks[0][0]


def test_states_that_are_not_carried() -> None:
    ((reason, action),) = state_remarks(LIKELY, {"h": "h_out"}, 10)
    assert reason.endswith("10 feeds to the next: 'c'") and action.startswith("--state c:c_out,")


@pytest.mark.parametrize(
    ("arguments", "results", "expected"),
    [
        (
            "float[1,8] rnn1_h_state_in, float[1,8] rnn1_c_state_in, float[1,3] x",
            "float[N,8] rnn1_h_state_out, float[M,8] rnn1_c_state_out",
            {"rnn1_h_state_in": "rnn1_h_state_out", "rnn1_c_state_in": "rnn1_c_state_out"},
        ),
        ("float[1,8] h, float[1,8] x", "float[1,8] h_next", {"h": "h_next"}),
        ("float[1,8] h", "float[1,9] h_next", {}),
        ("float[1,8] h", "float[1,1,8] h_next", {}),
        ("float[1,8] h", "float[1,8] h_copy", {}),
        ("float[1,8] h, float[1,8] h_in", "float[1,8] h_out", {}),
        ("float[1,8] input", "float[1,8] output", {}),
        ("float[1,4,6,6] r1i, float[1,3] src", "float[1,4,6,6] r1o", {"r1i": "r1o"}),
        ("float[1,8] ni, float[1,3] x", "float[1,8] no", {}),
        ("float[2,B,8] state, float[B,3] input", "float[A,B,C] stateN, float[B,1] output", {"state": "stateN"}),
        ("float[1,8] h, float[1,3] x", "float[1,8] h_n", {"h": "h_n"}),
        ("float[1,8] state, float[1,3] x", "float[1,8] states", {}),
    ],
)
def test_states_by_their_names(arguments: str, results: str, expected: dict[str, str]) -> None:
    first = arguments.split()[1].rstrip(",")
    names = [r.split()[-1] for r in results.split(", ")]
    body = " ".join(f"{name} = Neg ({first})" for name in names)
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({arguments}) => ({results}) {{ {body} }}'
    assert named_states(parse(text)) == expected


def test_hints_are_in_the_order_of_the_inputs() -> None:
    proto = parse("""<ir_version: 8, opset_import: ["": 17]>
      g (float[1,3] x, float[1,8] h, float[1,8] c) => (float[1,8] c_next, float[1,8] h_next)
      { c_next = Neg (c) h_next = Neg (h) }""")
    assert list(hinted_states(proto).items()) == [("h", "h_next"), ("c", "c_next")]
    assert list(hinted_states(proto, known={"c": "c_next", "h": "h_next"})) == ["h", "c"]


@pytest.mark.parametrize(("operator", "expected"), [("Identity", {}), ("Neg", {"mask": "mask_out"})])
def test_an_input_that_is_handed_on_is_no_state(operator: str, expected: dict[str, str]) -> None:
    """The mask of an encoder, which its decoder reads as well."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[B,T] src, float[B,T] mask)
      => (float[B,T] memory, float[B,T] mask_out)
      {{ memory = Mul (src, mask) copy = {operator} (mask) mask_out = Identity (copy) }}"""
    assert named_states(parse(text)) == expected


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ("float[1,4] out", {"h": "out"}),
        ("float[1,1,4] seen, float[1,4] out", {"h": "out"}),
        ("float[1,4] out, float[1,1,1,4] deep", {"h": "out"}),
        ("float[A,B] out, float[C,D,E] seen", {"h": "out"}),
        ("float[1,1,4] seen", {}),
        ("float[C,D,E] seen", {}),
        ("float[1,4] out, float[1,4] again", {}),
    ],
)
def test_one_output_has_the_shape_of_the_state(results: str, expected: dict[str, str]) -> None:
    """Other outputs may be the final value with more axes. `--state` accepts the pair that is found."""
    names = {r.split()[-1] for r in results.split(", ")}
    makers = {
        "out": "out = Squeeze (last, first)", "again": "again = Identity (out)",
        "seen": "seen = Identity (last)", "deep": "deep = Unsqueeze (last, first)",
    }  # fmt: skip
    proto = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,1,3] x, float[1,4] h) => (' + results + ")"
        " <int64[1] first = {0}> { before = Unsqueeze (h, first)"
        " all, last = RNN <hidden_size = 4> (x, W, R, , , before) "
        + " ".join(text for name, text in makers.items() if name in names)
        + " }",
        W=np.ones((1, 4, 3), np.float32),
        R=np.ones((1, 4, 4), np.float32),
    )
    assert likely_states(proto) == expected
    assert state_pairs(expected, proto) == expected


@pytest.mark.parametrize(
    ("inputs", "more"),
    [
        ("float[1,1,3] x, float[1,8] cache", {"cache": "next_cache"}),
        ("float[1,1,3] x, float[1,9] cache", {}),
        ("float[1,1,3] x, float[1,8] cache_in", {}),
        ("float[1,1,3] cache", {}),
    ],
)
def test_states_that_are_named_as_the_layers_are(inputs: str, more: dict[str, str]) -> None:
    """A cache of a convolution is not a state of a recurrent node; one input must remain for data."""
    first = inputs.split()[1].rstrip(",")
    cache = inputs.split()[-1]
    proto = parse(
        f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}, float[1,1,4] h) => (float[1,1,4] next_h, '
        f"float{'[1,1,3]' if cache == first else '[1,8]'} next_cache)"
        f" {{ all, next_h = RNN <hidden_size = 4> ({first}, W, R, , , h) next_cache = Neg ({cache}) }}",
        W=np.ones((1, 4, 3), np.float32),
        R=np.ones((1, 4, 4), np.float32),
    )
    assert states_of(proto) == {"h": "next_h", **more}


def test_states_that_only_the_lowered_model_shows() -> None:
    """Recovered steps are nodes only in the lowered model; pairs found in the model itself stay."""
    proto = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,1,3] x, float[1,1,4] h, float[1,1,4] p)'
        " => (float[1,1,4] hn, float[1,1,4] q) { all, hn = RNN <hidden_size = 4> (x, W, R, , , h) q = Neg (p) }",
        W=np.ones((1, 4, 3), np.float32),
        R=np.ones((1, 4, 4), np.float32),
    )
    later = onnx.ModelProto()
    later.CopyFrom(proto)
    later.graph.node[1].CopyFrom(later.graph.node[0])
    later.graph.node[1].input[5], later.graph.node[1].output[:] = "p", ["", "q"]
    assert states_of(proto, later) == {"h": "hn", "p": "q"} and states_of(proto) == {"h": "hn"}


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> m (float[1,1,3] x, float[1,1,4] h, float[1,1,4] c)'
        " => (float[1,1,1,4] y, float[1,1,4] h_out, float[1,1,4] c_out)"
        " { y, h_out, c_out = LSTM <hidden_size: int = 4> (x, W, R, , , h, c) }"
    )
    for name, columns in (("W", 3), ("R", 4)):
        values = rng.normal(size=(1, 16, columns)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return proto


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (["h:h_out", "c:c_out"], []),
        (["h:c_out", "c:h_out"], ["--state h:h_out", "--state c:c_out"]),
        ([], ["--state h:h_out --state c:c_out"]),
    ],
    ids=["right", "crossed", "none"],
)
def test_verify_and_calibrate_say_it(
    model: onnx.ModelProto, tmp_path: Path, state: list[str], wanted: list[str]
) -> None:
    rng = np.random.default_rng(1)
    shapes = {"x": (5, 1, 1, 3), "h": (5, 1, 1, 4), "c": (5, 1, 1, 4)}
    data = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items() if k == "x" or not state}
    found = rnnqc.verify(model, rnnqc.lower(model).model, data, state=state)
    statistics = rnnqc.calibrate(model, data, state=state)
    option = re.compile(r"--state \S+:\w+(?: --state \S+:\w+)*")
    for texts in (found.warnings, [r.action for r in statistics.remarks]):
        assert [m.group() for text in texts for m in [option.search(text)] if m] == wanted


def test_verify_without_data_says_what_is_left_of_a_stream(model: onnx.ModelProto) -> None:
    """If one state is carried, others may have been forgotten; if none is, the generated feeds are separate samples."""
    lowered = rnnqc.lower(model).model
    (warning,) = rnnqc.verify(model, lowered, state=["h:h_out"]).warnings
    assert "not carried" in warning and "--state c:c_out" in warning
    assert rnnqc.verify(model, lowered, state=["h:h_out", "c:c_out"]).warnings == []
    assert rnnqc.verify(model, lowered).warnings == []
