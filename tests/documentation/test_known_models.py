"""The commands of docs/known_models.md run, and files have the sizes that the page says.

What these would catch: a public model that is no longer lowered as the page says, an option or state that has another
name, a file that has grown.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from rnnqc.cli import main
from tests.conftest import SHARED_MISSING, shared_folder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "known_models.md"
TEXT = PAGE.read_text(encoding="utf-8")
SIZES = {
    name: (float(before), float(after))
    for name, before, after in re.findall(r"^\| `([\w.]+)`[^|]*\|[^|]*\| (\d+) kB \| (\d+) kB \|", TEXT, re.M)
}
SECTIONS = {t.split("\n")[0]: re.findall(r"^```\n(.*?)^```", t, re.M | re.S) for t in TEXT.split("\n## ")[1:]}
ALLOWED = 1.02
"""By how much a file may be larger than the page says; metadata and names change a little with versions of onnx."""


def test_page_has_every_model() -> None:
    assert len(SIZES) == 9
    commands = "\n".join(block for blocks in SECTIONS.values() for block in blocks)
    assert all(f" {name} " in commands for name in SIZES)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the public models that are at hand, and small data of the shapes that the page gives."""
    found = {path.name: path for path in (shared_folder() / "models").glob("*/*.onnx")}
    if not SIZES.keys() <= found.keys():
        pytest.skip(f"{SHARED_MISSING}: the commands for known models are NOT tested")
    for name, path in found.items():
        (tmp_path / name).symlink_to(path.resolve())
    random = np.random.default_rng(0)
    for file, array, shape in re.findall(r"`(\w+\.npz)`: `(\w+) \[N,([\d,]+)\]`", TEXT):
        sizes = (6, *map(int, shape.split(",")))
        tokens = random.integers(1, 30000, sizes)
        np.savez(tmp_path / file, **{array: tokens if array == "tokens" else random.random(sizes, np.float32)})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "model", [pytest.param(s, marks=[pytest.mark.slow] if s != "RNNoise" else []) for s in SECTIONS if SECTIONS[s]]
)
def test_commands_run(model: str, folder: Path) -> None:
    """Every recurrent layer is lowered (`--strict`), and the file is no larger than the page says."""
    lines = [line for block in SECTIONS[model] for line in block.splitlines()]
    assert lines
    for line in lines:
        command, *arguments = shlex.split(line)[1:]
        assert main([command, *arguments, *(["-q"] if command == "lower" else [])]) == 0, line
        if command == "lower" and "--recipe" not in arguments and arguments[0] in SIZES:
            before, after = SIZES[arguments[0]]
            assert (folder / arguments[0]).stat().st_size / 1e3 == pytest.approx(before, abs=1)
            written = folder / arguments[arguments.index("-o") + 1]
            assert 0.9 * after < written.stat().st_size / 1e3 < ALLOWED * after, line
