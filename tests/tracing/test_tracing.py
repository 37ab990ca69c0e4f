"""The parts of `rnnqc dump` that need no model.

What these would catch: names that lose a part of theirs, steps in another order than that of time, files that hold
something else than what was appended, a chunk or a mask that is off by one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.dumps.names import FileNames
from rnnqc.dumps.spool import Spool
from rnnqc.evaluation.evaluate import make_session
from rnnqc.passes.cells.observe import NotObservableError
from rnnqc.passes.graph.point_names import plain_name
from rnnqc.proto.graph_walks import needed, reads
from rnnqc.tracing.order import Order
from rnnqc.tracing.qcdq import moved
from rnnqc.tracing.rounds import at
from rnnqc.tracing.scans_as_loops import write_as_loops
from rnnqc.tracing.tensors import Tensor, dequantized


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("a/b.forward/cell_state.kept_2", "cell_state.kept"),
        ("a/b.forward/int8/hidden.codes", "hidden.codes"),
        ("uint8/gates.values_13", "gates.values"),
        ("int8/x.projection.step", "x.projection.step"),
        ("other/hidden", "other/hidden"),
        ("hidden_gate.acc.multiples", "hidden_gate.acc.multiples"),
    ],
)
def test_plain_names(name: str, plain: str) -> None:
    assert plain_name(name, "a/b.forward") == plain


def test_needed_nodes_and_what_they_read() -> None:
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["step", "outside"], ["made"])],
        "body",
        [onnx.helper.make_tensor_value_info("step", 1, None)],
        [onnx.helper.make_tensor_value_info("made", 1, None)],
    )
    scan = onnx.helper.make_node("Scan", ["x2"], ["y"], body=body, num_scan_inputs=1)
    assert reads(scan) == {"x2", "outside"}
    nodes = [
        onnx.helper.make_node("Neg", ["x"], ["x2"]),
        onnx.helper.make_node("Abs", ["x"], ["unused"]),
        onnx.helper.make_node("Sqrt", ["z"], ["outside"]),
    ]
    assert [n.op_type for n in needed(nodes, reads(scan))] == ["Neg", "Sqrt"]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.booleans())
def test_order_of_reversed_rows(lens: list[int], reverse: bool) -> None:
    """As the operator reads them: row by row from its last valid element."""
    time = 5
    x = np.arange(time * len(lens)).reshape(time, len(lens), 1)
    order = Order(reverse, np.array(lens, np.int32), time)
    looped = order.loop(x)
    for row, n in enumerate(lens):
        expected = x[:n, row][::-1] if reverse else x[:n, row]
        assert np.array_equal(looped[:n, row], expected)
    tensor = Tensor("t", looped.astype(np.float32), looped, zero_point=np.asarray(99))
    back = order.natural(0, {"t": tensor})["t"]
    assert back.codes is not None
    for row, n in enumerate(lens):
        assert np.array_equal(back.values[:n, row], x[:n, row]) and not back.values[n:, row].any()
        assert (back.codes[n:, row] == 99).all()


def test_what_stands_after_each_step() -> None:
    before, following = np.array([1, 2, 3]), np.array([9])
    assert moved(before, following, False).tolist() == [2, 3, 9]
    assert moved(before, following, True).tolist() == [9, 1, 2]
    assert moved(None, None, True) is None


def test_dequantization_takes_one_operation_at_a_time() -> None:
    codes = np.array([[[0, 200, 255]]], np.uint8)
    rows = np.array([[[0.1]]], np.float32)
    made = dequantized("x", codes, row_scale=rows, scale=np.float32([0.3, 0.7, 0.9]), zero_point=128)
    expected = (np.float32([-128, 72, 127]) * np.float32(0.1)) * np.float32([0.3, 0.7, 0.9])
    assert made.values.tobytes() == expected.reshape(1, 1, 3).astype(np.float32).tobytes()
    assert made.codes is not None and made.codes.dtype == np.uint8
    assert list(made.arrays()) == ["x", "x.codes", "x.zero_point", "x.row_scale", "x.scale"]


@pytest.mark.parametrize("buffer", [1, 2**23])
def test_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffer: int) -> None:
    from rnnqc.dumps import spool

    monkeypatch.setattr(spool, "BUFFER", buffer)
    made = Spool(tmp_path / "parts")
    pieces = [np.random.default_rng(k).normal(size=(k, 2, 3)) for k in (3, 0, 5)]
    for k, piece in enumerate(pieces):
        made.append("a/b", piece)
        made.append("codes", np.full((1, 2), k, np.uint8))
    made.fix("scale", np.asarray(2.0))
    with pytest.raises(ValueError, match="a/b"):
        made.append("a/b", np.zeros((1, 2, 4)))
    made.write(tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as held:
        assert held.files == ["a/b", "codes", "scale"]
        assert np.array_equal(held["a/b"], np.concatenate(pieces))
        assert held["codes"].tolist() == [[0, 0], [1, 1], [2, 2]] and held["codes"].dtype == np.uint8
        assert held["scale"] == 2.0 and held["scale"].shape == ()
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]


def test_file_names_are_stable_and_differ() -> None:
    names = FileNames()
    wanted = {("a",): "x", ("b",): "x", ("c",): "x_2", ("d",): "X", ("e",): "y"}
    made = [names.of(k, w) for k, w in wanted.items()]
    assert made == ["x", "x_2", "x_2_2", "X_3", "y"]
    assert [names.of(k, w) for k, w in reversed(wanted.items())] == made[::-1]


SCAN = """
<ir_version: 8, opset_import: ["" : 17]>
model (float[2] start, float[2,4] a, float[4,3] b, bool[4] take) => (float[2] last, float[2,4] back, float[4,3] plain) {
  last, unused, back, plain = Scan <num_scan_inputs = 3, scan_input_axes = [-1, 0, 0],
      scan_input_directions = [1, 0, 0], scan_output_axes = [0, 1, 0], scan_output_directions = [0, 1, 0],
      body = step (float[2] h, float[2] ak, float[3] bk, bool t)
                  => (float[2] h_next, float[2] unused_k, float[2] back_k, float[3] plain_k) {
    h_next = If (t) < then_branch = yes () => (float[2] added) { added = Add (h, ak) },
                      else_branch = no () => (float[2] kept) { kept = Identity (h) } >
    unused_k = Neg (h)
    back_k = Add (h_next, h)
    plain_k = Abs (bk)
  }> (start, a, b, take)
}
"""


def test_a_scan_is_the_same_as_a_loop() -> None:
    """Directions and axes of sequences and results, and a result that nothing uses."""
    proto = onnx.parser.parse_model(SCAN)
    made = onnx.ModelProto.FromString(proto.SerializeToString())
    write_as_loops(made, ["back", "h_next"])
    assert made == proto, "nothing stands inside of something else than the Scan"
    write_as_loops(made, ["added"])
    assert [n.op_type for n in made.graph.node if any(a.HasField("g") for a in n.attribute)] == ["Loop"]
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in {"start": 2, "a": (2, 4), "b": (4, 3)}.items()}
    for take in ([True, False, True, True], [False] * 4):
        results = [make_session(m).run(None, {**feeds, "take": np.array(take)}) for m in (proto, made)]
        for one, other in zip(*results, strict=True):
            assert one.tobytes() == other.tobytes()


def test_a_scan_with_a_result_of_unknown_rank() -> None:
    proto = onnx.parser.parse_model(SCAN)
    (body,) = (a.g for n in proto.graph.node for a in n.attribute if a.HasField("g"))
    body.output[2].type.tensor_type.ClearField("shape")
    with pytest.raises(NotObservableError):
        write_as_loops(proto, ["added"])


def test_a_value_around_serves_all_trips_inside() -> None:
    made = {(0, k): np.array(k) for k in (1, 2)}
    assert at(made, (0, 2, 5)) == 2 and at({(): np.array(7)}, (0, 2)) == 7
