"""The native library as C and C++ programs find it: installed into a prefix, with CMake and pkg-config.

What these would catch: a file or a symbol that is not installed, a header that is no C, states that a stream in C or
C++ carries otherwise than one in Python.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.layers import Layer

import rnnqc
from tests.runs import streams
from tests.runs.streams import ROOT, STREAMS, assert_the_bits_of_python, command, in_python

STRICT = ["-std=c99", "-pedantic-errors", "-Wall", "-Werror"]
BUILDS = [cache.parent for cache in ROOT.glob("build/*/CMakeCache.txt") if "SKBUILD_STATE" in cache.read_text()]


def tool(name: str, package: str) -> str:
    return streams.tool(name, f"Debian: {package}", "C++")


def pc_file(prefix: Path) -> Path:
    (path,) = prefix.rglob("rnnqc_ops.pc")
    return path


def pkg_config_flags(prefix: Path) -> list[str]:
    """For the compiler and the linker; the program finds the library where it is."""
    asked = [tool("pkg-config", "pkg-config"), "--cflags", "--libs", pc_file(prefix)]
    flags = command(*asked).stdout.decode().split()
    (folder,) = (flag.removeprefix("-L") for flag in flags if flag.startswith("-L"))
    return [*flags, f"-Wl,-rpath,{folder}"]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `cmake --install` of the checkout's own build has put everything."""
    if not BUILDS:
        pytest.skip("NOT TESTED in C++: the checkout is not installed in editable form, so there is no build of CMake")
    folder = tmp_path_factory.mktemp("prefix")
    command(tool("cmake", "cmake"), "--install", BUILDS[0], "--prefix", folder)
    return folder


@pytest.fixture(scope="module")
def programs(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built examples, linked with the libonnxruntime.so of the installed wheel."""
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
    flags = [*pkg_config_flags(prefix), f"-I{headers}", f"-L{folder}", "-lonnxruntime", f"-Wl,-rpath,{folder}"]
    source = ROOT / "examples" / "c" / "stream.c"
    command(tool("cc", "gcc"), *STRICT, source, "-o", folder / "stream_in_c", *flags)
    return folder


@pytest.mark.few(2)
@pytest.mark.parametrize("program", ["stream", "stream_in_c"])
@pytest.mark.parametrize("model", STREAMS)
def test_a_stream_has_the_bits_of_python(
    model: str, program: str, programs: Path, shared: Callable[[str], Path], tmp_path: Path
) -> None:
    def run(arguments: list[str | Path], given: bytes) -> subprocess.CompletedProcess[bytes]:
        return command(programs / program, *arguments, given=given)

    said = assert_the_bits_of_python(model, shared, tmp_path, run, [[], ["--stock"]])
    for line, isa in zip(said, (rnnqc.runtime_ops.isa(), "none"), strict=True):
        assert line.startswith("9 chunks, ") and line.endswith(f": {isa}\n")


@pytest.mark.parametrize("way", [[], ["--stock"]], ids=["native", "stock"])
def test_streams_have_the_bits_of_each_alone(programs: Path, way: list[str], tmp_path: Path) -> None:
    """Six streams in rows of two threads. Catches: states of one in another, a buffer that is read after it changed."""
    layer = Layer(1, 1, 5, 9, symbolic_batch=True, symbolic_time=True, states=True)
    rnnqc.lower(layer.model()).save(tmp_path / "lowered.onnx")
    states = {"h0": "Y_h", "c0": "Y_c"}
    alone = np.random.default_rng(0).normal(0, 1, (6, 7, 1, 1, 5)).astype(np.float32)
    expected = np.stack([in_python(tmp_path / "lowered.onnx", x, states, "Y").reshape(7, 9) for x in alone])
    chunks = alone.reshape(2, 3, 7, 5).transpose(2, 0, 1, 3)  # threads, rows, time -> time, threads, rows
    separator = "=" if way else ":"  # both are taken
    fed_back = [f"{before}{separator}{after}" for before, after in states.items()]
    done = command(
        programs / "streams", tmp_path / "lowered.onnx", "1", "3", "2", *way, *fed_back, given=chunks.tobytes()
    )
    written = np.frombuffer(done.stdout, np.float32).reshape(7, 6, 9).transpose(1, 0, 2)
    np.testing.assert_array_equal(written, expected)
    said = r"14 calls, median [\d.]+ us, \d+ chunks of a stream in a second, native kernels: "
    assert re.fullmatch(f"{said}{'none' if way else rnnqc.runtime_ops.isa()}\n", done.stderr.decode())


def test_the_header_is_c_and_pkg_config_finds_everything(prefix: Path, tmp_path: Path) -> None:
    pkg_config, compiler = tool("pkg-config", "pkg-config"), tool("cc", "gcc")
    program = tmp_path / "isa.c"
    program.write_text(
        "#include <rnnqc_ops.h>\n#include <stdio.h>\n"
        "int main(void) {\n"
        "  struct OrtStatus* (*made)(struct OrtSessionOptions*, const struct OrtApiBase*) = RegisterCustomOps;\n"
        "  return !made || puts(rnnqc_isa(NULL, 0)) < 0;\n}\n"
    )
    version = command(pkg_config, "--modversion", pc_file(prefix)).stdout.decode().strip()
    assert rnnqc.__version__.startswith(version) and re.fullmatch(r"\d+\.\d+\.\d+", version)
    command(compiler, *STRICT, program, "-o", tmp_path / "isa", *pkg_config_flags(prefix))
    assert command(tmp_path / "isa").stdout.decode().strip() == rnnqc.runtime_ops.isa()
