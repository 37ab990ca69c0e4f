"""The law for layers that read their input in parts or with factors: a fused node takes them without Concat and Mul.

What these would catch: parts in another order; a row whose scale covers one part alone; a part that is read with the
row size of another; factors of other columns; steps or rows of a part that lengths or a reverse direction do not turn
with the others.
"""

from __future__ import annotations

from typing import Any

import pytest

from rnnqc.cells.fused_nodes import X_FACTOR, given_inputs, input_names
from rnnqc.cells.stages import FusedCell
from rnnqc.cells.types import LSTM, fused_type
from tests.laws.formats import TABLES
from tests.laws.law import ALL_SETTINGS, carries_states, chunks, law, rows
from tests.laws.layers import CELLS, WITHOUT_DATA, sized_case
from tests.laws.pairwise import Row, pairwise
from tests.runs.lowered import INTEGER, UNROLLED
from tests.subjects.layers_of_parts import of_parts

FORMATS = {
    **{recipe: (recipe, []) for recipe in WITHOUT_DATA},
    "static input": ("int8", ["*.input.mode=static", "*.input.scale=0.03125"]),
    **{n: ("int8", TABLES[n]) for n in ("16-bit input", "int6 input, int4 recurrence", "int4, groups of 32")},
}
FIELDS: dict[str, Any] = {
    "cell": tuple(CELLS),
    "format": tuple(FORMATS),
    "parts": (2, 3, 4, 5),
    "empty": (False, True),
    "factor": (False, True),
    "size": ((4, 2, 5, 4), (5, 3, 20, 17), (3, 3, 70, 35), (1, 1, 9, 16)),
    "direction": ("forward", "reverse", "bidirectional"),
    "lengths": (False, True),
    "states": (False, True),
    "opset": (17, 14, 20, 22),
    "dynamic": (False, True),
    "setting": ALL_SETTINGS,
    "form": (INTEGER, UNROLLED),
}
ROWS = pairwise(FIELDS)


@pytest.mark.few(6)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{ROWS.index(r)} {r['cell']}, {r['format']}, {r['parts']}")
def test_same_bits(row: Row) -> None:
    case = sized_case(row)
    recipe, overrides = FORMATS[row["format"]]
    feeds = [case.replace(seed=seed).feeds(padding=0.0) for seed in range(2)]
    forms = law(
        of_parts(case, row["parts"], row["empty"], row["factor"]), recipe, overrides, feeds=feeds, dims=case.dims,
        settings=[row["setting"]], ways=[row["form"]], name=f"{row}",
    )  # fmt: skip
    takes_parts = row["parts"] < 5 and case.directions == 1
    for cell in forms.stock.model.cells.values():
        assert isinstance(cell, FusedCell)
        assert len(cell.more_x) == (row["parts"] - 1 if takes_parts else 0)
    takes_factor = row["factor"] and case.directions == 1
    assert [n.op_type for n in forms.stock.proto.graph.node].count("Mul") >= row["factor"] - takes_factor
    given = [given_inputs(n, input_names(LSTM)) for n in forms.stock.proto.graph.node if fused_type(n.op_type)]
    assert [X_FACTOR in g for g in given] == [takes_factor] * case.directions
    assert [n.op_type for n in forms.stock.proto.graph.node].count("Concat") >= (not takes_parts)
    assert forms.reference(feeds[0]) == case.directions
    if case.dynamic_batch:
        rows(forms, case, feeds[0])
    if carries_states(case):
        chunks(forms, case, feeds[0])
