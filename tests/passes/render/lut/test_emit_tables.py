"""Activation tables in a model (the formula is tested in cells/test_tables.py).

What these would catch: a table with the wrong scale or offset, tables in the wrong order, one made twice, halves that
are rounded to the wrong side, operators that onnxruntime does not fold or computes with other bits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from rnnqc.cells.activations import make_activation
from rnnqc.cells.tables import KNOT_UNIT, piecewise_linear_tanh
from rnnqc.cells.vitis_tables import vitis_values
from rnnqc.ir import Model, Value, constant_array
from rnnqc.passes.fold.fixed_point_tables import FixedPointTable, VitisSteps
from rnnqc.passes.fold.fold_lut import TableSpec, linear_length
from rnnqc.passes.render.lut.emit_tables import PREFIX, Tables
from tests.runs.sessions import LEVELS, options
from tests.subjects.protos import parse

SIGMOID = TableSpec(make_activation("Sigmoid"), 13, 16 / 4096, 1.0, True)
TANH = TableSpec(make_activation("Tanh"), 13, 8 / 4096, 2.0**-11, True)
CELL = TableSpec(make_activation("Tanh"), 16, 2.0**-11, 1.0, True)
COARSE = TableSpec(make_activation("Tanh"), 8, 0.125, 1.0, True)
"""One quantized value in a segment; every second quantized value lies beyond the knots."""
THIRDS = TableSpec(make_activation("Tanh"), 13, 8 / 3072, 1.0, True)
"""48 quantized values in a segment."""
SCALED = TableSpec(make_activation("Sigmoid"), 14, 16 / 4096, 0.003, True)
"""Entries that are rounded."""
EXACT = TableSpec(make_activation("Sigmoid"), 8, 0.25, 0.5, False)
ELU = TableSpec(make_activation("Elu", 0.5), 8, 0.125)


def _model(opset: int = 17) -> Model:
    return Model.load(
        parse(f'<ir_version: 10, opset_import: ["": {opset}]> g (float[2] x) => (float[2] y) {{ [n] y = Neg(x) }}')
    )


def _expected(spec: TableSpec) -> npt.NDArray[Any]:
    """Entries in ascending order of codes."""
    codes = np.arange(-spec.size // 2, spec.size // 2)
    if spec.piecewise_linear:
        n = linear_length(spec.activation, spec.bits, spec.step)
        assert n is not None
        tanh = piecewise_linear_tanh(codes, n).astype(np.float32)
        if spec.activation.name == "Tanh":
            return tanh * (np.float32(KNOT_UNIT) / np.float32(spec.unit))
        unit = np.float32(spec.unit)
        return tanh * (np.float32(KNOT_UNIT / 2) / unit) + np.float32(0.5) / unit
    function = spec.activation.residual if spec.activation.kind == "relu_table" else spec.activation
    return np.asarray(function(codes * spec.step) / spec.unit).astype(np.float32)


def _exposed(model: Model, table: Value) -> onnx.ModelProto:
    table.dtype, table.shape = np.dtype(np.float32), [None]
    model.graph.outputs.append(table)
    proto = model.proto
    onnx.checker.check_model(proto, full_check=True)
    return proto


def _value(model: Model, table: Value, level: str = "ORT_DISABLE_ALL") -> npt.NDArray[Any]:
    """The table as onnxruntime computes it from a file."""
    array = constant_array(table)
    if array is not None:
        return array
    import onnxruntime as ort

    proto = _exposed(model, table)
    session = ort.InferenceSession(proto.SerializeToString(), options(level), providers=["CPUExecutionProvider"])
    return np.asarray(session.run([table.name], {"x": np.zeros(2, np.float32)})[0])


ALL = {
    "sigmoid": SIGMOID, "tanh in cell units": TANH, "cell": CELL, "coarse": COARSE, "thirds": THIRDS, "scaled": SCALED,
    "exact": EXACT, "elu residual": ELU,
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("spec", ALL.values(), ids=ALL)
def test_one_gate_table(spec: TableSpec, level: str) -> None:
    """Every entry, folded when the session is created and computed in a run."""
    model = _model()
    got = _value(model, Tables(model).gate_table([spec]), level)
    np.testing.assert_array_equal(got, _expected(spec), strict=True)
    assert not np.signbit(got[got == 0]).any()


@pytest.mark.parametrize("opset", [13, 17, 20, 22])
def test_every_operator_set(opset: int) -> None:
    model = _model(opset)
    got = _value(model, Tables(model).cell_table(CELL))
    np.testing.assert_array_equal(np.roll(got, CELL.size // 2), _expected(CELL))


@pytest.mark.parametrize("specs", [[SIGMOID, TANH], [CELL], [SIGMOID, EXACT]], ids=str)
def test_onnxruntime_folds_it(specs: list[TableSpec], tmp_path: Path) -> None:
    """Computed in every run, a table takes longer than a step of a layer."""
    import onnxruntime as ort

    chosen = options("ORT_ENABLE_BASIC")
    chosen.optimized_model_filepath = str(tmp_path / "folded.onnx")
    model = _model()
    proto = _exposed(model, Tables(model).gate_table(specs))
    ort.InferenceSession(proto.SerializeToString(), chosen, providers=["CPUExecutionProvider"])
    assert [n.op_type for n in onnx.load(tmp_path / "folded.onnx").graph.node] == ["Neg"]


def test_few_operators() -> None:
    """onnxruntime takes 40 us and more for each node that it folds."""
    model = _model()
    tables = Tables(model)
    tables.gate_table([SIGMOID, TANH])
    assert len(model.graph.nodes) == 1 + 6
    tables.cell_table(CELL)
    assert len(model.graph.nodes) == 1 + 6 + 6


@pytest.mark.parametrize(
    "specs",
    [[SIGMOID, TANH], [TANH, SIGMOID], [SIGMOID, EXACT, TANH], [COARSE, CELL, SIGMOID, THIRDS], [SCALED, SIGMOID]],
    ids=["default", "other order", "exact between", "four sizes", "of one length"],
)
def test_gate_tables_one_after_the_other(specs: list[TableSpec]) -> None:
    model = _model()
    got = _value(model, Tables(model).gate_table(specs))
    np.testing.assert_array_equal(got, np.concatenate([_expected(s) for s in specs]), strict=True)


@pytest.mark.parametrize("spec", ALL.values(), ids=ALL)
def test_cell_table_is_by_code(spec: TableSpec) -> None:
    model = _model()
    got, ascending = _value(model, Tables(model).cell_table(spec)), _expected(spec)
    half = spec.size // 2
    for code in (-half, -1, 0, 1, half - 1):
        assert got[code] == ascending[code + half]
    np.testing.assert_array_equal(np.roll(got, half), ascending)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TANH, replace(TANH, piecewise_linear=False)),
        (replace(TANH, activation=make_activation("ScaledTanh", 0.8, 0.5), piecewise_linear=False),
         replace(TANH, activation=make_activation("ScaledTanh", 0.4, 0.5), piecewise_linear=False)),
    ],
    ids=["exact", "alpha"],
)  # fmt: skip
def test_tables_that_differ_are_not_one(one: TableSpec, other: TableSpec) -> None:
    """Layers of one file may differ in how a gate is tabulated, or in the alpha of its activation, and in no more."""
    model = _model()
    tables = Tables(model)
    made = [tables.gate_table([SIGMOID, spec]) for spec in (one, other)]
    for spec, table in zip((one, other), made, strict=True):
        np.testing.assert_array_equal(_value(model, table), np.concatenate([_expected(SIGMOID), _expected(spec)]))
    assert made[0].name != made[1].name


def test_tables_are_made_once() -> None:
    model = _model()
    tables = Tables(model)
    first = tables.gate_table([SIGMOID, TANH])
    assert tables.gate_table([SIGMOID, TANH]) is first
    assert tables.cell_table(CELL) is tables.cell_table(CELL)
    assert tables.gate_table([SIGMOID]) is not tables.gate_table([TANH])
    assert [n.op for n in model.graph.nodes].count("Floor") == 4
    model.check()


def test_tables_stand_first_in_the_main_graph() -> None:
    model = _model()
    Tables(model).gate_table([SIGMOID, TANH])
    assert [n.name.startswith(PREFIX) for n in model.graph.nodes] == [True] * 6 + [False]


@pytest.mark.parametrize(
    ("step", "bits", "length"),
    [
        (8 / 4096, 13, 4096),
        (2.0**-11, 16, 16384),
        (0.125, 7, 64),
        (0.25, 8, None),
        (0.3, 13, None),
        (8 / 4096, 12, None),
    ],
)
def test_where_the_knots_fit(step: float, bits: int, length: int | None) -> None:
    assert linear_length(make_activation("Tanh"), bits, step) == length


def _vitis(activation: str, fix_position: int, low: int, high: int) -> FixedPointTable:
    values = vitis_values(activation, fix_position, 16)[low + 2**15 : high + 2**15 + 1]
    return FixedPointTable(values, VitisSteps(activation, fix_position, low, high))


@pytest.mark.parametrize("fix_position", [-3, 0, 5, 7, 8, 9, 12, 15])
@pytest.mark.parametrize("activation", ["Sigmoid", "Tanh"])
def test_vitis_tables_from_their_steps(activation: str, fix_position: int) -> None:
    """Every code, those beyond the table and ranges that are not centred among them."""
    for low, high in ((-(2**15), 2**15 - 1), (-5000, 3), (0, 4095)):
        model = _model()
        table = _vitis(activation, fix_position, low, high)
        np.testing.assert_array_equal(_value(model, Tables(model).fixed_point_table([table])), table.values)


def test_grid_tables_one_after_the_other() -> None:
    plain = FixedPointTable(np.float32([1.0, 2.5]))
    tables = [_vitis("Sigmoid", 9, -100, 90), plain, _vitis("Tanh", 9, -100, 90)]
    model = _model()
    made = Tables(model)
    table = made.fixed_point_table(tables)
    assert made.fixed_point_table(tables) is table
    np.testing.assert_array_equal(_value(model, table), np.concatenate([t.values for t in tables]))
    model = _model()
    np.testing.assert_array_equal(constant_array(Tables(model).fixed_point_table([plain, plain])), [1.0, 2.5] * 2)
