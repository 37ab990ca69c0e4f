"""The folder of `rnnqc dump`: names of files, and what is replaced.

What these would catch: cells whose files overwrite each other, somebody's files removed with a dump, a link or a dump
lost when the new one cannot be put in its place, folders left behind.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from tests.generate.layers import RecurrentCase, stacked_model
from tests.runs.commands import Result, in_process
from tests.runs.sessions import save_arrays

Dump = Callable[..., Result]


@functools.cache
def lowered_case() -> rnnqc.Lowered:
    return rnnqc.lower(RecurrentCase().model())


@pytest.fixture
def dump(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Dump:
    """`rnnqc dump` of a cell to a folder."""
    lowered_case().save(tmp_path / "model.onnx")
    save_arrays(tmp_path / "in.npz", RecurrentCase().feeds())

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


@pytest.mark.few(1)
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
        constant = set(cell["text"]) - named
        assert {"W.weight.codes", "R.weight.codes", "operand.gate_table"} <= constant <= set(arrays)
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


def refused(result: Result, *texts: str) -> None:
    """Exit code 2, with the texts in the message."""
    assert result.code == 2, result.text
    for text in texts:
        assert text in " ".join(result.err.split()), result.err


INDEXES = {
    "other format": '{"format": 2, "cells": {}}',
    "no cells": '{"format": 1}',
    "a list": "[]",
    "no JSON": "{",
    "nested": "[" * 100000,
    "a cell of a text": '{"format": 1, "cells": {"a": "b"}}',
    "an endless step": '{"format": 1, "cells": {"a": {"file": "a.npz", "first_step": 1e999, "steps": 1}}}',
}


@pytest.mark.few(2)
@pytest.mark.parametrize("index", INDEXES)
def test_an_index_of_something_else_is_no_dump(tmp_path: Path, dump: Dump, index: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "index.json").write_text(INDEXES[index])
    refused(dump(out, "--overwrite"), "something else than a dump", "index.json", "choose another output")
    assert contents(out) == {"index.json": INDEXES[index].encode()}


def test_what_the_index_does_not_name_is_not_removed(tmp_path: Path, dump: Dump) -> None:
    out = tmp_path / "out"
    assert dump(out, "--text").code == 0
    assert dump(out, "--text", "--overwrite").code == 0
    for entry in ("notes.txt", "frame_5/", "frame_0/lib/", "link"):
        added = out / entry
        if entry == "link":
            added.symlink_to(tmp_path / "in.npz")
        elif entry.endswith("/"):
            added.mkdir()
        else:
            added.write_text("mine")
        before = contents(out)
        refused(dump(out, "--overwrite"), "something else than a dump", entry.rstrip("/"), "index.json names")
        assert contents(out) == before, entry
        assert added.is_symlink() or added.exists(), entry
        added.rmdir() if added.is_dir() and not added.is_symlink() else added.unlink()
    assert dump(out, "--overwrite").code == 0


def test_a_file_that_comes_while_the_dump_is_made_is_not_removed(
    tmp_path: Path, dump: Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert dump(out).code == 0
    original = rnnqc.Tracer.trace

    def trace(*arguments: Any) -> Any:
        (out / "notes.txt").write_text("mine")
        return original(*arguments)

    monkeypatch.setattr(rnnqc.Tracer, "trace", trace)
    refused(dump(out, "--overwrite"), "notes.txt")
    assert (out / "notes.txt").read_text() == "mine"
    assert not litter(tmp_path)


def litter(folder: Path) -> list[Path]:
    """Temporary folders that were left."""
    return list(folder.rglob(".rnnqc.*"))


def test_a_link_stays_and_its_folder_is_replaced(tmp_path: Path, dump: Dump) -> None:
    there, link = tmp_path / "disk/there", tmp_path / "here/link"
    there.mkdir(parents=True)
    link.parent.mkdir()
    link.symlink_to(there)
    assert dump(link).code == 0
    assert dump(link, "--steps", "1:2", "--overwrite").code == 0
    assert link.is_symlink() and link.resolve() == there
    (cell,) = json.loads((there / "index.json").read_text())["cells"].values()
    assert (cell["first_step"], cell["steps"]) == (1, 1)
    assert not litter(tmp_path)
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    refused(dump(tmp_path / "nowhere"), "is not a folder")


def test_a_link_to_another_file_system(tmp_path: Path, dump: Dump) -> None:
    """Nothing is renamed from one file system to another."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no other file system")
    with tempfile.TemporaryDirectory(dir=memory) as other:
        there = Path(other) / "there"
        there.mkdir()
        (tmp_path / "link").symlink_to(there)
        for arguments in ((), ("--overwrite",)):
            result = dump(tmp_path / "link", *arguments)
            assert result.code == 0, result.text
        assert (tmp_path / "link").is_symlink() and (there / "index.json").is_file()
        assert not litter(tmp_path) and not litter(Path(other))


@pytest.mark.few(1)
@pytest.mark.parametrize("failing", ["first", "second", "interrupted"])
def test_a_dump_that_cannot_be_replaced_stays(
    tmp_path: Path, dump: Dump, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    out = tmp_path / "out"
    assert dump(out).code == 0
    before = contents(out)
    calls: list[Any] = []

    def replace(source: Any, target: Any) -> None:
        calls.append(source)
        if len(calls) == (1 if failing == "first" else 2):
            raise KeyboardInterrupt if failing == "interrupted" else OSError(5, "Input/output error")
        original(source, target)

    original = os.replace
    monkeypatch.setattr(os, "replace", replace)
    result = dump(out, "--overwrite")
    if failing == "interrupted":
        assert result.code == 130
    else:
        refused(result, "cannot be written", "Input/output error")
    assert len(calls) == (1 if failing == "first" else 3)
    assert contents(out) == before
    assert not litter(tmp_path)


def test_a_dump_that_cannot_be_put_back_is_kept_and_named(
    tmp_path: Path, dump: Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert dump(out).code == 0
    before = contents(out)
    calls: list[Any] = []

    def replace(source: Any, target: Any) -> None:
        calls.append(source)
        if len(calls) > 1:
            raise OSError(5, "Input/output error")
        original(source, target)

    original = os.replace
    monkeypatch.setattr(os, "replace", replace)
    result = dump(out, "--overwrite")
    (aside,) = litter(tmp_path)
    refused(result, "The dump that was there is")
    assert aside.name in "".join(result.err.split())
    assert contents(aside / "dump") == before


def test_the_index_identifies_the_external_data(tmp_path: Path) -> None:
    """Two models that differ in their data files only are told apart."""
    case = RecurrentCase()
    model, path = rnnqc.lower(case.model()).proto, tmp_path / "model.onnx"

    def identified(name: str, **options: Any) -> dict[str, Any]:
        if options:
            copy = onnx.ModelProto()
            copy.CopyFrom(model)
            onnx.save(copy, path, **options)
        made = dict(rnnqc.dump(path, [case.feeds()], tmp_path / name)["model"])
        assert made == json.loads((tmp_path / name / "index.json").read_text())["model"]
        assert made["sha256"] == sha256(path)
        return made

    def sha256(file: Path) -> str:
        return hashlib.sha256(file.read_bytes()).hexdigest()

    assert identified("plain", save_as_external_data=False)["external_data"] == {}
    several = identified("several", save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    assert len(several["external_data"]) > 3
    assert several["external_data"] == {n: sha256(tmp_path / n) for n in several["external_data"]}
    one = identified("one", save_as_external_data=True, location="all.bin", size_threshold=0)
    data = bytearray((tmp_path / "all.bin").read_bytes())
    weights = next(t for t in onnx.load(path, load_external_data=False).graph.initializer if t.name.endswith("/W"))
    data[int(next(e.value for e in weights.external_data if e.key == "offset"))] ^= 1
    (tmp_path / "all.bin").write_bytes(data)
    other = identified("other")
    assert one["sha256"] == other["sha256"]
    assert other["external_data"] == {"all.bin": sha256(tmp_path / "all.bin")} != one["external_data"]
