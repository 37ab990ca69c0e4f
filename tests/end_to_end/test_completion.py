"""Shell completion.

What these would catch: a command or an option that is missing, files that are not offered where an argument is one, a
traceback where shtab is not installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rnnqc.commands.completion import SHELLS
from tests.runs.commands import in_process

shtab = pytest.importorskip("shtab", reason="needs shtab (pip install 'rnnqc[dev]'): completion is NOT tested")


@pytest.mark.parametrize("shell", SHELLS)
def test_script(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It has every command and long options of several."""
    made = in_process(capfd, "completion", shell)
    assert made.code == 0, made.err
    for word in ("inspect", "lower", "verify", "completion", "calibration", "save-formats", "min-cosine"):
        assert word in made.out, word
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=made.out, text=True, capture_output=True, check=False).stderr == ""


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash: what it completes is NOT tested")
def test_what_bash_completes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "rnnqc.sh"
    script.write_text(in_process(capfd, "completion", "bash").out)
    for name in ("model.onnx", "mobile.txt"):
        (tmp_path / name).touch()

    def completed(*words: str) -> set[str]:
        listed = " ".join(f"'{w}'" for w in words)
        program = (
            f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _shtab_rnnqc; "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", program], cwd=tmp_path, text=True, capture_output=True, check=True)
        return {line.strip() for line in done.stdout.splitlines()}

    assert completed("rnnqc", "ins") == {"inspect"}
    assert completed("rnnqc", "lower", "--cal") == {"--calibration"}
    assert completed("rnnqc", "inspect", "mo") == {"model.onnx", "mobile.txt"}
    assert {"fused", "integer", "qcdq"} <= completed("rnnqc", "lower", "--form", "")


def test_without_shtab(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    result = in_process(capfd, "completion", "bash")
    assert result.code == 2 and "Resolution: pip install shtab." in result.err
