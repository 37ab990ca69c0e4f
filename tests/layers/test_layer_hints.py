"""One step of a custom cell, alone in a model.

What these would catch: a model of which nothing is quantized without a word of what would help; a word that does not
help, or is said of models that are no step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.layers.layer_hints import layer_hints
from tests.generate.renaming import rename
from tests.runs.commands import in_process
from tests.subjects.custom_layers import CELL, weights
from tests.subjects.protos import parse

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
MATRICES = {"W": (12, 16), "R": (16, 16), "P": (16, 10)}
GATED = "p = MatMul (x, W) q = MatMul (h, R) s = Add (p, q) t = Sigmoid (s) u = Tanh (s) n = Mul (t, u)"


def step(arguments: str, results: str, body: str) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    arrays = {k: rng.standard_normal(s).astype(np.float32) for k, s in MATRICES.items() if f", {k})" in body}
    return parse(f"{HEADER} step ({arguments}) => ({results}) {{ {body} }}", **arrays)


def torch_style_highway() -> onnx.ModelProto:
    """Four gates of one sum, whose fifth part is used separately."""
    cuts = "".join(f"g{k} = Slice (g, s{k}, s{k + 1}, one) " for k in range(5))
    ends = "".join(f"s{k} = Constant <value = int64[1] {{{4 * k}}}> () " for k in range(6))
    text = f"""{HEADER} step (float[B,3] x, float[B,4] h, float[B,4] c) => (float[B,4] h_next, float[B,4] c_next) {{
      {ends} one = Constant <value = int64[1] {{1}}> ()
      p = MatMul (x, W) q = MatMul (h, R) g = Add (p, q) {cuts}
      i = Sigmoid (g0) f = Sigmoid (g1) o = Sigmoid (g2) u = Tanh (g3) r = Sigmoid (g4)
      iu = Mul (i, u) fc = Mul (f, c) c_next = Add (iu, fc) t = Tanh (c_next) ot = Mul (o, t) h_next = Mul (r, ot)
    }}"""
    rng = np.random.default_rng(0)
    arrays = {"W": rng.standard_normal((3, 20)), "R": rng.standard_normal((4, 20))}
    return parse(text, **{k: v.astype(np.float32) for k, v in arrays.items()})


STEPS = {
    "cell": (parse(CELL, **weights()), {"h": "h_next", "c": "c_next"}),
    "outputs first": (
        step("float[B,12] x, float[B,16] h", "float[B,10] y, float[B,16] n", f"{GATED} y = MatMul (n, P)"),
        {"h": "n"},
    ),
    "an input that nothing reads": (
        step("float[B,12] x, int32[B] lengths, float[B,16] h", "float[B,16] n", GATED),
        {"h": "n"},
    ),
    "state first": (step("float[B,16] h, float[B,12] x", "float[B,16] n", GATED), {"h": "n"}),
}
OTHERS = {
    "one input": step("float[B,12] x", "float[B,16] n", "n = MatMul (x, W)"),
    "nothing comes back through a matrix": step(
        "float[B,12] x, float[B,16] h", "float[B,16] n", "p = MatMul (x, W) n = Add (p, h)"
    ),
    "an input that is no tensor": step(
        "seq(float[16]) several, float[16] bias", "seq(float[16]) more", "more = SequenceInsert (several, bias)"
    ),
    "an output that is no tensor": step(
        "float[B,12] x, float[B,16] h", "seq(float[B,16]) more", f"{GATED} more = SequenceConstruct (n)"
    ),
    "another width": step("float[B,12] x, float[B,16] h", "float[B,10] y", f"{GATED} y = MatMul (n, P)"),
    "rows that are no states": step(
        "float[B,12] x, float[B,2,16] h", "float[B,2,16] n", "q = MatMul (h, R) p = MatMul (x, W) n = Add (p, q)"
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", STEPS)
def test_what_helps_is_said_and_helps(name: str) -> None:
    model, states = STEPS[name]
    (hint,) = layer_hints(model)
    assert f"`rnnqc layer IN.onnx -o OUT.onnx {' '.join(f'--state {i}:{o}' for i, o in states.items())}`" in hint
    lowered = rnnqc.lower(model)
    assert lowered.report.entries == []
    assert lowered.report.warnings == [f"{hint} [step]"]
    again = rnnqc.lower(rnnqc.layer(model, state=states), strict=True).report
    assert [e.status for e in again.entries] == ["lowered"]
    assert again.warnings == []


def test_strict_refuses_a_step_of_which_nothing_is_lowered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The operators of `torch.nn.RNNCell` could be any dense layer: strict mode does not accept a float file."""
    model = step(
        "float[1,12] x, float[1,16] h",
        "float[1,16] n",
        "p = MatMul (x, W) q = MatMul (h, R) m = Add (p, q) n = Tanh (m)",
    )
    source, output = tmp_path / "step.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    with pytest.raises(CompileError, match=r"may be one step of a recurrent layer.*rnnqc\.layer\("):
        rnnqc.lower(model, strict=True)
    result = in_process(capfd, "lower", source, "-o", output, "--strict")
    assert result.code == 3 and not output.exists()
    assert "rnnqc layer" in result.err and "--strict: the model may be one step of a recurrent layer" in result.err
    assert in_process(capfd, "lower", source, "-o", output).code == 0 and output.exists()


def test_a_model_of_whole_sequences_is_no_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A GRU that stays float in form ort, and an output that has the shape of an input."""
    model = parse(
        f"{HEADER} g (float[T,B,12] x, float[B,16] target) => (float[B,16] y) <int64[1] zero = {{0}}> {{"
        " all, last = GRU <hidden_size = 16> (x, W, R) h = Squeeze (last, zero) p = MatMul (h, P)"
        " q = Add (p, target) y = Tanh (q) }",
        W=np.ones((1, 48, 12), np.float32),
        R=np.ones((1, 48, 16), np.float32),
        P=np.ones((16, 16), np.float32),
    )
    assert layer_hints(model) == []
    onnx.save(model, tmp_path / "model.onnx")
    result = in_process(capfd, "lower", tmp_path / "model.onnx", "-o", tmp_path / "out.onnx", "--form", "ort")
    assert result.code == 0 and "rnnqc layer" not in result.err


@pytest.mark.parametrize("name", OTHERS)
def test_models_that_are_no_step(name: str) -> None:
    assert layer_hints(OTHERS[name]) == []
    assert rnnqc.lower(OTHERS[name], strict=True).report.warnings == []


def test_a_step_that_stays_float() -> None:
    """It resembles a step of an LSTM but is not one; as a layer it can be lowered."""
    step = torch_style_highway()
    lowered = rnnqc.lower(step)
    assert [e.status for e in lowered.report.entries] == ["float"]
    (hint,) = [w for w in lowered.report.warnings if "rnnqc layer" in w]
    assert "--state h:h_next --state c:c_next" in hint
    assert hint in rnnqc.inspect(step).messages


def test_names_are_written_for_a_shell() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(STEPS["state first"][0])
    rename(model, lambda name: f"my {name}")
    (hint,) = layer_hints(model)
    assert "`rnnqc layer IN.onnx -o OUT.onnx --state 'my h:my n'`" in hint


@pytest.mark.parametrize("command", ["lower", "inspect"])
def test_commands(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[Any]) -> None:
    path = tmp_path / "in.onnx"
    onnx.save(STEPS["outputs first"][0], path)
    result = in_process(capfd, command, path, *(["-o", tmp_path / "out.onnx"] if command == "lower" else []))
    assert result.code == 0
    assert "--state h:n` makes a layer of it" in " ".join(result.err.split())
