"""Streams through the examples in other languages, compared with Python.

Every example takes a model, the steps of a chunk and pairs of states as arguments, and float32 numbers as its standard
input.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import rnnqc
from tests.runs.commands import HANGS
from tests.runs.sessions import Array

ROOT = Path(__file__).resolve().parents[2]
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def tool(name: str, package: str, language: str) -> str:
    """The path of a program; skips the test where it is absent."""
    path = shutil.which(name, path=TOOLS)
    if path is None:
        pytest.skip(f"NOT TESTED in {language}: {name} is absent ({package})")
    return path


def command(*arguments: str | Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Runs a program; fails with what it wrote."""
    done = subprocess.run(arguments, input=given, capture_output=True, check=False, timeout=HANGS)
    assert done.returncode == 0, (done.stdout[-3000:] + done.stderr).decode(errors="replace")
    return done


def in_python(path: Path, chunks: Array, states: dict[str, str], result: str) -> Array:
    """The outputs of all chunks, stock."""
    session = rnnqc.session(path, native=False)
    (samples,) = (i.name for i in session.get_inputs() if i.name not in states)
    shapes = {i.name: [d if isinstance(d, int) else 1 for d in i.shape] for i in session.get_inputs()}
    fed = {name: np.zeros(shapes[name], np.float32) for name in states}
    outputs = []
    for chunk in chunks:
        wanted = [result, *states.values()]
        output, *after = session.run(wanted, {samples: chunk, **fed})
        fed = dict(zip(states, after, strict=True))
        outputs.append(np.asarray(output).ravel())
    return np.concatenate(outputs)


STREAMS = {
    "two states": ("tiny/lstm_states.onnx", (7, 1, 3), {"h0": "hn", "c0": "cn"}, "Y"),
    "DTLN": ("dtln/model_1.onnx", (1, 1, 257), {"input_3": "tf_op_layer_stack_2"}, "activation_2"),
}


def assert_the_bits_of_python(
    model: str,
    shared: Callable[[str], Path],
    folder: Path,
    stream: Callable[[list[str | Path], bytes], subprocess.CompletedProcess[bytes]],
    ways: Sequence[Sequence[str]],
) -> list[str]:
    """Lowers one of STREAMS and compares what an example makes of it.

    Args:
        model: A key of STREAMS.
        shared: The fixture.
        folder: For the lowered file.
        stream: Runs the example with arguments and standard input.
        ways: Arguments of each run between the steps and the states.

    Returns:
        What each run wrote to its standard error.
    """
    name, shape, states, result = STREAMS[model]
    path = shared(f"models/{name}") if model == "DTLN" else ROOT / "models" / name
    rnnqc.lower(path, strict=True).save(folder / "lowered.onnx")
    chunks = np.random.default_rng(0).normal(0, 1, (9, *shape)).astype(np.float32)
    expected = in_python(folder / "lowered.onnx", chunks, states, result).tobytes()
    fed_back = [f"{before}:{after}" for before, after in states.items()]
    said = []
    for way in ways:
        done = stream([folder / "lowered.onnx", str(shape[0]), *way, *fed_back], chunks.tobytes() + b"rest")
        assert done.stdout == expected, way
        said.append(done.stderr.decode())
    return said
