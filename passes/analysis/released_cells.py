"""Analysis: Brevitas' cells that a lowering wrote in form qcdq and released: operators that no pass changes."""

from __future__ import annotations

from rnnqc.cells.base import Cell
from rnnqc.cells.stored_cells import NO_CELLS, cells_from_text
from rnnqc.errors import CompileError
from rnnqc.formats.format import FormatError
from rnnqc.ir import RELEASED_TAG, Model, info

WRITTEN_OUT = (
    "it is written in standard operators with Brevitas' own quantizers, which no pass takes further.",
    "an export of Brevitas, lowered with --form qcdq",
    "for another form lower the exported model",
)
"""Why such a cell stays as it is: reason, found, action."""


def released_cells(model: Model) -> dict[str, Cell]:
    """Returns the released cells that the model records and still has nodes of, by name.

    Raises:
        CompileError: The record is damaged.
    """
    try:
        known = cells_from_text(model.metadata.get(RELEASED_TAG, NO_CELLS))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, FormatError) as error:
        raise CompileError(
            f"{model.source}: metadata {RELEASED_TAG!r} is damaged ({error!r}).",
            supported="what rnnqc writes there",
            action="lower the exported model again, or remove this entry of metadata_props",
        ) from error
    there = {info(n).metadata.get(RELEASED_TAG) for g in model.graphs() for n in g.nodes} if known else set()
    return {name: cell for name, cell in known.items() if name in there}
