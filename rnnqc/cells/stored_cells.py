"""Cells in the metadata of a model: only `cells_to_text` writes and only `cells_from_text` reads them.

The text is compressed JSON: the cells of a model are nearly alike, and 28 of them take 3 kB instead of 57. Plain JSON
can be read, too. Every form has the same keys; those of later stages are empty in earlier ones.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

from rnnqc.cells.activations import Activation
from rnnqc.cells.base import Cell
from rnnqc.cells.fixed_point_numbers import FIXED_POINT, FIXED_POINT32, FixedPointNumbers
from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.cells.packed_weights import CODEBOOKS, PACKED_WIDTHS, WIDE_COLUMNS
from rnnqc.cells.stages import FusedCell, IntegerCell, Numbers, OperandNames, Operands, QonnxCell, QuantizedCell
from rnnqc.formats.point_format import PointFormat

T = TypeVar("T", LutNumbers, FixedPointNumbers, OperandNames)
NO_CELLS = "[]"
_STAGES: Mapping[str, type[Cell]] = {c.form: c for c in (Cell, QuantizedCell, IntegerCell, FusedCell, QonnxCell)}
_LATER = ("points", "numbers", "operands", "y_codes", "x_scale", "more_x")
_COMPRESSED = "zlib:"
"""Prefix of a text that is zlib-compressed JSON in base85."""
_LARGEST_TEXT = 2**28
"""The largest number of JSON bytes that are read."""


def cells_to_text(cells: Iterable[Cell], behind: str = NO_CELLS) -> str:
    """Returns the text of some cells, appended to another text's cells."""
    return _compressed([*_entries(behind), *map(cell_to_json, cells)])


def cells_from_text(text: str) -> dict[str, Cell]:
    """Returns the cells in a text, by name.

    Raises:
        ValueError, RecursionError: It is not JSON, or not compressed as `cells_to_text` does it.
        KeyError, TypeError, AttributeError, FormatError: As `cell_from_json`.
    """
    return {c["name"]: cell_from_json(c) for c in _entries(text)}


def joined_texts(first: str, second: str) -> str:
    """Joins the cells of two texts."""
    return _compressed([*_entries(first), *_entries(second)])


def _compressed(entries: Sequence[Any]) -> str:
    text = json.dumps(entries, sort_keys=True, separators=(",", ":"))
    return text if not entries else _COMPRESSED + base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def _entries(text: str) -> list[Any]:
    """Returns the contents of a text, compressed or not.

    Raises:
        ValueError, RecursionError: It is damaged, or longer than any model needs.
        TypeError: It is not a list.
    """
    if text.startswith(_COMPRESSED):
        reader = zlib.decompressobj()
        try:
            made = reader.decompress(base64.b85decode(text[len(_COMPRESSED) :]), _LARGEST_TEXT)
        except zlib.error as error:
            raise ValueError(f"no zlib stream: {error}") from error
        if not reader.eof:
            raise ValueError(f"the stream ends too early or holds more than {_LARGEST_TEXT} bytes")
        text = made.decode()
    entries = json.loads(text)
    if not isinstance(entries, list):
        raise TypeError(f"a list of cells was expected, not {type(entries).__name__}")
    return entries


def cell_to_json(cell: Cell) -> dict[str, Any]:
    """Returns JSON-ready values. Per-channel scales of an integer form are in its multipliers, so they are left out."""
    data = {f.name: getattr(cell, f.name) for f in fields(cell) if f.name not in _LATER}
    data["activations"] = tuple(asdict(a) for a in cell.activations)
    integer = cell if isinstance(cell, IntegerCell) else None
    points = cell.points if isinstance(cell, QuantizedCell) else {}
    return {
        **data,
        "form": cell.form,
        "points": {n: (p if integer is None else p.without_channel_scales()).as_dict() for n, p in points.items()},
        "integer": _held(integer.numbers) if integer is not None else {},
        "operands": integer.operands.as_dict() if integer is not None else {},
        "y_codes": integer.y_codes if integer is not None else None,
        **({"x_scale": integer.x_scale} if integer is not None and integer.x_scale is not None else {}),
        **({"more_x": cell.more_x} if isinstance(cell, FusedCell) and cell.more_x else {}),
    }


def cell_from_json(data: Mapping[str, Any]) -> Cell:
    """Parses the result of `cell_to_json`; ignores entries of later versions.

    Raises:
        KeyError, TypeError, AttributeError: The values are not a valid cell.
        FormatError: They are not valid formats.
    """
    stage = _STAGES[data.get("form", Cell.form)]
    values = {f.name: data[f.name] for f in fields(stage) if f.name in data and f.name not in _LATER}
    values["activations"] = tuple(Activation(**a) for a in data["activations"])
    if issubclass(stage, QuantizedCell):
        values["points"] = {n: PointFormat.from_dict(p) for n, p in data.get("points", {}).items()}
    if issubclass(stage, IntegerCell):
        values["numbers"] = _numbers(data["integer"])
        values["operands"] = _known(Operands, data["operands"])
        values |= {k: data.get(k) for k in ("y_codes", "x_scale")}
    if issubclass(stage, FusedCell):
        values["more_x"] = tuple(data.get("more_x", ()))
    return stage(**values)


def _held(numbers: Numbers) -> dict[str, Any]:
    """Returns the numbers without attributes of packed weights at the defaults of earlier files."""
    usual = {**PACKED_WIDTHS, **CODEBOOKS, **WIDE_COLUMNS}
    return {k: v for k, v in vars(numbers).items() if usual.get(k) != v}


def _numbers(data: Mapping[str, Any]) -> Numbers:
    if data.get("arithmetic") in (FIXED_POINT, FIXED_POINT32):
        return _known(FixedPointNumbers, data)
    return _known(LutNumbers, data)


def _known(kind: type[T], data: Mapping[str, Any]) -> T:
    names = {f.name for f in fields(kind)}
    return kind(**{k: v for k, v in data.items() if k in names})
