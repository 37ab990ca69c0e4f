"""Compares the int8 rows of an embedding that cells take with the floats that they read before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.stages import IntegerCell
from rnnqc.passes.verify.inner_values import InnerValues

Feeds = Mapping[str, npt.NDArray[Any]]


@dataclass
class RowFindings:
    """The results.

    Attributes:
        cells: Names of the cells that take rows now.
        passed_over: Those whose inputs could not be read.
        wrong: The first feed and a sentence, if some rows are not the floats; None otherwise.
    """

    cells: Sequence[str] = ()
    passed_over: list[str] = field(default_factory=list)
    wrong: tuple[int, str] | None = None

    def __str__(self) -> str:
        text = f"rows times scales: bit for bit the inputs of {len(self.cells)} cells before"
        return text + (
            f", {len(self.passed_over)} passed over: {', '.join(self.passed_over)}" if self.passed_over else ""
        )


def compare_rows(
    before: onnx.ModelProto,
    cells_before: Mapping[str, Cell],
    after: onnx.ModelProto,
    cells_after: Mapping[str, Cell],
    feeds: Sequence[Feeds],
) -> RowFindings:
    """Compares the products of rows and scales with the floats, of cells that read these before and rows now."""
    floats: dict[str, str] = {}
    rows: dict[str, tuple[str, str]] = {}
    for name, cell in cells_after.items():
        earlier = cells_before.get(name)
        if isinstance(cell, IntegerCell) and cell.x_scale and earlier and not isinstance(earlier, IntegerCell):
            floats[name], rows[name] = earlier.x, (cell.x, cell.x_scale)
    found = RowFindings(list(rows))
    if not rows:
        return found
    first, second = (
        InnerValues(before, list(floats.values())),
        InnerValues(after, [n for r in rows.values() for n in r]),
    )
    for number, given in enumerate(feeds):
        wanted, made = first.of(given), second.of(given)
        for name, (codes, scale) in rows.items():
            if not (floats[name] in wanted and {codes, scale} <= made.keys()):
                found.passed_over += [] if name in found.passed_over else [name]
                continue
            held = [a for _, a in wanted[floats[name]]]
            products = [c.astype(np.float32) * s for (_, c), (_, s) in zip(made[codes], made[scale], strict=True)]
            if [(p.shape, p.tobytes()) for p in products] != [(a.shape, a.tobytes()) for a in held]:
                found.wrong = (
                    number,
                    f"the rows of {codes!r} times {scale!r}, which {name!r} reads, are not {floats[name]!r}",
                )
                return found
    return found
