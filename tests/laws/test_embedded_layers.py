"""The law for layers behind an embedding, whose int8 rows they take as they are (`--rest int8`).

What these would catch: rows of other tokens than the floats had, scales of other rows, a zero point that is not that of
the rows, scales that lengths or a reverse direction do not turn with their rows, a body that rounds otherwise than the
kernel; a layer that quantizes the rows again.
"""

from __future__ import annotations

from typing import Any

import pytest

from rnnqc.cells.operator_version import ROW_CODES
from rnnqc.cells.stages import IntegerCell
from tests.laws.formats import TABLES
from tests.laws.law import ALL_SETTINGS, Forms, carries_states, chunks, law, rows
from tests.laws.layers import CELLS, sized_case
from tests.laws.pairwise import Row, pairwise
from tests.runs.lowered import INTEGER, UNROLLED
from tests.subjects.embedded_layers import WAYS_TO_X, embedded, tokens

FORMATS = {
    "int8": [],
    **{n: TABLES[n] for n in ("int4, groups of 32", "int6 input, int4 recurrence", "16-bit hidden state")},
    "row scales of the hidden state": ["*.hidden.mode=dynamic-row"],
}
FIELDS: dict[str, Any] = {
    "cell": tuple(CELLS),
    "format": tuple(FORMATS),
    "to_x": WAYS_TO_X,
    "size": ((4, 2, 3, 4), (5, 3, 20, 17), (3, 3, 40, 35), (1, 1, 8, 16)),
    "direction": ("forward", "reverse", "bidirectional"),
    "lengths": (False, True),
    "states": (False, True),
    "layout": (0, 1),
    "opset": (17, 14, 20, 22),
    "dynamic": (False, True),
    "setting": ALL_SETTINGS,
    "form": (INTEGER, UNROLLED),
}
ROWS = pairwise(FIELDS)


def takes_rows(forms: Forms) -> bool:
    """Whether every cell of every form reads the rows of the embedding."""
    cells = [c for lowered in forms.results.values() for c in lowered.model.cells.values()]
    return all(isinstance(c, IntegerCell) and c.numbers.x_mode == ROW_CODES for c in cells)


@pytest.mark.few(6)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{ROWS.index(r)} {r['cell']}, {r['to_x']}")
def test_same_bits(row: Row) -> None:
    case = sized_case(row, layout=row["layout"])
    feeds = [tokens(case, seed) for seed in range(2)]
    forms = law(
        embedded(case, row["to_x"]), "int8", FORMATS[row["format"]], feeds=feeds, dims=case.dims, rest="int8",
        settings=[row["setting"]], ways=[row["form"]], name=f"{row}",
    )  # fmt: skip
    assert takes_rows(forms)
    assert [e.form for e in forms.stock.report.rest.entries] == ["int8 rows"]
    assert forms.reference(feeds[0]) == case.directions
    if case.dynamic_batch:
        rows(forms, case, feeds[0])
    if carries_states(case):
        chunks(forms, case, feeds[0])
