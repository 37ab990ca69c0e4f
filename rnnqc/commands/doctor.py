"""`rnnqc doctor`: checks the installation."""

from __future__ import annotations

import argparse
import os
import platform

from rnnqc.commands.shared.arguments import CHECK_FAILED, OK, Commands, add_command
from rnnqc.commands.shared.terminal import err, escape, out


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "doctor",
        "check the installation (exit code 1 without a native library that works)",
        "rnnqc doctor",
    )
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    import onnx
    import onnxruntime as ort

    from rnnqc import __version__, runtime_ops

    out(f"rnnqc {__version__}, Python {platform.python_version()}, {platform.machine()}")
    out(
        f"onnx {onnx.__version__} (operator sets up to {onnx.defs.onnx_opset_version()}), onnxruntime {ort.__version__}"
    )
    out(f"RNNQC_ISA={os.environ.get('RNNQC_ISA', '')!r}, RNNQC_LIBRARY={os.environ.get('RNNQC_LIBRARY', '')!r}")
    try:
        out(f"native library {escape(str(runtime_ops.library_path()))}, kernels: {runtime_ops.isa()}")
    except (OSError, RuntimeError) as error:
        err(f"[red]native library:[/red] {escape(str(error))}")
        err("Without it `rnnqc bench` and native sessions do not work; `run`, `evaluate` and `dump` take --stock.")
        return CHECK_FAILED
    same = _self_test()
    out("self test: stock and native give the same bits" if same else "[red]self test: stock and native differ[/red]")
    return OK if same else CHECK_FAILED


def _self_test() -> bool:
    """Lowers a small LSTM and runs it with and without the native library."""
    import numpy as np
    import onnx

    from rnnqc.lowering.lower import lower
    from rnnqc.sessions import session

    rng = np.random.default_rng(0)
    hidden = 16
    arrays = {
        "W": rng.normal(0, 0.3, (1, 4 * hidden, 8)).astype(np.float32),
        "R": rng.normal(0, 0.3, (1, 4 * hidden, hidden)).astype(np.float32),
    }
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=hidden)],
        "self_test",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["T", "B", 8])],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, ["T", 1, "B", hidden])],
        [onnx.numpy_helper.from_array(v, k) for k, v in arrays.items()],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    lowered = lower(proto).proto
    feeds = {"X": rng.normal(0, 1, (9, 2, 8)).astype(np.float32)}
    a, b = (np.asarray(session(lowered, native=n).run(None, feeds)[0]) for n in (False, True))
    return a.tobytes() == b.tobytes()
