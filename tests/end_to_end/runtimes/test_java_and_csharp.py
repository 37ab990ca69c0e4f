"""Lowered models in Java and C#, through onnxruntime's packages for them: the bits of Python, native and stock.

The environment variable RNNQC_JAVA_ONNXRUNTIME names onnxruntime's jar (Maven: com.microsoft.onnxruntime:onnxruntime),
or the one that scripts/java_onnxruntime.sh makes. For C#, RNNQC_DOTNET=1 lets the test restore
examples/csharp/stream.csproj from NuGet, and RNNQC_CSHARP_ONNXRUNTIME names a folder with a compiler and onnxruntime
that scripts/csharp_onnxruntime.sh makes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import rnnqc
from tests.runs.streams import ROOT, STREAMS, assert_the_bits_of_python, command, tool

JAR = os.environ.get("RNNQC_JAVA_ONNXRUNTIME")
CSHARP = os.environ.get("RNNQC_CSHARP_ONNXRUNTIME")
EXAMPLES = ROOT / "examples"
Runner = Callable[[list[str | Path], bytes], subprocess.CompletedProcess[bytes]]


def _java() -> list[str | Path]:
    if not JAR:
        pytest.skip("NOT TESTED in Java: set RNNQC_JAVA_ONNXRUNTIME to onnxruntime's jar (Maven)")
    return [tool("java", "OpenJDK 11 or newer", "Java"), "-cp", JAR, EXAMPLES / "java" / "Stream.java"]


def _csharp(folder: Path) -> list[str | Path]:
    if CSHARP:
        command(Path(CSHARP) / "compile", EXAMPLES / "csharp" / "Stream.cs", folder / "stream.dll")
        return [Path(CSHARP) / "dotnet", folder / "stream.dll"]
    if os.environ.get("RNNQC_DOTNET") != "1":
        pytest.skip("NOT TESTED in C#: set RNNQC_DOTNET=1 where dotnet reaches NuGet, or RNNQC_CSHARP_ONNXRUNTIME")
    dotnet = tool("dotnet", ".NET 8 or newer", "C#")
    command(dotnet, "build", EXAMPLES / "csharp", "--artifacts-path", folder / "built", "--output", folder / "program")
    return [dotnet, folder / "program" / "stream.dll"]


@pytest.fixture(scope="module", params=["Java", "C#"])
def stream(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    program = _java() if request.param == "Java" else _csharp(tmp_path_factory.mktemp("csharp"))
    return lambda arguments, given: command(*program, *arguments, given=given)


@pytest.mark.few(2)
@pytest.mark.parametrize("model", STREAMS)
def test_a_stream_has_the_bits_of_python(
    model: str, stream: Runner, shared: Callable[[str], Path], tmp_path: Path
) -> None:
    ways = [[str(rnnqc.runtime_ops.library_path())], []]
    said = assert_the_bits_of_python(model, shared, tmp_path, stream, ways)
    assert said == ["9 chunks\n"] * 2
