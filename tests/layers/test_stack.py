"""Stacks of layers of cells.

What these would catch: layers that share weights because their names are the same, in stacks and in models that
onnx.compose joins; directions that are exchanged; initial and final states of another layer; widths that do not fit;
cells whose functions have one name and different bodies, and functions that stay in the loop, where no pass reads them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.errors import CompileError, UsageError
from tests.runs.commands import in_process
from tests.subjects.protos import parse

Array = npt.NDArray[Any]
H = 5
T, B = 6, 3


def cell(seed: int, width: int = H, opset: int = 17, kind: str = "float", branch: bool = False) -> onnx.ModelProto:
    """A gated step that is not a GRU; with `branch` its matmul with the state is in an If."""
    product = (
        "zero = Constant <value = int64 {0}> () rows = Shape (h) count = ReduceSum <keepdims = 0> (rows)"
        " any = Greater (count, zero)"
        f" s = If (any) <then_branch = yes () => ({kind}[B,{H}] sy) {{ sy = MatMul (h, R) }},"
        f" else_branch = no () => ({kind}[B,{H}] sn) {{ sn = MatMul (h, R) }}>"
        if branch
        else "[from_h] s = MatMul (h, R)"
    )
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> cell ({kind}[B,{width}] x, {kind}[B,{H}] h)
        => ({kind}[B,{H}] h_next, {kind}[B,{H}] gate) {{
      [from_x] p = MatMul (x, W)
      px = Add (p, b)
      {product}
      g = Add (px, s)
      a = Tanh (g)
      gate = Sigmoid (px)
      h_next = Mul (a, gate) }}"""
    rng = np.random.default_rng(seed)
    dtype = {"float": np.float32, "double": np.float64}[kind]
    arrays = {"W": rng.standard_normal((width, H)), "b": rng.standard_normal(H), "R": rng.standard_normal((H, H))}
    return parse(text, **{k: (0.7 * a).astype(dtype) for k, a in arrays.items()})


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    onnx.checker.check_model(model, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def sequence(width: int = H) -> Array:
    return np.random.default_rng(9).standard_normal((T, B, width)).astype(np.float32)


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("prefixes", ["first", "second", "both"])
def test_layers_that_compose_merges_keep_their_weights(prefixes: str, branch: bool) -> None:
    """Three layers of equal names and sizes, with every choice of prefixes that has distinct names."""
    layers = [rnnqc.layer(cell(k, branch=branch)) for k in range(3)]
    want: Array = sequence()
    for made in layers:
        want = run(made, {"x": want})["Y"]
    merged = layers[0]
    x, y = "x", "Y"
    for k, above in enumerate(layers[1:]):
        lower = f"m{k}/" if prefixes != "second" else ""
        upper = f"n{k}/" if prefixes != "first" else ""
        merged = onnx.compose.merge_models(
            merged, above, io_map=[(y, "x")], prefix1=lower or None, prefix2=upper or None
        )
        x, y = f"{lower}{x}", f"{upper}Y"
    np.testing.assert_array_equal(run(merged, {x: sequence()})[y], want)
    with pytest.raises(ValueError, match="overlapping names"):
        onnx.compose.merge_models(layers[0], layers[1], io_map=[("Y", "x")])


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("alternate", [False, True])
def test_a_stack_is_its_layers_one_after_the_other(alternate: bool, reverse: bool) -> None:
    cells = [cell(k) for k in range(4)]
    options: dict[str, Any] = {"lengths": True, "initial_states": True}
    rng = np.random.default_rng(2)
    lens = np.array([T, 2, 0], np.int32)
    starts = [rng.standard_normal((B, H)).astype(np.float32) for _ in cells]
    made = rnnqc.stack(cells, alternate=alternate, reverse=reverse, **options)
    assert [v.name for v in made.graph.input] == ["x", "sequence_lens", *(f"l{k}/h" for k in range(4))]
    got = run(made, {"x": sequence(), "sequence_lens": lens} | {f"l{k}/h": h for k, h in enumerate(starts)})
    want: Array = sequence()
    for k, one in enumerate(cells):
        layer = rnnqc.layer(one, reverse=reverse != (alternate and k % 2 == 1), **options)
        out = run(layer, {"x": want, "sequence_lens": lens, "h": starts[k]})
        want = out["Y"]
        np.testing.assert_array_equal(got[f"l{k}/gate"], out["gate"])
        np.testing.assert_array_equal(got[f"l{k}/h_next"], out["h_next"])
    np.testing.assert_array_equal(got["Y"], want)


def test_both_directions() -> None:
    cells = [cell(0), cell(1), cell(2, 2 * H), cell(3, 2 * H)]
    got = run(rnnqc.stack(cells, bidirectional=True), {"x": sequence()})
    want: Array = sequence()
    for k in (0, 2):
        both = [
            run(rnnqc.layer(c, reverse=r), {"x": want}) for c, r in zip(cells[k : k + 2], (False, True), strict=True)
        ]
        want = np.concatenate([b["Y"] for b in both], axis=2)
        for name, out in zip((f"l{k // 2}", f"l{k // 2}_reverse"), both, strict=True):
            np.testing.assert_array_equal(got[f"{name}/h_next"], out["h_next"])
    np.testing.assert_array_equal(got["Y"], want)


def test_operator_sets_become_the_newest() -> None:
    cells = [cell(0, opset=17), cell(1, opset=18)]
    made = rnnqc.stack(cells)
    assert [o.version for o in made.opset_import] == [18]
    want = run(rnnqc.layer(cells[1]), {"x": run(rnnqc.layer(cells[0]), {"x": sequence()})["Y"]})["Y"]
    np.testing.assert_array_equal(run(made, {"x": sequence()})["Y"], want)


def cell_of_functions(seed: int, opset: int = 17) -> onnx.ModelProto:
    """A cell whose step is a function that calls another one; the bodies differ from seed to seed."""
    text = f"""<ir_version: 8, opset_import: ["": {opset}, "own": 1]> cell (float[B,{H}] x, float[B,{H}] h)
        => (float[B,{H}] h_next) {{ [call] h_next = own.step (x, W, h, R) }}
      <domain: "own", opset_import: ["": {opset}, "own": 1]>
      step (x, W, h, R) => (y) {{ p = MatMul (x, W) s = own.product (h, R) g = Add (p, s) y = Tanh (g) }}
      <domain: "own", opset_import: ["": {opset}]>
      product (h, R) => (s) {{ p = MatMul (h, R) s = {("Neg", "Sigmoid")[seed % 2]} (p) }}"""
    rng = np.random.default_rng(seed)
    return parse(text, **{k: rng.normal(0, 0.7, (H, H)).astype(np.float32) for k in ("W", "R")})


@pytest.mark.few(1)
@pytest.mark.parametrize("opset", [17, 9])
def test_functions_of_cells(opset: int) -> None:
    cells = [cell_of_functions(k, opset) for k in range(2)]
    want: Array = sequence()
    for k, made in enumerate(cells):
        state = np.zeros((B, H), np.float32)
        steps = []
        for x in want:
            state = run(made, {"x": x, "h": state})["h_next"]
            steps.append(state)
        want = np.stack(steps)
        layer = rnnqc.layer(made)
        assert not layer.functions
        if not k:
            np.testing.assert_allclose(run(layer, {"x": sequence()})["Y"], want, atol=1e-6)
    stacked = rnnqc.stack(cells)
    np.testing.assert_allclose(run(stacked, {"x": sequence()})["Y"], want, atol=1e-6)
    assert [e.status for e in rnnqc.lower(stacked).report.entries] == ["lowered"] * 2


def test_names_of_the_input_stay_free() -> None:
    """An input with a name that the stack uses for its own values."""
    one, two = cell(0), cell(1)
    for node in one.graph.node:
        node.input[:] = ["Y" if n == "x" else n for n in node.input]
    one.graph.input[0].name = "Y"
    made = rnnqc.stack([one, two])
    want = run(rnnqc.layer(two), {"x": run(rnnqc.layer(cell(0)), {"x": sequence()})["Y"]})["Y"]
    np.testing.assert_array_equal(run(made, {"Y": sequence()})["Y_2"], want)


@pytest.mark.parametrize(
    ("cells", "options", "error", "found"),
    [
        ([cell(0), cell(1, 3)], {}, CompileError, "cell 2: its input 'x' has 3 features, and cell 1 has 5"),
        (
            [cell(0), cell(1, 3)],
            {"bidirectional": True},
            CompileError,
            "cell 2: its input 'x' has 3 .* the input has 5",
        ),
        ([cell(0), cell(1), cell(2), cell(3)], {"bidirectional": True}, CompileError, "and cell 1 and cell 2 has 10"),
        ([cell(0), cell(1, kind="double")], {}, CompileError, "cell 2: its input 'x' is .*DOUBLE"),
        ([cell(0)], {"bidirectional": True}, UsageError, "1 cells in both directions"),
        ([cell(0), cell(1)], {"bidirectional": True, "alternate": True}, UsageError, "together with alternate"),
        ([], {}, UsageError, "no cells"),
        (cell(0), {}, UsageError, "one cell"),
        ([cell(0), cell(1)], {"state": ["h:nothing"]}, UsageError, "nothing"),
    ],
)
def test_refused(cells: Any, options: dict[str, Any], error: type[Exception], found: str) -> None:
    with pytest.raises(error, match=found):
        rnnqc.stack(cells, **options)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"c{k}.onnx" for k in range(4)]
    for k, path in enumerate(paths):
        onnx.save(cell(k), path)
    out = tmp_path / "out.onnx"
    done = in_process(capfd, "layer", *paths, "--alternate", "-o", out)
    assert done.code == 0
    assert "x -> Y, l0/gate, l0/h_next, l1/gate" in done.out.replace("\n", " ")
    np.testing.assert_array_equal(
        run(onnx.load(out), {"x": sequence()})["Y"],
        run(rnnqc.stack([cell(k) for k in range(4)], alternate=True), {"x": sequence()})["Y"],
    )
    done = in_process(capfd, "layer", *paths, "--bidirectional", "-o", tmp_path / "no.onnx")
    assert done.code == 2
    assert "c2.onnx: its input 'x' has 5 features" in done.err.replace("\n", " ")
    assert not (tmp_path / "no.onnx").exists()
