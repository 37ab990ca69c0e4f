"""Values of quantization points as outputs of the model, wherever the cell stands.

What these would catch: an observed model that computes something else, values of the wrong step or branch, subgraph
outputs that are missing in the other branch, runs that are mixed up in nested loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.calibration import observation
from rnnqc.calibration.calibrate import prepare
from rnnqc.cells.types import LSTM
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, DecomposeLstm, PassManager
from rnnqc.passes.cells.observe import CONSTANT, LAST, LENGTHS, NotObservableError, observe_cells, with_outputs
from tests.generate.layers import RecurrentCase

Array = npt.NDArray[Any]


def decomposed(proto: onnx.ModelProto) -> Model:
    model = Model.load(proto)
    PassManager([Canonicalize(), DecomposeLstm()]).run(model)
    return model


@pytest.mark.few(4)
@pytest.mark.parametrize("placement", ["main", "if", "loop", "scan", "function"])
def test_the_observed_model_runs_and_makes_the_same_outputs(placement: Any) -> None:
    case = RecurrentCase(placement=placement, direction="bidirectional", lens=(5, 2))
    model = decomposed(case.model())
    before = model.proto
    values = observe_cells(model)
    after = model.proto
    names = with_outputs(after, values, ["Y_h"])
    assert after.graph.output[0].name == "Y_h" and len(set(names.values())) == len(values)
    session = observation.make_session(after)
    results = dict(zip([o.name for o in session.get_outputs()], session.run(None, case.feeds(0.0)), strict=True))
    expected = observation.make_session(before).run(["Y_h"], case.feeds(0.0))[0]
    assert np.asarray(results["Y_h"]).tobytes() == np.asarray(expected).tobytes()


def test_every_point_is_observed_once_for_each_cell() -> None:
    model = decomposed(RecurrentCase(direction="bidirectional", lens=(5, 2)).model())
    values = observe_cells(model)
    assert len(model.cells) == 2
    for cell in model.cells:
        points = [p.name for p in LSTM.points if p.name not in CONSTANT]
        assert sorted(v.point for v in values if v.cell == cell) == sorted([*points, LAST, LENGTHS])


LOOP_IN_IF_IN_LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
nested (float[3,2,4] X, int64 outer, int64 inner) => (float Z)
<int64 one = {1}, int64 zero = {0}, bool yes = {1}, float start = {0.0}> {
  Z = Loop (outer, yes, start) <body = outer_body (int64 i, bool go, float z) => (bool go_on, float z_next) {
    two = Constant <value = int64 {2}> ()
    odd = Mod (i, two)
    is_odd = Equal (odd, one)
    go_on = Identity (go)
    z_next = If (is_odd) <
      then_branch = then_body () => (float z_then) {
        z_then = Loop (inner, yes, z) <body = inner_body (int64 k, bool go2, float z2) => (bool go2_on, float z2_next) {
          go2_on = Identity (go2)
          step = Add (i, k)
          factor = CastLike (step, X)
          scaled = Mul (X, factor)
          Y, H, C = LSTM <hidden_size = 3> (scaled, W, R)
          total = ReduceSum <keepdims = 0> (Y)
          z2_next = Add (z2, total)
        }>
      },
      else_branch = else_body () => (float z_else) { z_else = Identity (z) }
    >
  }>
}
"""


def nested() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {"W": rng.standard_normal((1, 12, 4)), "R": rng.standard_normal((1, 12, 3))}
    proto = onnx.parser.parse_model(LOOP_IN_IF_IN_LOOP)
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return proto


def test_runs_in_nested_loops_are_all_seen() -> None:
    """A Loop in a branch of a Loop: of five rounds, the odd ones run the layer three times."""
    proto = nested()
    x = np.random.default_rng(1).standard_normal((3, 2, 4)).astype(np.float32)
    statistics = rnnqc.calibrate(proto, [{"X": x, "outer": np.array(5), "inner": np.array(3)}])
    (cell,) = statistics.cells
    inputs = np.concatenate([x * (i + k) for i in (1, 3) for k in range(3)])
    found = statistics.points[f"{cell}.input"]
    assert found.calls == 6 and found.count == inputs.size
    assert (found.min, found.max) == (inputs.min(), inputs.max())
    assert statistics.points[f"{cell}.hidden"].calls == 18
    none = rnnqc.calibrate(proto, [{"X": x, "outer": np.array(1), "inner": np.array(3)}])
    assert none.silent_cells == [cell] and none.points == {}


def in_scan(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The graph of `proto` in the body of a Scan over one more axis of X."""
    body = onnx.GraphProto()
    body.CopyFrom(proto.graph)
    del body.initializer[:]
    kept = [i for i in body.input if i.name == "X"]
    del body.input[:]
    body.input.extend(kept)
    outer = onnx.ModelProto()
    outer.CopyFrom(proto)
    del outer.graph.node[:], outer.graph.output[:]
    outer.graph.node.append(onnx.helper.make_node("Scan", ["Xs"], ["Ys"], "scan", body=body, num_scan_inputs=1))
    outer.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("Xs", 1, [2, 5, 2, 3]))
    outer.graph.output.append(onnx.helper.make_tensor_value_info("Ys", 1, None))
    return outer


def test_a_branch_inside_a_scan_is_refused() -> None:
    case = RecurrentCase(placement="if", outputs=("Y",))
    proto = in_scan(case.model())
    model = decomposed(proto)
    values = observe_cells(model)
    with pytest.raises(NotObservableError):
        with_outputs(model.proto, values, [])
    feeds = {"Xs": np.zeros((2, 5, 2, 3), np.float32), "condition": np.array(True)}
    with pytest.raises(rnnqc.CompileError, match=r"else_the_lstm.* in an If or Loop inside a Scan"):
        rnnqc.calibrate(proto, [feeds])


@pytest.mark.few(2)
@pytest.mark.parametrize("budget", [1, 3000, 2**28])
def test_cells_one_after_the_other_give_the_same(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the observations of a feed would be too large, cells are observed in separate runs."""
    case = RecurrentCase(direction="bidirectional", B=3, lens=(5, 2, 4))
    expected = rnnqc.calibrate(case.model(), [case.feeds()])
    sessions: list[int] = []
    make: Callable[..., Any] = observation.make_session

    def counted(*arguments: Any) -> Any:
        sessions.append(1)
        return make(*arguments)

    monkeypatch.setattr(observation, "make_session", counted)
    monkeypatch.setattr(observation, "BUDGET", budget)
    statistics = rnnqc.calibrate(case.model(), [case.feeds()])
    assert len(sessions) == (2 if budget < 2**28 else 1)
    assert statistics.text == expected.text


def test_states_go_on_when_cells_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    case = RecurrentCase(direction="bidirectional", initial_h=True, initial_c=True, T=3)
    state = ["initial_h:Y_h", "initial_c:Y_c"]
    feeds = [{"X": case.replace(seed=k).feeds()["X"]} for k in range(3)]
    expected = rnnqc.calibrate(case.model(), feeds, state=state)
    monkeypatch.setattr(observation, "BUDGET", 1)
    assert rnnqc.calibrate(case.model(), feeds, state=state).text == expected.text


def test_rows_are_cut_where_the_batch_is_known_and_no_more_than_fit() -> None:
    case = RecurrentCase(dynamic_batch=True, dynamic_time=True, H=4, I=3)
    task, *_ = prepare(Model.load(case.model()), {}, True)
    assert task.axes == {"X": 1}
    row = 4 * (3 + 21 * 4)  # bytes of a step
    feed = {"X": np.zeros((7, 50, 3), np.float32)}
    assert sum(task.sizes(feed, 1)) == 7 * row + 4 * 4
    assert task.rows(feed) == 32
    long = {"X": np.broadcast_to(np.float32(0), (10**6, 50, 3))}
    assert task.rows(long) == max(1, 2**28 // (10**6 * row + 16))
    static, *_ = prepare(Model.load(case.replace(dynamic_batch=False).model()), {}, True)
    assert static.axes is None
    carried, *_ = prepare(
        Model.load(RecurrentCase(dynamic_batch=True, initial_h=True).model()), {"initial_h": "Y_h"}, True
    )
    assert carried.axes is None
