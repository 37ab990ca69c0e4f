"""The stages of a cell, and cells as JSON.

What these would catch: a stage that loses something of the one before; a name that is left behind when a value gets
another; a file that says other things of a cell than before, or that cannot be read again; a cell that writing changes.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from rnnqc.cells import stored_cells
from rnnqc.cells.activations import Activation
from rnnqc.cells.base import Cell
from rnnqc.cells.fixed_point_numbers import FIXED_POINT32, QUANTIZERS, FixedPointNumbers, FixedPointQuantizer
from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.cells.operator_version import ROW_CODES, version_of
from rnnqc.cells.stages import FusedCell, IntegerCell, OperandNames, QonnxCell, QuantizedCell, points_of
from rnnqc.cells.stored_cells import (
    NO_CELLS,
    cell_from_json,
    cell_to_json,
    cells_from_text,
    cells_to_text,
    joined_texts,
)
from rnnqc.formats.format import Format, IntegerFormat
from rnnqc.formats.point_format import EMBEDDED, PointFormat
from rnnqc.formats.point_format import FLOAT as NOT_QUANTIZED

FLOAT = Cell(
    name="lstm.forward", node="lstm", op="LSTM", hidden_size=4, input_size=3, reverse=False,
    activations=(Activation("Sigmoid"), Activation("Tanh"), Activation("Elu", 1.0)), clip=3.0, input_forget=True,
    static_length=None, static_batch=2, x="X", sequence_lens=None, initial_h="h0", initial_c=None, y="Y", y_h=None,
    y_c="Y_c", W="w", R="r", B="b", P=None,
)  # fmt: skip
PER_CHANNEL = PointFormat.of(Format(8, True, (0.1, 0.2), axis=1))
POINTS = {"input": PointFormat.of(Format(8, True, (0.1,))), "W.weight": PER_CHANNEL, "R.weight": NOT_QUANTIZED}
LUT = LutNumbers(
    "static", 0.1, 128, "static", 0.01, 128, 0.0, 0.0, 1.0, ["table"] * 4, [0.0] * 4, [9.0] * 4, [0] * 4, 16, [0.0] * 4,
    [0] * 4, 16, 0,
)  # fmt: skip
FIXED_POINT = FixedPointNumbers.of(
    "codes", [FixedPointQuantizer(0.5, 1, 0, 255)] * len(QUANTIZERS), [0] * 4, arithmetic=FIXED_POINT32
)
OPERANDS = OperandNames("codes", "r", "xm", "hm", "bias", gate_table="table")
QUANTIZED = QuantizedCell.of(FLOAT, POINTS)
INTEGER = IntegerCell.of_quantized(QUANTIZED, LUT, OPERANDS, "Y_codes")
STAGES = [
    FLOAT,
    QUANTIZED,
    QonnxCell.of_quantized(QUANTIZED),
    INTEGER,
    replace(INTEGER, numbers=FIXED_POINT, y_codes=None),
    FusedCell.of_integer(INTEGER),
]
ROWS = IntegerCell.of_quantized(
    QUANTIZED.with_point("input", PointFormat(8, IntegerFormat(8, True, narrow=True), EMBEDDED, chain=True)),
    replace(LUT, x_mode=ROW_CODES),
    OPERANDS,
    None,
    "X_scale",
)


@pytest.mark.parametrize("cell", STAGES, ids=lambda c: type(c).__name__)
def test_a_cell_through_json(cell: Cell) -> None:
    read = cell_from_json(json.loads(json.dumps(cell_to_json(cell))))
    assert (type(read), read.form) == (type(cell), cell.form)
    if isinstance(cell, IntegerCell):
        # Multipliers hold the scales of channels.
        points = {**POINTS, "W.weight": PER_CHANNEL.without_channel_scales()}
        assert points_of(read) == points
        assert points_of(cell) == POINTS, "writing must not change the cell"
        cell = replace(cell, points=points)
    assert read == cell


def test_cells_as_text() -> None:
    """Texts of similar cells are short; plain JSON, texts behind another text, and joined texts are read."""
    cells = [replace(QUANTIZED, name=f"cell{k}") for k in range(28)]
    text = cells_to_text(cells)
    plain = json.dumps([cell_to_json(c) for c in cells])
    assert len(text) < len(plain) / 20
    assert list(cells_from_text(text).values()) == list(cells_from_text(plain).values()) == cells
    assert cells_from_text(cells_to_text([FLOAT], behind=text)) == cells_from_text(
        joined_texts(text, cells_to_text([FLOAT]))
    )
    assert list(cells_from_text(cells_to_text([FLOAT], behind=text))) == [*(c.name for c in cells), FLOAT.name]
    assert cells_to_text([]) == joined_texts(NO_CELLS, NO_CELLS) == NO_CELLS
    assert cells_from_text(NO_CELLS) == {}


def test_texts_that_are_cut_or_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short text may expand to gigabytes, so reading has a limit."""
    monkeypatch.setattr(stored_cells, "_LARGEST_TEXT", 10000)
    endless = "zlib:" + base64.b85encode(zlib.compress(b"[" + b" " * 10000 + b"]")).decode()
    for text in (endless, cells_to_text([FLOAT])[:-10], "zlib:" + base64.b85encode(b"[]").decode()):
        with pytest.raises(ValueError, match=r"stream|base85"):
            cells_from_text(text)


@pytest.mark.parametrize("cell", STAGES, ids=lambda c: type(c).__name__)
def test_every_form_has_the_same_keys(cell: Cell) -> None:
    """Files have the same 30 keys for a cell of any form: those of later stages are empty in earlier ones."""
    data = cell_to_json(cell)
    later = {"points": {}, "integer": {}, "operands": {}, "y_codes": None}
    names = (
        "name node op hidden_size input_size reverse activations clip input_forget static_length static_batch x "
        "sequence_lens initial_h initial_c y y_h y_c W R B P points form integer operands y_codes linear_before_reset "
        "hidden_bias batch"
    )
    assert sorted(data) == sorted(names.split())
    empty = {k for k, v in later.items() if data[k] == v}
    assert {"points", "integer", "operands"} & empty == {
        "float": {"points", "integer", "operands"},
        "qcdq": {"integer", "operands"},
        "qonnx": {"integer", "operands"},
    }.get(cell.form, set())


@pytest.mark.parametrize("cell", STAGES, ids=lambda c: type(c).__name__)
def test_entries_of_a_later_version_are_ignored(cell: Cell) -> None:
    data = cell_to_json(cell)
    more: dict[str, Any] = {**data, "from_the_future": 1}
    for key in ("integer", "operands"):
        more[key] = {**data[key], "from_the_future": 1} if data[key] else {}
    assert cell_from_json(more) == cell_from_json(data)


def test_a_cell_of_an_unknown_form_is_none() -> None:
    with pytest.raises(KeyError):
        cell_from_json({**cell_to_json(FLOAT), "form": "analog"})


def test_a_stage_has_everything_that_the_one_before_has() -> None:
    fused = FusedCell.of_integer(INTEGER)
    for earlier, later in ((FLOAT, QUANTIZED), (INTEGER, fused)):
        assert vars(earlier).items() <= vars(later).items()
    # The operands of an integer cell are its parameters.
    changed = {k for k, v in vars(QUANTIZED).items() if vars(INTEGER)[k] != v}
    assert changed == {"W", "B"}
    assert (INTEGER.W, INTEGER.B) == ("codes", "bias")


def test_a_stage_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        QUANTIZED.x = "other"  # type: ignore[misc]
    other = QUANTIZED.with_point("R.weight", PER_CHANNEL)
    assert (QUANTIZED.point("R.weight"), other.point("R.weight")) == (NOT_QUANTIZED, PER_CHANNEL)
    assert other.point("unknown") == NOT_QUANTIZED


def test_a_value_gets_another_name() -> None:
    assert FLOAT.renamed("X", "x2").x == "x2"
    assert FLOAT.renamed("lstm", "x2") == FLOAT, "the node is no value"
    made = INTEGER.renamed("codes", "shared").renamed("table", "t2").renamed("Y_codes", "c2")
    assert (made.W, made.operands.W, made.operands.gate_table, made.y_codes) == ("shared", "shared", "t2", "c2")
    assert made.renamed("gone", "x2") is made


def test_outputs_that_nothing_makes_any_more() -> None:
    assert FLOAT.without_dead_outputs({"Y", "other"}).outputs == ["Y"]
    assert INTEGER.outputs == ["Y", "Y_c", "Y_codes"]
    assert INTEGER.without_dead_outputs({"Y_codes"}).outputs == ["Y_codes"]
    assert INTEGER.without_dead_outputs({"Y"}).outputs == ["Y"]


def test_a_cell_that_reads_rows_of_an_embedding() -> None:
    """The name of its scales is kept in files, only of such cells, and follows a renaming."""
    assert cell_from_json(cell_to_json(ROWS)) == replace(
        ROWS, points={n: p.without_channel_scales() for n, p in ROWS.points.items()}
    )
    assert cell_to_json(ROWS)["x_scale"] == "X_scale"
    assert ROWS.renamed("X_scale", "s2").x_scale == "s2"
    assert FusedCell.of_integer(ROWS).x_scale == "X_scale"
    assert ROWS.without_dead_outputs({"Y", "Y_c"}).x_scale == "X_scale", "an input is no output"
    assert ROWS.points["input"].as_dict() == {
        "bits": 8, "signed": True, "narrow": True, "zero_point": 0, "rounding": "half_even", "mode": "row-codes",
        "chain": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "version"),
    [
        ({}, None),
        ({"w_bits": 5}, 2),
        ({"r_codebook": 1}, 3),
        ({"w_wide_columns": 1, "w_bits": 6}, 4),
        ({"x_mode": ROW_CODES}, 5),
        ({"x_mode": ROW_CODES, "w_bits": 5, "r_wide_columns": 2}, 5),
    ],
)
def test_the_version_that_a_node_needs(changes: dict[str, Any], version: int | None) -> None:
    """The latest that one of its attributes needs: an earlier library refuses it."""
    assert version_of(replace(LUT, **changes)) == ({} if version is None else {"operator_version": version})
