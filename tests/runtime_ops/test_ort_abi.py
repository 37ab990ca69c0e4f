"""The hand-declared parts of onnxruntime's C ABI against the official header, where that is at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _compile(sources: Path) -> subprocess.CompletedProcess[str]:
    include = os.environ.get("ONNXRUNTIME_INCLUDE_DIR")
    if not include:
        pytest.skip(
            "NOT CHECKED against onnxruntime's header: set ONNXRUNTIME_INCLUDE_DIR to the folder of "
            "onnxruntime_c_api.h (Debian: libonnxruntime-dev)"
        )
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None:
        pytest.skip("NOT CHECKED against onnxruntime's header: there is no C++ compiler")
    check = ROOT / "scripts" / "check_ort_abi.cc"
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{sources}", f"-I{include}", str(check)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_abi_agrees_with_the_official_header() -> None:
    done = _compile(ROOT / "runtime_ops" / "src")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("KernelInfo_GetNodeName, 244", "KernelInfo_GetNodeName, 243", "KernelInfo_GetNodeName stands elsewhere"),
        ("const char*, int64_t*)", "const char*, int32_t*)", "KernelInfoGetAttribute_int64 has another signature"),
        ("kInt32 = 6", "kInt32 = 7", "element types"),
    ],
)
def test_the_check_notices_errors(before: str, after: str, message: str, tmp_path: Path) -> None:
    text = (ROOT / "runtime_ops" / "src" / "ort_abi.h").read_text(encoding="utf-8")
    assert before in text
    (tmp_path / "ort_abi.h").write_text(text.replace(before, after, 1), encoding="utf-8")
    done = _compile(tmp_path)
    assert done.returncode != 0
    assert message in done.stderr
