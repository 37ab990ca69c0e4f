"""The loop around a cell, with an arithmetic that adds the inputs up.

What these would catch: a loop in the wrong direction; a state of the wrong step; elements beyond a length, or in the
wrong order behind it; an output that is not written, or written from another one; results that nothing needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from rnnqc.cells.types import LSTM, RNN, CellType
from rnnqc.ir import Model, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.boundary import Boundary
from rnnqc.passes.cells.loop_driver import (
    CODES_STEPS,
    HIDDEN_STEPS,
    Arithmetic,
    Loop,
    Results,
    State,
    Stepped,
    Wanted,
    emit_cell,
)
from tests.native.grid_cases import a_cell

Array = npt.NDArray[np.float32]
T, B, H = 4, 3, 2
LENGTHS = np.array([4, 0, 2], np.int32)
ZERO_POINT = 7


@dataclass(frozen=True)
class Adding(Arithmetic):
    """Adds each element to the hidden state, and twice to the cell state of an LSTM; codes are the sums themselves."""

    unit: float = 0.0
    makes_codes: bool = False

    @property
    def cell_unit(self) -> float:
        return self.unit

    @property
    def hidden_zero_point(self) -> int:
        return ZERO_POINT

    def run(self, b: Builder, loop: Loop) -> Results:
        type_, shape = loop.cell.type, [loop.cell.batch_dimension, H]
        p = b.op("Concat", [loop.sequence(b)] * len(type_.gates), "p", axis=2)
        given = [loop.at.initial_h, loop.at.initial_c][: 1 + type_.cell_state]
        initial = [v or b.op("Expand", [b.f32(0.0), loop.state_shape(b)], f"zeros.{k}") for k, v in enumerate(given)]

        def step(body: Builder, previous: Sequence[Value], projected: Sequence[Value]) -> Stepped:
            x = body.op("Slice", [projected[0], body.i64([0]), body.i64([H]), body.i64([1])], "x")
            y = body.op("Add", [previous[0], x], "y")
            c = body.op("Sub", [body.op("Add", [previous[-1], x], "once"), body.op("Neg", [x], "less")], "c")
            codes = body.cast(y, np.uint8, "codes") if self.makes_codes else None
            return Stepped([y, c][: len(previous)], y, c, codes)

        results = loop.run(b, p, [State(v, np.float32, shape) for v in initial], step)
        if loop.wanted.codes and CODES_STEPS not in results:
            results[CODES_STEPS] = b.cast(results[HIDDEN_STEPS], np.uint8, "codes")
        return results


@dataclass(frozen=True)
class Readable(Adding):
    """The same, but carries the output of the cell; outputs of the body have names of their own."""

    hands_on_output: ClassVar[bool] = True
    names_outputs: ClassVar[bool] = True


def _run(
    arithmetic: Arithmetic,
    type_: CellType,
    names: Sequence[str],
    *,
    reverse: bool,
    lens: bool,
    states: bool,
    stops_early: bool = False,
    lengths: npt.NDArray[np.int32] = LENGTHS,
) -> tuple[dict[str, Array], onnx.NodeProto]:
    """The outputs of a cell called `names`, what its Scan makes of each step as `steps`, and the Scan."""
    inputs = {"X": onnx.TensorProto.FLOAT, "sequence_lens": onnx.TensorProto.INT32}
    inputs |= dict.fromkeys(("initial_h", "initial_c"), onnx.TensorProto.FLOAT)
    shapes = {"X": [T, "B", H], "sequence_lens": ["B"], "initial_h": ["B", H], "initial_c": ["B", H]}
    kinds = {n: onnx.TensorProto.UINT8 if n == "Y_codes" else onnx.TensorProto.FLOAT for n in names}
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Cast", ["X"], [n], n, to=kinds[n]) for n in names],  # stands for the cell
        "loop",
        [onnx.helper.make_tensor_value_info(n, k, shapes[n]) for n, k in inputs.items()],
        [onnx.helper.make_tensor_value_info(n, kinds[n], None) for n in names],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    model = Model(proto)
    values: dict[str, Value] = {v.name: v for v in [*model.graph.inputs, *model.graph.outputs]}
    model.remove_nodes(model.graph, list(model.graph.nodes))
    cell = replace(a_cell(H, H, type_=type_, reverse=reverse), name="cell")
    at = Boundary(
        values["X"], values["sequence_lens"] if lens else None, values["initial_h"] if states else None,
        values["initial_c"] if states else None, values.get("Y"), values.get("Y_h"), values.get("Y_c"),
    )  # fmt: skip
    emitted = emit_cell(model, cell, at, arithmetic, values.get("Y_codes"), stops_early=stops_early)
    model.graph.nodes.extend(emitted.nodes)
    model.sort()
    model.check()
    made = model.proto
    scan = next(n for n in made.graph.node if n.op_type == "Scan")
    fetched = list(names)
    if lens:  # states of all steps
        made.graph.output.add(name=scan.output[-1])
        fetched.append(scan.output[-1])
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(fetched, {**_feeds(), "sequence_lens": lengths})
    return dict(zip([*names, *(["steps"] if lens else [])], results, strict=True)), scan


def _feeds() -> dict[str, npt.NDArray[np.generic]]:
    x = np.arange(1, T * B * H + 1, dtype=np.float32).reshape(T, B, H)
    states = {"initial_h": np.full((B, H), 100, np.float32), "initial_c": np.full((B, H), 1000, np.float32)}
    return {"X": x, "sequence_lens": LENGTHS, **states}


def _expected(
    *, reverse: bool, lens: bool, states: bool, unit: float, lengths: npt.NDArray[np.int32] = LENGTHS
) -> dict[str, Array]:
    """Returns the expected outputs by definition, row by row."""
    feeds = _feeds()
    x = np.asarray(feeds["X"], np.float32)
    y, codes = np.zeros((T, B, H), np.float32), np.full((T, B, H), ZERO_POINT, np.uint8)
    last_h, last_c = np.zeros((B, H), np.float32), np.zeros((B, H), np.float32)
    for row, length in enumerate(lengths if lens else [T] * B):
        h = np.full(H, 100.0 if states else 0.0, np.float32)
        c = np.full(H, 1000.0 if states else 0.0, np.float32)
        for t in range(length)[:: -1 if reverse else 1]:
            h, c = h + x[t, row], c + 2 * x[t, row]
            y[t, row], codes[t, row] = h, h.astype(np.uint8)
        if length:
            last_h[row], last_c[row] = h, c * np.float32(unit or 1.0)
    return {"Y": y, "Y_h": last_h, "Y_c": last_c, "Y_codes": codes}


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", [Adding, Readable])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lens", [False, True])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("codes", [False, True])
def test_all_outputs(kind: type[Adding], *, reverse: bool, lens: bool, states: bool, codes: bool) -> None:
    """Codes made in the loop and those made after it are the same, and so are both ways to Y_h."""
    for type_, unit in ((RNN, 0.0), (LSTM, 0.0), (LSTM, 0.25)):
        names = ["Y", "Y_h", "Y_codes", *(["Y_c"] if type_.cell_state else [])]
        made, _ = _run(kind(unit, codes), type_, names, reverse=reverse, lens=lens, states=states)
        expected = _expected(reverse=reverse, lens=lens, states=states, unit=unit)
        for name in names:
            array = made[name]
            assert array.dtype == expected[name].dtype
            assert np.array_equal(array, expected[name]), (type_.op, unit, name)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("lengths", "steps"), [([4, 0, 2], 4), ([2, 3, 0], 3), ([1, 0, 1], 1), ([0, 0, 0], 1)], ids=lambda v: str(v)
)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("codes", [False, True])
def test_a_loop_that_ends_at_the_greatest_length(lengths: list[int], steps: int, *, reverse: bool, codes: bool) -> None:
    """Its Scan makes no more steps, at least one; outputs are those of the loop over everything, padding included."""
    names, given = ["Y", "Y_h", "Y_c", "Y_codes"], np.array(lengths, np.int32)
    for states in (False, True):
        cell = {"reverse": reverse, "lens": True, "states": states}
        made, _ = _run(Adding(0.25, codes), LSTM, names, **cell, stops_early=True, lengths=given)
        whole, _ = _run(Adding(0.25, codes), LSTM, names, **cell, lengths=given)
        assert (len(made["steps"]), len(whole["steps"])) == (steps, T)
        expected = _expected(**cell, unit=0.25, lengths=given)
        for name in names:
            assert made[name].tobytes() == whole[name].tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("length", [T + 1, -1])
def test_lengths_beyond_the_sequence_are_refused(length: int) -> None:
    for stops_early in (False, True):
        with pytest.raises(Exception, match="sequence_lens_must_be_0_to_T"):
            _run(
                Adding(), LSTM, ["Y"], reverse=False, lens=True, states=False, stops_early=stops_early,
                lengths=np.array([2, length, 1], np.int32),
            )  # fmt: skip


@pytest.mark.parametrize("name", ["Y", "Y_h", "Y_c", "Y_codes"])
@pytest.mark.parametrize("lens", [False, True])
def test_one_output(name: str, *, lens: bool) -> None:
    """The Scan has no output that nothing needs: beside the two states one, and none for a last state without lengths.

    Where the hidden state is not handed on as it leaves the cell, Y_h is its last step.
    """
    for kind in (Adding, Readable):
        made, scan = _run(kind(0.0, name == "Y_codes"), LSTM, [name], reverse=True, lens=lens, states=True)
        assert np.array_equal(made[name], _expected(reverse=True, lens=lens, states=True, unit=0.0)[name])
        from_states = not lens and (name == "Y_c" or (name == "Y_h" and kind is Readable))
        assert len(scan.output) == (2 if from_states else 3)
        names = [o.name.rpartition("/")[2] for a in scan.attribute if a.name == "body" for o in a.g.output]
        assert (names[:2] == ["hidden.next", "cell_state.next"]) == (kind is Readable)


def test_what_is_wanted() -> None:
    value = Model(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []))).constant(0, np.float32)
    at = Boundary(value, None, None, None, None, value, value)
    assert Wanted.of(at, None, False) == Wanted(y=True, codes=False, c_steps=False, last_h=False, last_c=True)
    assert Wanted.of(at, None, True) == Wanted(y=False, codes=False, c_steps=False, last_h=True, last_c=True)
    with_lens = replace(at, sequence_lens=value)
    for hands_on in (False, True):
        wanted = Wanted.of(with_lens, value, hands_on)
        assert wanted == Wanted(y=True, codes=True, c_steps=True, last_h=False, last_c=False)
