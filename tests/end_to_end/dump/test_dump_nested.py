"""`rnnqc dump` of cells in branches and loops inside of loops, against the numpy reference.

What these would catch: a run that is missing or counted to another trip, values of one trip in another, an outer state
of another trip in front of a run, a Scan whose elements or outputs are turned round when its values are brought out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.cells.types import CELL_TYPES
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.reference.fixed_point_cell import FixedPointCell
from tests.generate.nesting import condition, nested
from tests.generate.recurrences import RecurrenceCase
from tests.pages.dumped import POWERS_OF_TWO, assert_follows_the_rule
from tests.subjects.around import TRIPS, in_loop, in_scan

Array = npt.NDArray[Any]
Trips = tuple[int, ...]
TIME, BATCH, INPUT, HIDDEN = 3, 2, 4, 5

_LSTM = "Y, Yh = LSTM <hidden_size = 5> (x, W, R, , , h)"
IF_IN_SCAN = f"""
<ir_version: 8, opset_import: ["" : 17]>
model (float[4,3,2,4] Xs, bool[4] take, float[1,2,5] start) => (float[1,2,5] last, float[3,4,1,2,5] Ys) {{
  last, Ys = Scan <num_scan_inputs = 2, scan_input_directions = [1, 1], scan_output_directions = [1],
                   scan_output_axes = [1], body = steps (float[1,2,5] h, float[3,2,4] x, bool t)
                                               => (float[1,2,5] h_next, float[3,1,2,5] y) {{
    h_next, y = If (t) <
      then_branch = taken () => (float[1,2,5] Yh, float[3,1,2,5] Y) {{ {_LSTM} }},
      else_branch = passed () => (float[1,2,5] kept, float[3,1,2,5] none) {{
        kept = Identity (h)
        shape = Constant <value = int64[4] {{3, 1, 2, 5}}> ()
        none = ConstantOfShape (shape)
      }}
    >
  }}> (start, Xs, take)
}}
"""
IF_IN_LOOP = f"""
<ir_version: 8, opset_import: ["" : 17]>
model (float[4,3,2,4] Xs, bool[4] take, float[1,2,5] start) => (float[1,2,5] last) {{
  count = Constant <value = int64 {{4}}> ()
  last = Loop (count, , start) <body = trips (int64 k, bool go, float[1,2,5] h) => (bool go_on, float[1,2,5] h_next) {{
    go_on = Identity (go)
    x = Gather (Xs, k)
    t = Gather (take, k)
    h_next = If (t) <
      then_branch = taken () => (float[1,2,5] Yh) {{ {_LSTM} }},
      else_branch = passed () => (float[1,2,5] kept) {{ kept = Identity (h) }}
    >
  }}>
}}
"""
LOOP_IN_IF_IN_LOOP = f"""
<ir_version: 8, opset_import: ["" : 17]>
model (float[4,3,2,4] Xs, bool[4] take, float[1,2,5] start) => (float[1,2,5] last) {{
  count = Constant <value = int64 {{4}}> ()
  one = Constant <value = int64 {{1}}> ()
  last = Loop (count, , start) <body = trips (int64 k, bool go, float[1,2,5] h1) => (bool go_on, float[1,2,5] h_next) {{
    go_on = Identity (go)
    outer = Gather (Xs, k)
    t = Gather (take, k)
    times = Add (k, one)
    h_next = If (t) <
      then_branch = taken () => (float[1,2,5] h_then) {{
        h_then = Loop (times, , h1) <body = again (int64 j, bool go2, float[1,2,5] h)
                                         => (bool go2_on, float[1,2,5] Yh) {{
          go2_on = Identity (go2)
          next = Add (j, one)
          factor = Cast <to = 1> (next)
          x = Mul (outer, factor)
          {_LSTM}
        }}>
      }},
      else_branch = passed () => (float[1,2,5] kept) {{ kept = Identity (h1) }}
    >
  }}>
}}
"""
MODELS = {"if in scan": IF_IN_SCAN, "if in loop": IF_IN_LOOP, "loop in if in loop": LOOP_IN_IF_IN_LOOP}
TAKE = np.array([True, False, True, True])
RUNS = {
    "if in scan": [((0,), 3, 1), ((1,), 2, 1), ((3,), 0, 1)],
    "if in loop": [((0,), 0, 1), ((2,), 2, 1), ((3,), 3, 1)],
    "loop in if in loop": [((k, j), k, j + 1) for k in (0, 2, 3) for j in range(k + 1)],
}
"""Trips of each run, the element of `Xs` that it reads, and the factor of that. The Scan goes from the end."""


def float_model(text: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(text)
    for name, shape in {"W": (1, 4 * HIDDEN, INPUT), "R": (1, 4 * HIDDEN, HIDDEN)}.items():
        array = rng.uniform(-1, 1, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return proto


def feeds_of() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    x = rng.uniform(-0.5, 0.5, (4, TIME, BATCH, INPUT)).astype(np.float32)
    return {"Xs": x, "take": TAKE, "start": rng.uniform(-1, 1, (1, BATCH, HIDDEN)).astype(np.float32)}


class Recorded:
    """Values `[T,B,K]` of a reference by the names of a dump: codes less their zero points where there are some."""

    def __init__(self) -> None:
        self.steps: dict[str, list[Array]] = {}

    def record(self, name: str, step: int | None, values: Array) -> None:
        if step is not None:
            self.steps.setdefault(name, []).append(values)

    def of(self, cell: FixedPointCell) -> dict[str, Array]:
        names = {"hidden": "hidden", "cell_state": "cell_state"}
        names |= {f"{g}.acc": f"{g}.acc" for g in cell.type.gates}
        made = {n: np.stack(self.steps[f"{n}.codes"]) - cell.quantizers[q].zero_point for n, q in names.items()}
        values = [n for n in self.steps if n.endswith((".activation", ".preactivation", "hidden.value"))]
        return made | {n: np.stack(self.steps[n]) for n in values}


def reference(fused: onnx.ModelProto, feeds: dict[str, Array], name: str) -> dict[Trips, dict[str, Array]]:
    """The values of the numpy reference in each run, which starts from the hidden state of the previous run."""
    (node,) = (n for g in blocks_of([fused.graph]) for n in g.node if n.op_type.startswith("Quant"))
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if not a.name.endswith("_axis")}
    attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in given.items()}
    tracer = rnnqc.Tracer(fused, native=False)
    list(tracer.trace([feeds]))
    constants = tracer.constants(tracer.names[0])
    state, made = feeds["start"][0], {}
    for trips, element, factor in RUNS[name]:
        inputs = {"X": feeds["Xs"][element] * np.float32(factor), "initial_h": state, **constants}
        recorded = Recorded()
        cell = FixedPointCell(CELL_TYPES["LSTM"], inputs, attributes, recorded)
        state = cell.run()["Y_h"]
        made[trips] = recorded.of(cell)
    return made


@pytest.mark.few(1)
@pytest.mark.parametrize("name", MODELS)
def test_every_run_in_every_form(name: str) -> None:
    feeds = feeds_of()
    arguments: dict[str, Any] = {"recipe": "brevitas-int8", "overrides": POWERS_OF_TWO, "strict": True}
    made = {f: rnnqc.lower(float_model(MODELS[name]), form=f, **arguments).proto for f in ("fused", "integer", "qcdq")}
    expected = reference(made["fused"], feeds, name)
    for form, proto in made.items():
        pieces = list(rnnqc.Tracer(proto).trace([feeds]))
        assert [p.trips for p in pieces] == list(expected) == [trips for trips, _, _ in RUNS[name]], form
        for run, piece in enumerate(pieces):
            assert (piece.run, piece.first, piece.length) == (run, 0, TIME)
            assert_follows_the_rule(dict(piece.tensors), form)
            for point, multiples in expected[piece.trips].items():
                tensor, what = piece.tensors[point], f"{form}: {piece.trips}: {point}"
                if point.endswith(("activation", ".value")):
                    assert np.array_equal(tensor.values, multiples), what
                    continue
                assert tensor.codes is not None and tensor.zero_point is not None, what
                assert np.array_equal(tensor.codes - tensor.zero_point, multiples), what
                assert len(np.unique(multiples)) > 3, f"{what}: a trivial case"


def test_the_index_says_which_trips_were_made(tmp_path: Path) -> None:
    proto = rnnqc.lower(float_model(MODELS["loop in if in loop"])).proto
    taken = {**feeds_of(), "take": np.array([False, True, False, False])}
    index = rnnqc.dump(proto, [feeds_of(), taken], tmp_path / "out")
    assert index == json.loads((tmp_path / "out/index.json").read_text())
    (cell,) = index["cells"].values()
    trips = [(0, list(t)) for t, _, _ in RUNS["loop in if in loop"]] + [(1, [1, 0]), (1, [1, 1])]
    assert [(r["call"], r["trips"]) for r in cell["runs"]] == trips
    assert [r["first"] for r in cell["runs"]] == [TIME * k for k in range(len(trips))]
    assert cell["steps"] == TIME * len(trips)


def test_a_branch_that_is_never_taken_has_no_steps() -> None:
    proto = rnnqc.lower(float_model(IF_IN_SCAN)).proto
    assert not list(rnnqc.Tracer(proto).trace([{**feeds_of(), "take": np.zeros(4, bool)}]))


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("around", ["scan", "loop", "scan in scan", "scan in loop", "loop in scan"])
@pytest.mark.parametrize("kind", ["scan", "loop"])
def test_other_recurrences(kind: Any, around: str) -> None:
    """A highway cell in a branch: each run is what a model without anything around it makes of the same elements."""
    case = RecurrenceCase(op="highway", form=kind, time=5, I=12, H=16, initial="input")
    overrides = [*(f"*.{k}.scale={2.0**-6}" for k in ("value", "weight")), "*.value.bits=10", "*.weight.bits=8"]
    feeds = {**case.feeds(), condition(0): np.array(True)}
    inside = nested(case.model(), 1)
    for level, op in enumerate(around.split(" in ")):
        inside = {"scan": in_scan, "loop": in_loop}[op](_renamed(inside, level))
    proto = rnnqc.lower(inside, overrides=overrides).proto
    pieces = list(rnnqc.Tracer(proto).trace([feeds]))
    depth = around.count(" in ") + 1
    assert [p.trips for p in pieces] == list(np.ndindex(*[TRIPS] * depth))
    assert len({p.cell for p in pieces}) == 1  # that of the other branch has no steps
    alone = rnnqc.Tracer(rnnqc.lower(case.model(), overrides=overrides).proto)
    for piece in pieces:
        factor = np.float32(1)
        for trip in piece.trips:
            factor = factor * np.float32(trip + 1)
        (expected,) = alone.trace([{**case.feeds(), "x": case.feeds()["x"] * factor}])
        assert expected.trips == () and len(piece.tensors) == len(expected.tensors) > 20
        for one, other in zip(expected.tensors.values(), piece.tensors.values(), strict=True):
            assert np.array_equal(one.values, other.values), f"{piece.trips}: {other.name}"
            assert (one.codes is None) == (other.codes is None) and np.array_equal(one.codes, other.codes), other.name


def _renamed(model: onnx.ModelProto, level: int) -> onnx.ModelProto:
    """The model ready to be put into a loop: its main graph alone reads `x`; what `around` adds has other names."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    given = {i.name for i in made.graph.input} | {o.name for o in made.graph.output}

    def other(name: str) -> str:
        taken = name == "x" or (name.startswith("around") and name not in given)
        return f"in{level}_{name}" if taken else name

    for graph in blocks_of([made.graph]):
        for held in (graph.input, graph.output, graph.initializer):
            for value in held:
                value.name = value.name if value.name in given else other(value.name)
        for node in graph.node:
            node.input[:] = [other(n) for n in node.input]
            node.output[:] = [other(n) for n in node.output]
            node.name = other(node.name)
    made.graph.node.insert(0, onnx.helper.make_node("Identity", ["x"], [other("x")]))
    return made
