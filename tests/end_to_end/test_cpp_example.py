"""The native library as C and C++ programs find it: installed into a prefix, with CMake and pkg-config.

What these would catch: a file or a symbol that is not installed, a header that is no C, states that a stream in C++
carries otherwise than one in Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import rnnqc
from tests.runs.commands import HANGS
from tests.runs.sessions import Array

ROOT = Path(__file__).resolve().parents[2]
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
BUILDS = [cache.parent for cache in ROOT.glob("build/*/CMakeCache.txt") if "SKBUILD_STATE" in cache.read_text()]


def tool(name: str, package: str) -> str:
    path = shutil.which(name, path=TOOLS)
    if path is None:
        pytest.skip(f"NOT TESTED in C++: {name} is absent (Debian: {package})")
    return path


def command(*arguments: str | Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(arguments, input=given, capture_output=True, check=False, timeout=HANGS)
    assert done.returncode == 0, (done.stdout[-3000:] + done.stderr).decode(errors="replace")
    return done


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `cmake --install` of the checkout's own build has put everything."""
    if not BUILDS:
        pytest.skip("NOT TESTED in C++: the checkout is not installed in editable form, so there is no build of CMake")
    folder = tmp_path_factory.mktemp("prefix")
    command(tool("cmake", "cmake"), "--install", BUILDS[0], "--prefix", folder)
    return folder


@pytest.fixture(scope="module")
def stream(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built example, linked with the libonnxruntime.so of the installed wheel."""
    headers = os.environ.get("ONNXRUNTIME_INCLUDE_DIR")
    libraries = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not headers or not libraries:
        pytest.skip("NOT TESTED in C++: set ONNXRUNTIME_INCLUDE_DIR to what scripts/onnxruntime_headers.sh prints")
    tool("c++", "g++")
    folder = tmp_path_factory.mktemp("example")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # what the linker and the loader look for
        (folder / name).symlink_to(libraries[0])
    named = [f"-DONNXRUNTIME_INCLUDE_DIR={headers}", f"-DONNXRUNTIME_LIBRARY={folder / 'libonnxruntime.so'}"]
    cmake = tool("cmake", "cmake")
    command(cmake, "-S", ROOT / "examples" / "cpp", "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", *named)
    command(cmake, "--build", folder)
    return folder / "stream"


def in_python(path: Path, chunks: Array, states: dict[str, str], result: str) -> Array:
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


MODELS = {
    "two states": ("tiny/lstm_states.onnx", (7, 1, 3), {"h0": "hn", "c0": "cn"}, "Y"),
    "DTLN": ("dtln/model_1.onnx", (1, 1, 257), {"input_3": "tf_op_layer_stack_2"}, "activation_2"),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_stream_in_cpp_has_the_bits_of_python(
    model: str, stream: Path, shared: Callable[[str], Path], tmp_path: Path
) -> None:
    name, shape, states, result = MODELS[model]
    path = shared(f"models/{name}") if model == "DTLN" else ROOT / "models" / name
    rnnqc.lower(path, strict=True).save(tmp_path / "lowered.onnx")
    chunks = np.random.default_rng(0).normal(0, 1, (9, *shape)).astype(np.float32)
    expected = in_python(tmp_path / "lowered.onnx", chunks, states, result).tobytes()
    fed_back = [f"{before}={after}" for before, after in states.items()]
    for options, said in (([], rnnqc.runtime_ops.isa()), (["--stock"], "none")):
        arguments = [tmp_path / "lowered.onnx", str(shape[0]), *options, *fed_back]
        done = command(stream, *arguments, given=chunks.tobytes() + b"rest")
        assert done.stdout == expected
        assert done.stderr.decode().startswith("9 chunks, ") and done.stderr.decode().endswith(f": {said}\n")


def test_the_header_is_c_and_pkg_config_finds_everything(prefix: Path, tmp_path: Path) -> None:
    pkg_config, compiler = tool("pkg-config", "pkg-config"), tool("cc", "gcc")
    program = tmp_path / "isa.c"
    program.write_text(
        "#include <rnnqc_ops.h>\n#include <stdio.h>\n"
        "int main(void) {\n"
        "  struct OrtStatus* (*made)(struct OrtSessionOptions*, const struct OrtApiBase*) = RegisterCustomOps;\n"
        "  return !made || puts(rnnqc_isa(NULL, 0)) < 0;\n}\n"
    )
    (pc,) = prefix.rglob("rnnqc_ops.pc")
    asked = [pkg_config, "--cflags", "--libs", str(pc)]
    flags = command(*asked).stdout.decode().split()
    version = command(pkg_config, "--modversion", str(pc)).stdout.decode().strip()
    assert rnnqc.__version__.startswith(version) and re.fullmatch(r"\d+\.\d+\.\d+", version)
    (folder,) = (flag.removeprefix("-L") for flag in flags if flag.startswith("-L"))
    strict = ["-std=c99", "-pedantic-errors", "-Wall", "-Werror"]
    command(compiler, *strict, program, "-o", tmp_path / "isa", *flags, f"-Wl,-rpath,{folder}")
    assert command(tmp_path / "isa").stdout.decode().strip() == rnnqc.runtime_ops.isa()
