"""The folder of `rnnqc dump`: names of files, and what is replaced.

What these would catch: cells whose files overwrite each other, somebody's files removed with a dump, a link or a dump
lost when the new one cannot be put in its place, folders left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Result, in_process
from lstm_models import RecurrentCase, stacked_model
from running import save_arrays

import rnnqc

Dump = Callable[..., Result]


@pytest.fixture
def dump(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Dump:
    """`rnnqc dump` of a cell to a folder."""
    case = RecurrentCase()
    rnnqc.lower(case.model()).save(tmp_path / "model.onnx")
    save_arrays(tmp_path / "in.npz", case.feeds())

    def run(output: Path, *arguments: str | Path) -> Result:
        return in_process(capfd, "dump", tmp_path / "model.onnx", "-i", tmp_path / "in.npz", "-o", output, *arguments)

    return run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def lowered_stack(*names: str) -> onnx.ModelProto:
    """A chain of lowered LSTMs with these names of nodes."""
    case = RecurrentCase(I=4, H=4)
    model = stacked_model([case] * len(names))
    nodes = [n for n in model.graph.node if n.op_type == "LSTM"]
    for node, name in zip(nodes, names, strict=True):
        node.name = name
    return rnnqc.lower(model).proto


@pytest.mark.parametrize("names", [("a.b", "a_b"), ("a b", "a_b"), ("cell", "Cell"), ("r", "r/forward")])
def test_cells_with_similar_names_have_files_of_their_own(tmp_path: Path, names: tuple[str, str]) -> None:
    x = RecurrentCase(I=4, H=4).feeds()["X"]
    index = rnnqc.dump(lowered_stack(*names), [{"X": x}], tmp_path / "out", text=True)
    assert len(index["cells"]) == 2
    used: set[str] = set()
    for cell in index["cells"].values():
        with np.load(tmp_path / "out" / cell["file"], allow_pickle=False) as held:
            arrays = dict(held)
        named = {f"{t}{s}" for t, e in cell["tensors"].items() for s in ("", ".codes") if not s or e["codes"]}
        assert named | {"W.weight.codes", "R.weight.codes"} == set(cell["text"])
        for array in named:
            for t in range(cell["steps"]):
                lines = (tmp_path / f"out/frame_{t}" / cell["text"][array]).read_text().splitlines()
                form = "{}" if array.endswith(".codes") else "{:12g}"
                assert lines == [form.format(v) for v in arrays[array][t, 0]], (array, t)
        files = {cell["file"], *cell["text"].values()}
        assert len(files) == len(cell["text"]) + 1
        files = {f.casefold() for f in files}
        assert not files & used
        used |= files
    shapes = [line.split(": ")[1] for line in (tmp_path / "out/shape.txt").read_text().splitlines()]
    assert sorted(f"{s}.txt" for s in shapes) == sorted(f for c in index["cells"].values() for f in c["text"].values())
