"""Writes the tensors of a model's cells to a folder: an `.npz` for each cell, an index, and text on request."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx

from rnnqc.data.given_data import Data
from rnnqc.dumps.folder import FORMAT, INDEX, check_folder, replace_folder
from rnnqc.dumps.names import FileNames
from rnnqc.dumps.spool import Spool
from rnnqc.dumps.text import TextFrames
from rnnqc.errors import CompileError, UsageError
from rnnqc.proto.external_data import external_digests
from rnnqc.proto.files import serialized
from rnnqc.proto.given import Given, as_given
from rnnqc.results import Result
from rnnqc.tracing.tensors import Tensor
from rnnqc.tracing.trace import CellSteps, Tracer

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Options:
    """The options of `dump` that select what is written."""

    row: int | None
    steps: tuple[int | None, int | None]
    text: bool


class Dump(dict[str, Any], Result):
    """The contents of `index.json`."""

    __repr__ = Result.__repr__

    @property
    def headline(self) -> str:
        """The number of cells, and how the model ran."""
        return f"{len(self['cells'])} cell(s), {self['ran']}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each cell."""
        return [
            {"cell": name, "file": c["file"], "steps": c["steps"], "tensors": len(c["tensors"])}
            for name, c in self["cells"].items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Returns the contents of `index.json`."""
        return dict(self)


def dump(
    model: Given,
    feeds: Data,
    folder: str | os.PathLike[str],
    *,
    native: bool = True,
    state: Mapping[str, str] | Iterable[str] | None = None,
    cells: Sequence[str] = ("*",),
    row: int | None = None,
    steps: tuple[int | None, int | None] = (None, None),
    text: bool = False,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Dump:
    """Writes every tensor of every cell of a lowered or float model, step by step, to a folder.

    Examples:
        >>> import rnnqc, tempfile
        >>> lowered = rnnqc.lower("models/digits_lstm.onnx")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index = rnnqc.dump(lowered, "models/digits_calibration.npz", f"{folder}/dump", row=0, steps=(0, 2))
        >>> [row["steps"] for row in index.rows]
        [2]

    Args:
        model: A lowered model: a path, a ModelProto, or what `rnnqc.lower` returns. A Brevitas export is lowered
            first; for a float model, the values at its quantization points are written.
        feeds: Data (see `rnnqc.lower`).
        folder: The folder to create; it is removed if something fails. A link to a folder stays one.
        native: Whether the model runs with the native library. The arrays are the same.
        state: States that go from call to call, `IN:OUT`.
        cells: Patterns of the names of the cells to write.
        row: Row of the batch to write; None for all.
        steps: First step and the one after the last; None for no limit. Steps count over all runs of a cell.
        text: Whether to write text, too: one folder for each step.
        overwrite: Whether to replace a folder that contains a dump and nothing else.
        progress: Called with the number of steps done so far, over all cells.

    Returns:
        The contents of `index.json`, a dict.

    Raises:
        CompileError: Model, data or folder cannot be used, or a cell deviates from its specification.
        InternalError: Exposing inner values changed an output of the model.
    """
    target, model = Path(folder), as_given(model)
    tracer = Tracer(model, native=native, cells=cells)
    pieces = tracer.trace(feeds, state)
    place = Path(os.path.realpath(target))
    try:
        check_folder(target, overwrite=overwrite)
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=place.parent, prefix=".rnnqc.", suffix=".tmp"))
    except OSError as error:
        raise _cannot_write(target, error) from error
    try:
        writer = _Writer(tracer, temporary, _Options(row, steps, text))
        done = 0
        for piece in pieces:
            writer.add(piece)
            done += len(next(iter(piece.tensors.values())).values)
            if progress is not None:
                progress(done)
        index = {"format": FORMAT, "model": _identity(model), "ran": "native" if native else "stock", **writer.finish()}
        (temporary / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
        replace_folder(temporary, place, overwrite=overwrite)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Dump(index)


def _cannot_write(target: Path, error: OSError) -> CompileError:
    return CompileError(f"{target}: cannot be written ({error.strerror or error}).", action="choose another output")


def _identity(model: str | os.PathLike[str] | onnx.ModelProto) -> dict[str, Any]:
    """Returns the index entry of the model: SHA-256 of its file and of each file with its data."""
    if isinstance(model, onnx.ModelProto):
        digest = hashlib.sha256(serialized(model, "The model")).hexdigest()
        return {"file": None, "sha256": digest, "external_data": {}}
    path = Path(model)
    data = path.read_bytes()
    # Only the file has the names of the data files: the loaded model has the data itself.
    data_files = external_digests(onnx.ModelProto.FromString(data), path)
    return {"file": path.name, "sha256": hashlib.sha256(data).hexdigest(), "external_data": data_files}


@dataclass
class _CellFile:
    """The state of one cell's file."""

    file: str
    spool: Spool
    runs: list[dict[str, Any]] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)  # one step of each, for its format
    absent: dict[str, list[int]] = field(default_factory=dict)
    total: int = 0
    first: int | None = None
    written: int = 0


class _Writer:
    def __init__(self, tracer: Tracer, folder: Path, options: _Options) -> None:
        self._tracer, self._folder, self._options = tracer, folder, options
        files = FileNames()
        self._cells: dict[str, _CellFile] = {}
        for name in tracer.names:
            file = files.of((name,), re.sub(r"[^0-9A-Za-z_.-]", "_", name).lstrip("._") or "cell")
            self._cells[name] = _CellFile(f"{file}.npz", Spool(folder / f".{file}"))
        self._text = TextFrames(folder, options.row or 0, tracer.names) if options.text else None

    def add(self, steps: CellSteps) -> None:
        """Writes some steps."""
        held = self._cells[steps.cell]
        if steps.first == 0:
            run: dict[str, Any] = {"call": steps.call, "first": held.total, "steps": steps.length}
            held.runs.append(run | ({"trips": list(steps.trips)} if steps.trips else {}))
            held.total += steps.length
        start = held.runs[-1]["first"] + steps.first
        count = len(next(iter(steps.tensors.values())).values)
        low, high = self._options.steps
        part = slice(max(0, (low or 0) - start), count if high is None else max(0, min(count, high - start)))
        if part.start >= part.stop:
            return
        if held.first is None:
            held.first = start + part.start
        held.written += part.stop - part.start
        for tensor in steps.tensors.values():
            self._append(held, steps.cell, tensor.at(part), start + part.start)
        for name, missing in steps.absent.items():
            there = [t - steps.first for t in missing]
            held.absent.setdefault(name, []).extend(start + t for t in there if part.start <= t < part.stop)

    def _append(self, held: _CellFile, cell: str, tensor: Tensor, first: int) -> None:
        row = self._options.row
        batch = tensor.values.shape[1]
        if row is not None:
            if row >= batch:
                raise UsageError(
                    f"--row {row}: the batch of cell {cell!r} has {batch} rows.",
                    supported=f"0 to {batch - 1}",
                    action="choose another row",
                )
            tensor = tensor.row(row)
        held.tensors.setdefault(tensor.name, tensor.at(slice(0, 1)))
        for name, array in tensor.arrays().items():
            if array.ndim < tensor.values.ndim:
                held.spool.fix(name, array)
                continue
            try:
                held.spool.append(name, array)
            except ValueError as error:
                raise CompileError(
                    f"Cell {cell!r} runs with batches of different sizes.",
                    supported="one size, or one row (--row)",
                    action="dump the calls that differ on their own",
                ) from error
        if self._text is not None:
            self._text.write(cell, tensor, first, taken=row is not None)

    def finish(self) -> dict[str, Any]:
        """Writes the files of all cells; returns the contents of the index."""
        cells = {}
        for name, held in self._cells.items():
            constants, weights = self._tracer.constants(name), self._tracer.weights(name)
            for key, array in {**weights, **{f"operand.{k}": v for k, v in constants.items()}}.items():
                held.spool.fix(key, array)
            held.spool.write(self._folder / held.file)
            if self._text is not None and held.written:
                scales = {
                    f"{t.name}.scale": t.scale for t in held.tensors.values() if t.scale is not None and t.scale.ndim
                }
                others = {f"operand.{k}": v for k, v in constants.items() if f"{k}.weight.codes" not in weights}
                self._text.write_weights(name, {**weights, **scales, **others})
            cells[name] = {
                "file": held.file,
                **self._tracer.describe(name),
                "runs": held.runs,
                "first_step": held.first,
                "steps": held.written,
                "text": {} if self._text is None else self._text.files[name],
                "tensors": {t.name: _description(t, held) for t in held.tensors.values()},
                "parameters": {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in weights.items()},
            }
        if not any(h.written for h in self._cells.values()):
            total = max((h.total for h in self._cells.values()), default=0)
            raise UsageError(
                "No step to write: " + (f"the cells make {total} steps." if total else "no cell was run."),
                supported=f"steps 0 to {total}" if total else "data that reaches the cells",
                action="choose other --steps or --cells, or other data",
            )
        if self._text is not None:
            self._text.finish()
        return {"cells": cells, "order": "time", "row": self._options.row}


def _description(tensor: Tensor, held: _CellFile) -> dict[str, Any]:
    """Describes one tensor for the index."""
    scale, zero = tensor.scale, tensor.zero_point
    made: dict[str, Any] = {
        "shape": [held.written, *tensor.values.shape[1:]],
        "dtype": str(tensor.values.dtype),
        "codes": None if tensor.codes is None else str(tensor.codes.dtype),
    }
    if tensor.codes is not None:
        made["scale"] = None if scale is None else float(scale) if scale.ndim == 0 else f"{tensor.name}.scale"
        made["row_scale"] = None if tensor.row_scale is None else f"{tensor.name}.row_scale"
        made["zero_point"] = 0 if zero is None else int(zero) if zero.ndim == 0 else f"{tensor.name}.zero_point"
    if held.absent.get(tensor.name):
        made["absent"] = held.absent[tensor.name]
    return made
