"""Outputs that are quantized values.

What these would catch: quantized values that are not those of the float output, an output that has none in silence,
tools that take quantized values for real ones.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, UsageError
from rnnqc.evaluation.evaluate import quantized_outputs, run_session
from rnnqc.formats.quantized_outputs import OUTPUTS_KEY, read_outputs
from tests.runs.commands import in_process

CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}
Array = np.ndarray[Any, np.dtype[Any]]


def layer(cell: str = "LSTM", direction: str = "bidirectional") -> onnx.ModelProto:
    """A layer of both directions: `y` is `[T,B,2H]`, states come in and go out."""
    rng, gates, hidden, ways = np.random.default_rng(0), CELLS[cell], 6, 2 if direction == "bidirectional" else 1
    held = {"W": (ways, gates * hidden, 5), "R": (ways, gates * hidden, hidden), "B": (ways, 2 * gates * hidden)}
    constants = [onnx.numpy_helper.from_array((rng.standard_normal(s) * 0.4).astype("f"), n) for n, s in held.items()]
    constants.append(onnx.numpy_helper.from_array(np.array([0, 0, -1]), "flat"))
    states = ["h0", "c0"] if cell == "LSTM" else ["h0"]
    last = ["hn", "cn"] if cell == "LSTM" else ["hn"]
    options = {"linear_before_reset": 1} if cell == "GRU" else {}
    nodes = [
        onnx.helper.make_node(
            cell, ["x", "W", "R", "B", "", *states], ["Y", *last], "layer", hidden_size=hidden, direction=direction,
            **options,
        ),
        onnx.helper.make_node("Transpose", ["Y"], ["turned"], perm=[0, 2, 1, 3]),
        onnx.helper.make_node("Reshape", ["turned", "flat"], ["y"]),
        onnx.helper.make_node("Exp", ["y"], ["other"]),
    ]  # fmt: skip
    shapes = {"x": ["T", "B", 5], "y": ["T", "B", ways * hidden], "other": ["T", "B", ways * hidden]}
    shapes |= {n: [ways, "B", hidden] for n in (*states, *last)}
    made = {n: onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()}
    inputs, outputs = [made[n] for n in ("x", *states)], [made[n] for n in ("y", *last, "other")]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    sizes = {"T": 9, "B": 2}
    rng = np.random.default_rng(seed)
    return {
        v.name: (rng.standard_normal([d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim]) * 0.5)
        .clip(-1, 1)
        .astype("f")
        for v in model.graph.input
    }


@functools.cache
def seen(cell: str = "LSTM") -> Statistics:
    """The statistics of the bidirectional layer."""
    return calibrate(layer(cell), [feeds(layer(cell), k) for k in range(3)])


def both(
    cell: str, recipe: str, form: str, names: Sequence[str], *overrides: str
) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
    """Stored and real outputs of the model with quantized outputs, and the outputs of the one without."""
    model = layer(cell)
    plain, made = (
        rnnqc.lower(model, recipe, form, stats=seen(cell), overrides=overrides, quantized_outputs=q)
        for q in ([], names)
    )
    assert [v.name for v in made.proto.graph.output] == [v.name for v in model.graph.output]
    session = rnnqc.session(made, native=False)
    feed = feeds(model)
    stored = run_session(session, feed, stored=True)
    return stored, run_session(session, feed), run_session(rnnqc.session(plain, native=False), feed)


@pytest.mark.parametrize(
    ("recipe", "form", "names"),
    [
        ("brevitas-int8", "fused", ["hn", "y"]),
        ("brevitas-int8", "qcdq", ["cn"]),
        ("pow2-int16", "integer", ["y", "hn", "cn"]),
        ("pow2-int16", "fused", ["y"]),
    ],
)
def test_rounded_outputs_lose_nothing(recipe: str, form: str, names: list[str]) -> None:
    stored, real, plain = both("LSTM", recipe, form, names)
    for name, array in plain.items():
        assert stored[name].dtype == ((np.int8 if recipe == "brevitas-int8" else np.int16) if name in names else "f")
        assert np.array_equal(real[name], array), name
        assert array.std() > 0.05


@pytest.mark.parametrize("cell", CELLS)
def test_unrounded_states_become_what_the_recurrence_reads(cell: str) -> None:
    stored, real, plain = both(cell, "int8", "fused", ["y"])
    assert stored["y"].dtype == np.uint8 and np.ptp(stored["y"].astype(int)) > 30
    assert 0 < np.abs(real["y"] - plain["y"]).max() <= 0.5 / 127 * 1.001


def test_a_rounding_down_is_one() -> None:
    """An RNN's states leave it unrounded: the quantized ones are rounded down, as in the recurrence."""
    _, real, plain = both("RNN", "pow2-int16", "integer", ["y"])
    below = plain["y"] - real["y"]
    assert (below >= 0).all() and below.max() > 0.5 * 2.0**-12


def test_native_outputs_are_the_same() -> None:
    model = layer(direction="forward")
    made = rnnqc.lower(model, "int8", quantized_outputs=["y", "hn"], verify=True)
    feed = feeds(model)
    results = [run_session(rnnqc.session(made, native=native), feed, stored=True) for native in (False, True)]
    assert all(np.array_equal(results[0][n], results[1][n]) for n in results[0])
    assert ("quantize-outputs" in made.report.verified) and made.report.quantized_outputs["y"]["bits"] == 8


@pytest.mark.parametrize(
    ("recipe", "form", "names", "found"),
    [
        ("int8", "fused", ["z"], "the model has none of this name. Supported: y, hn, cn, other"),
        ("int8", "fused", ["other"], "operator 'Exp'"),
        ("int8", "fused", ["cn"], "cell_state' has no format with one scale"),
        ("distiller-asym", "fused", ["y"], "*.hidden.share=outputs"),
        ("brevitas-int8", "qonnx", ["y"], "form qonnx. Supported: quantized outputs (return_quant_tensor"),
        ("weight-only-int8", None, ["y"], "form weight-only"),
    ],
)
def test_what_has_no_common_format_is_refused(recipe: str, form: str | None, names: list[str], found: str) -> None:
    model = layer()
    with pytest.raises(CompileError) as caught:
        rnnqc.lower(model, recipe, form, stats=seen(), quantized_outputs=names)
    assert found in str(caught.value)


def test_a_shared_scale_is_the_way_out() -> None:
    _, real, plain = both("LSTM", "distiller-asym", "fused", ["y"], "*.hidden.share=outputs")
    assert np.array_equal(real["y"], plain["y"])


def test_commands_read_real_values(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = layer(direction="forward")
    stream = [{"x": feeds(model, k)["x"]} for k in range(4)]
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "calls.npz", x=np.stack([f["x"] for f in stream]))
    np.savez(tmp_path / "labelled.npz", x=np.stack([f["x"] for f in stream]), labels=np.zeros((4, 9, 2), np.int64))
    state = ["--state", "h0:hn", "--state", "c0:cn"]
    given = ["--recipe", "pow2-int16", "--calibration", tmp_path / "calls.npz", *state]
    for name, more in {"q": ["--quantized-outputs", "y", "hn"], "plain": []}.items():
        made = in_process(capfd, "lower", tmp_path / "m.onnx", "-o", tmp_path / f"{name}.onnx", *given, *more)
        assert made.code == 0, made.err
        assert ("y: int16, real values are 0.000244140625 * y" in " ".join(made.out.split())) == bool(more)
    assert "quantized output y: int16" in in_process(capfd, "inspect", tmp_path / "q.onnx").out
    printed = json.loads(in_process(capfd, "inspect", tmp_path / "q.onnx", "--json").out)
    assert set(printed["quantized_outputs"]) == {"y", "hn"}
    texts, arrays = {}, {}
    for name in ("q", "plain"):
        data = ["--data", tmp_path / "calls.npz", *state, "--json"]
        texts[name] = json.loads(in_process(capfd, "verify", tmp_path / "m.onnx", tmp_path / f"{name}.onnx", *data).out)
        labelled = ["--data", tmp_path / "labelled.npz", *state, "--metric", "accuracy", "--json"]
        texts[f"{name} task"] = json.loads(in_process(capfd, "evaluate", tmp_path / f"{name}.onnx", *labelled).out)
        out = tmp_path / f"{name}.npz"
        ran = in_process(capfd, "run", tmp_path / f"{name}.onnx", "-i", tmp_path / "calls.npz", "-o", out, *state)
        assert ran.code == 0 and ("quantized output y: int16" in ran.out) == (name == "q")
        arrays[name] = dict(np.load(out))
    assert texts["q"]["outputs"] == texts["plain"]["outputs"]
    assert texts["q task"]["value"] == texts["plain task"]["value"]
    assert arrays["q"]["y"].dtype == np.int16
    assert np.array_equal(arrays["q"]["y"] * np.float32(2.0**-12), arrays["plain"]["y"])


def test_damaged_metadata_are_refused() -> None:
    made = rnnqc.lower(layer(), quantized_outputs=["y"])
    assert set(quantized_outputs(rnnqc.session(made, native=False))) == {"y"}
    for text in ("{", '{"y": 3}', '{"y": {"bits": 8}}', "[]"):
        with pytest.raises(CompileError, match="damaged"):
            read_outputs({OUTPUTS_KEY: text})
    assert read_outputs({}) == {}


def test_lowering_again_keeps_them() -> None:
    made = rnnqc.lower(layer("GRU", "forward"), form="integer", quantized_outputs=["y"])
    again = rnnqc.lower(made.proto, form="fused", quantized_outputs=["y"])
    assert again.proto.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert set(read_outputs({p.key: p.value for p in again.proto.metadata_props})) == {"y"}
    with pytest.raises(UsageError, match="none of this name"):
        rnnqc.lower(made.proto, quantized_outputs=["w"])
