"""The notebooks of examples/notebooks, run from the first cell to the last.

What these would catch: a name of the API, an option or an export that has changed, and a result that a notebook claims
and no longer reaches (they assert it). Notebooks hold no outputs: those would be of another version.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NEEDS = {"tagger": ["torch"], "denoiser": ["torch"], "brevitas": ["torch", "brevitas"], "wikitext2": []}
"""Modules besides rnnqc."""
SKIPPED = "SKIPPED: "


def test_all_are_known() -> None:
    assert {p.stem for p in NOTEBOOKS} == NEEDS.keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_outputs_are_not_stored(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat: notebooks NOT checked")
    book = nbformat.read(path, as_version=4)
    assert all(c.get("outputs", []) == [] and c.get("execution_count") is None for c in book.cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in NEEDS[path.stem]:
        pytest.importorskip(module, reason=f"needs {module}: {path.name} NOT run")
    nbclient = pytest.importorskip("nbclient", reason=f"needs nbclient: {path.name} NOT run")
    nbformat = importlib.import_module("nbformat")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    try:
        client.execute()
    except nbclient.exceptions.CellExecutionError as error:
        if error.ename == "SystemExit" and error.evalue.startswith(SKIPPED):
            pytest.skip(f"{path.name} NOT run: {error.evalue.removeprefix(SKIPPED)}")
        raise
    assert all(c.execution_count for c in book.cells if c.cell_type == "code")
