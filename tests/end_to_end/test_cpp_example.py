"""The native library as C and C++ programs find it: installed into a prefix, with CMake and pkg-config.

What these would catch: a file or a symbol that is not installed, a header that is no C, states that a stream in C or
C++ carries otherwise than one in Python.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import pytest

import rnnqc
from tests.runs import streams
from tests.runs.streams import ROOT, STREAMS, assert_the_bits_of_python, command

EXAMPLE_IN_C = ROOT / "examples" / "c" / "stream.c"
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


@dataclass(frozen=True)
class OnnxRuntime:
    """Headers, and a folder with the libonnxruntime.so of the installed wheel."""

    headers: str
    folder: Path


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> OnnxRuntime:
    headers = os.environ.get("ONNXRUNTIME_INCLUDE_DIR")
    libraries = sorted(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*"))
    if not headers or not libraries:
        pytest.skip("NOT TESTED in C++: set ONNXRUNTIME_INCLUDE_DIR to what scripts/onnxruntime_headers.sh prints")
    folder = tmp_path_factory.mktemp("onnxruntime")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # what the linker and the loader look for
        (folder / name).symlink_to(libraries[0])
    return OnnxRuntime(headers, folder)


def built_by_cmake(prefix: Path, runtime: OnnxRuntime, folder: Path) -> None:
    """The example in C++."""
    tool("c++", "g++")
    named = [
        f"-DONNXRUNTIME_INCLUDE_DIR={runtime.headers}",
        f"-DONNXRUNTIME_LIBRARY={runtime.folder / 'libonnxruntime.so'}",
    ]
    cmake = tool("cmake", "cmake")
    command(cmake, "-S", ROOT / "examples" / "cpp", "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", *named)
    command(cmake, "--build", folder)


def built_by_pkg_config(prefix: Path, runtime: OnnxRuntime, folder: Path) -> None:
    """The example in C."""
    flags = [*pkg_config_flags(prefix), f"-I{runtime.headers}", f"-L{runtime.folder}", "-lonnxruntime"]
    command(tool("cc", "gcc"), *STRICT, EXAMPLE_IN_C, "-o", folder / "stream", *flags, f"-Wl,-rpath,{runtime.folder}")


@pytest.fixture(scope="module", params=[built_by_cmake, built_by_pkg_config], ids=["C++", "C"])
def stream(
    request: pytest.FixtureRequest, prefix: Path, runtime: OnnxRuntime, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The built example."""
    folder = tmp_path_factory.mktemp("example")
    request.param(prefix, runtime, folder)
    return folder / "stream"


@pytest.mark.parametrize("model", STREAMS)
def test_a_stream_has_the_bits_of_python(
    model: str, stream: Path, shared: Callable[[str], Path], tmp_path: Path
) -> None:
    def run(arguments: list[str | Path], given: bytes) -> subprocess.CompletedProcess[bytes]:
        return command(stream, *arguments, given=given)

    said = assert_the_bits_of_python(model, shared, tmp_path, run, [[], ["--stock"]])
    for line, isa in zip(said, (rnnqc.runtime_ops.isa(), "none"), strict=True):
        assert line.startswith("9 chunks, ") and line.endswith(f": {isa}\n")


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
