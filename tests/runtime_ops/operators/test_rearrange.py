"""The native operator that moves elements: invalid and hostile nodes.

What these would catch: a copy that reads or writes beyond a tensor (the process dies), an element that nothing writes,
which would show what was in memory before, a shape of an input that is not checked, bits of a NaN that change.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from rnnqc.cells.rearrange_nodes import ALIASES, OPERATOR, OPERATORS
from tests.native.quant_lstm_cases import native_session
from tests.runtime_ops.operators.test_mutated_nodes import REFUSALS

ATTRIBUTES: dict[str, list[int]] = {
    "input_shapes": [2, 2, 3, 1, 2],
    "output_shapes": [1, 5, 2, 3, 2],
    # The last row of the first input and both elements of the second; the first input transposed.
    "copies": [0, 0, 0, 3, 1, 3, 1, 1, 0, 1, 3, 0, 1, 2, 1, 1, 1, 0, 0, 0, 2, 3, 2, 1, 2, 1, 3],
}
FEEDS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.float32([6, 7])}


def model(op: str = OPERATOR, types: tuple[int, int] = (TensorProto.FLOAT,) * 2, **attributes: Any) -> onnx.ModelProto:
    held = {k: v for k, v in {**ATTRIBUTES, **attributes}.items() if v is not None}
    node = helper.make_node(op, ["a", "b"], ["y", "z"], "states", domain="ai.rnnqc", **held)
    given_ = [helper.make_tensor_value_info(n, t, None) for n, t in zip("ab", types, strict=True)]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "yz"]
    graph = helper.make_graph([node], "g", given_, made)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.rnnqc", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def outputs(proto: onnx.ModelProto, feeds: dict[str, Any] | None = None) -> list[Any]:
    return list(native_session(proto).run(None, feeds or FEEDS))


def reference(attributes: dict[str, list[int]]) -> list[Any] | None:
    """The result according to docs/rearrange.md; None for a node that it refuses."""

    def shapes(numbers: list[int]) -> list[list[int]] | None:
        found, rest = [], list(numbers)
        while rest:
            rank, rest = rest[0], rest[1:]
            if not 0 <= rank <= min(8, len(rest)):
                return None
            found.append(rest[:rank])
            rest = rest[rank:]
        return found

    given_, made = shapes(attributes["input_shapes"]), shapes(attributes["output_shapes"])
    if given_ != [[2, 3], [2]] or made is None or len(made) != 2 or any(not 0 <= d < 2**24 for s in made for d in s):
        return None
    if any(np.prod(s, dtype=float) > 2**24 for s in made):
        return None
    sources, results = [v.ravel() for v in FEEDS.values()], [np.full(int(np.prod(s)), np.nan) for s in made]
    rest = list(attributes["copies"])
    while rest:
        if len(rest) < 5 or len(rest) < 5 + 3 * rest[4]:
            return None
        (output, source, to, start, count), axes = rest[:5], np.array(rest[5 : 5 + 3 * rest[4]]).reshape(-1, 3)
        rest = rest[5 + 3 * count :]
        if (
            not (0 <= output < 2 and 0 <= source < 2)
            or (axes[:, 0] < 1).any()
            or np.prod(axes[:, 0].astype(float)) > 99
        ):
            return None
        places = np.array([(to, start)])
        for n, forth, back in axes:
            places = (places[:, None] + np.arange(n)[:, None] * np.array([forth, back])).reshape(-1, 2)
        for place, origin in places:
            inside = 0 <= place < results[output].size and 0 <= origin < sources[source].size
            if not inside or not np.isnan(results[output][place]):
                return None
            results[output][place] = sources[source][origin]
    return (
        None if any(np.isnan(r).any() for r in results) else [r.reshape(s) for r, s in zip(results, made, strict=True)]
    )


@pytest.mark.parametrize("op", OPERATORS)
def test_elements_and_names(op: str) -> None:
    y, z = outputs(model(op))
    assert y.tolist() == [3, 4, 5, 6, 7]
    assert np.array_equal(z, FEEDS["a"].T)


SHAPES = [(5, 2, 4), (3, 8, 1), (2, 33, 2), (1, 2, 40), (7, 3, 5), (4, 16, 17)]


@pytest.mark.parametrize("permutation", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("shape", SHAPES)
def test_boxes_in_pieces(shape: tuple[int, int, int], permutation: tuple[int, int, int]) -> None:
    """Two transposed tensors that interleave in one output, in copies of slices in any order.

    Catches copies that are joined though their places, axes or tensors differ, an axis that is lost or counted twice
    when copies are joined or axes change places, and rows of lengths and distances that have a loop of their own.
    """
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(shape).astype(np.float32) for n in "ab"}
    turned = [v.transpose(permutation) for v in feeds.values()]
    expected = np.ascontiguousarray(np.stack(turned, axis=-1))
    steps = np.array(feeds["a"].strides)[list(permutation)] // 4
    distances = np.array(expected.strides) // 4
    for cut in range(3):
        others = [axis for axis in range(3) if axis != cut]
        axes = [int(n) for axis in others for n in (expected.shape[axis], distances[axis], steps[axis])]
        pieces = [
            [0, source, int(source + i * distances[cut]), int(i * steps[cut]), 2, *axes]
            for source in range(2)
            for i in range(expected.shape[cut])
        ]
        copies = [n for i in rng.permutation(len(pieces)) for n in pieces[i]]
        copies += [1, 0, 0, 0, 0]
        made = model(copies=copies, input_shapes=[3, *shape, 3, *shape], output_shapes=[4, *expected.shape, 1, 1])
        y, z = outputs(made, feeds)
        assert np.array_equal(y, expected)
        assert z.tolist() == [feeds["a"].ravel()[0]]


def test_no_other_names() -> None:
    for op in (f"{OPERATOR}_{ALIASES:02d}", f"{OPERATOR}_x0123456789ab"):
        with pytest.raises(REFUSALS, match="is not a registered"):
            native_session(model(op))


def test_bits_of_any_float() -> None:
    bits = np.array([0x7FC12345, 0x7F812345, 0xFF800000, 0x80000000, 1, 0xFFFFFFFF], np.uint32)
    feeds = {"a": bits.view(np.float32).reshape(2, 3), "b": FEEDS["b"]}
    assert outputs(model(), feeds)[1].T.view(np.uint32).ravel().tolist() == bits.tolist()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no copies": ({"copies": None}, "attribute copies is missing"),
    "no shapes": ({"output_shapes": None}, "attribute output_shapes is missing"),
    "shapes that end": ({"input_shapes": [2, 2, 3, 2, 2]}, "input_shapes: number 3 is 2, expected the number of dim"),
    "a negative size": (
        {"output_shapes": [1, -5, 2, 3, 2]},
        "a shape of attribute output_shapes is [?], expected at most",
    ),
    "large sizes": ({"output_shapes": [4, *[2**20] * 4, 2, 3, 2]}, "expected at most 16777216 elements"),
    "more inputs than shapes": (
        {"input_shapes": [2, 2, 3]},
        "the node has 2 inputs, and attribute input_shapes 1 shapes",
    ),
    "more shapes than outputs": (
        {"output_shapes": [1, 5, 2, 3, 2, 0]},
        "the node has 2 outputs, and attribute output_shapes 3 shapes",
    ),
    "a copy that ends": ({"copies": [*ATTRIBUTES["copies"], 0, 0]}, "it ends within a copy, where first element of"),
    "another output": ({"copies": [2, 0, 0, 0, 0]}, "number 0 (output) is 2, expected 0 .. 1"),
    "another input": ({"copies": [0, 5, 0, 0, 0]}, "number 1 (input) is 5, expected 0 .. 1"),
    "many axes": ({"copies": [0, 0, 0, 0, 9]}, "number 4 (number of axes) is 9, expected 0 .. 8"),
    "beyond an input": ({"copies": [0, 1, 0, 0, 1, 3, 1, 1]}, "copy 0 reads outside of input 1, which has 2 elements"),
    "before an input": ({"copies": [0, 1, 0, 0, 1, 2, 1, -1]}, "copy 0 reads outside of input 1, which has 2 elements"),
    "beyond an output": (
        {"copies": [0, 0, 1, 0, 1, 5, 1, 1]},
        "copy 0 writes outside of output 0, which has 5 elements",
    ),
    "an element twice": ({"copies": [0, 0, 0, 0, 1, 2, 0, 1]}, "copy 0 writes element 0 again"),
    "an element never": ({"copies": ATTRIBUTES["copies"][8:]}, "none writes element 0 of output 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(case: str) -> None:
    attributes, message = WRONG[case]
    with pytest.raises(REFUSALS, match=re.escape(message)):
        native_session(model(**attributes))


def test_inputs_of_other_shapes_and_types() -> None:
    with pytest.raises(REFUSALS, match=re.escape("input 0 has shape [3, 2], expected [2, 3]")):
        outputs(model(), FEEDS | {"a": FEEDS["a"].T.copy()})
    with pytest.raises(REFUSALS, match="double"):
        native_session(model(types=(TensorProto.FLOAT, TensorProto.DOUBLE)))


@settings(max_examples=max(30, settings().max_examples))
@given(st.data())
def test_random_changes(data: st.DataObject) -> None:
    """Refused with a message, or run as the page says."""
    changed = {name: list(numbers) for name, numbers in ATTRIBUTES.items()}
    for _ in range(data.draw(st.integers(1, 3))):
        numbers = changed[data.draw(st.sampled_from(["copies", "copies", "copies", "output_shapes"]))]
        place = data.draw(st.integers(0, len(numbers) - 1))
        numbers[place] = data.draw(st.sampled_from([-(2**63), -(2**40), -3, -1, 0, 1, 2, 3, 4, 5, 6, 2**31, 2**63 - 1]))
    expected = reference(changed)
    if expected is None:
        with pytest.raises(REFUSALS, match="attribute"):
            native_session(model(**changed))
    else:
        for one, other in zip(expected, outputs(model(**changed)), strict=True):
            assert np.array_equal(one, other)
