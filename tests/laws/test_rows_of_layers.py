"""The law for rows of layers, in which one takes the codes of the one before.

What these would catch: codes that are passed on in another format than they are read in; layers of one shape that share
a function, or of one model that share weights, and must not; a dimension that one layer gives another's name.
"""

from __future__ import annotations

from typing import Any

import pytest

from rnnqc.calibration.calibrate import calibrate
from tests.generate.layers import RecurrentCase, stacked_model
from tests.laws.formats import STATIC, overrides
from tests.laws.law import ALL_SETTINGS, law
from tests.laws.layers import CELLS, RECIPES, WITHOUT_DATA
from tests.laws.pairwise import Row, pairwise
from tests.runs.lowered import INTEGER, UNROLLED

ORDERS = (
    ("LSTM",) * 3,
    ("GRU",) * 3,
    ("GRU", "LSTM", "GRU, linear before reset"),
    ("LSTM", "RNN", "RNN"),
)
FIELDS: dict[str, Any] = {
    "order": ORDERS,
    "format": (
        "int8",
        "int8-static",
        "brevitas-int8",
        "16 bits, static, uneven zero points",
        *STATIC[1:3],
        "uneven, 8 bits",
    ),
    "opset": (17, 13, 18, 20, 22),
    "sizes": ((3, 6, 6), (2, 40, 35)),
    "bidirectional": (False, True),
    "dynamic": (False, True),
    "shared": (False, True),
    "form": (INTEGER, UNROLLED),
    "setting": ALL_SETTINGS,
}
"""`sizes` are B, I and H; layers that share weights are of one kind, and as wide as their input."""


def repaired(row: Row) -> Row:
    if len(set(row["order"])) > 1 or row["sizes"] != (3, 6, 6):
        return {**row, "shared": False}
    return row


ROWS = pairwise(FIELDS, repaired)


@pytest.mark.few(2)
@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{ROWS.index(r)} {r['format']}")
def test_same_bits(row: Row) -> None:
    batch, width, hidden = row["sizes"]
    directions = 2 if row["bidirectional"] else 1
    layers = []
    for k, name in enumerate(row["order"]):
        first = k == 0 and not row["shared"]
        layers.append(
            RecurrentCase(
                T=3,
                B=batch,
                I=width if first else hidden * directions,
                H=hidden,
                direction="bidirectional" if row["bidirectional"] else "forward",
                dynamic_time=row["dynamic"],
                dynamic_batch=row["dynamic"],
                opset=row["opset"],
                seed=k,
                **CELLS[name],
            )
        )
    model, feeds = stacked_model(layers, row["shared"]), {"X": layers[0].feeds()["X"]}
    own = row["format"] in RECIPES
    recipe = row["format"] if own else "int8"
    statistics = None if recipe in WITHOUT_DATA else calibrate(model, [feeds])
    given = [] if own else [o for op in dict.fromkeys(c.op for c in layers) for o in overrides(row["format"], op)]
    forms = law(
        model,
        recipe,
        given,
        feeds=[feeds],
        dims=layers[0].dims,
        settings=[row["setting"]],
        ways=[row["form"]],
        name=str(row),
        stats=statistics,
    )
    assert [e.node for e in forms.stock.report.entries] == ["layer0", "layer1", "layer2"]
    assert forms.reference(feeds) == 3 * directions
