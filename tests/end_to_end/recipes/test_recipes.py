"""Overrides reach every quantization point; every format with an integer form gives the same bits everywhere."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import rnnqc
from rnnqc.cells.base import LSTM_POINTS
from rnnqc.evaluation.evaluate import run_model
from tests.generate.layer_specs import Placement
from tests.generate.layers import RecurrentCase
from tests.laws.formats import TABLES
from tests.laws.parametrize import in_turn
from tests.runs.lowered import INTEGER, NATIVE, UNROLLED
from tests.runs.sessions import assert_same_bits, sqnr

# Without effect on this layer: no weight needs the code -128, no cell state exceeds 16.
HARMLESS = ("nothing", "weights full range", "cell 16 bits")
CASE = RecurrentCase(T=6, B=3, I=24, H=32, direction="bidirectional", lens=(6, 3, 4), initial_h=True, initial_c=True)

# Override, and the form the cell ends in when "fused" is asked for.
OVERRIDES: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "fused"),
    "weights 4 bits": (["*.weight.bits=4"], "fused"),
    "weights 4 bits in groups": (["*.weight.bits=4", "*.weight.group_size=32"], "fused"),
    "weights 4 bits, some channels wide": (["*.weight.bits=4", "*.weight.wide_channels=0.1"], "fused"),
    "weights per tensor": (["*.weight.granularity=per-tensor"], "fused"),
    "weights full range": (["*.weight.narrow=false"], "fused"),
    "recurrent weights scale": (["*.R.weight.scale=0.01"], "fused"),
    "static input": (["*.input.mode=static", "*.input.scale=0.03"], "fused"),
    "static input, other zero point": (
        ["*.input.mode=static", "*.input.scale=0.03", "*.input.zero_point=100"],
        "fused",
    ),
    "hidden scale": (["*.hidden.scale=0.005"], "fused"),
    "hidden zero point": (["*.hidden.zero_point=120"], "fused"),
    "hidden row scales": (["*.hidden.mode=dynamic-row"], "fused"),
    "gates 10 bits": (["*.acc.bits=10"], "fused"),
    "gates 16 bits": (["*.acc.bits=16"], "fused"),
    "gates 6 bits": (["*.acc.bits=6"], "fused"),
    "one gate": (["*.forget_gate.acc.bits=9"], "fused"),
    "gate scale": (["*.cell_gate.acc.scale=0.0021"], "fused"),
    "exact tables": (["*.activation.table=exact"], "fused"),
    "one exact table": (["*.hidden.activation.table=exact"], "fused"),
    "cell 16 bits": (["*.cell_state.bits=16"], "fused"),
    "cell 8 bits": (["*.cell_state.bits=8", "*.cell_state.scale=0.05"], "fused"),
    "cell scale": (["*.cell_state.scale=0.0007"], "fused"),
    "float cell": (["*.cell_state.bits=none"], "fused"),
    "float gates": (["*.acc.bits=none", "*.activation.bits=none"], "qcdq"),
    "float input": (["*.input.bits=none"], "qcdq"),
    "float hidden": (["*.hidden.bits=none"], "qcdq"),
    "float weights": (["*.weight.bits=none"], "qcdq"),
    "weights 12 bits": (["*.weight.bits=12"], "qcdq"),
    "input 16 bits": (["*.input.bits=16"], "fused"),
    "hidden 16 bits": (["*.hidden.bits=16"], "fused"),
    "input and hidden 16 bits": (["*.input.bits=16", "*.hidden.bits=16"], "fused"),
    "hidden row scales 16 bits": (["*.hidden.bits=16", "*.hidden.mode=dynamic-row"], "fused"),
    "input 12 bits": (["*.input.bits=12"], "qcdq"),
    "gates half to even": (["*.acc.rounding=half_even"], "qcdq"),
    "cell floor": (["*.cell_state.rounding=floor"], "qcdq"),
    "first match wins": (["*.forward.W.weight.bits=3", "*.weight.bits=8"], "fused"),
}


@cache
def _fused(name: str) -> rnnqc.Lowered:
    return rnnqc.lower(CASE.model(), overrides=OVERRIDES[name][0])


@cache
def _stock(name: str) -> dict[str, np.ndarray]:
    return run_model(_fused(name).proto, CASE.feeds(), optimize=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", OVERRIDES)
def test_override(name: str) -> None:
    form = OVERRIDES[name][1]
    (entry,) = _fused(name).report.entries
    assert (entry.status, entry.form) == ("lowered", form)
    assert bool(entry.reason) == (form == "qcdq")
    reference, stock = run_model(CASE.model(), CASE.feeds(), optimize=True), _stock(name)
    reached = sqnr(reference["Y"], stock["Y"])
    print(f"{name}: {reached:.1f} dB")
    assert reached > (5.0 if any(b in name for b in ("4 bits", "6 bits", "8 bits", "first")) else 20.0)
    assert np.array_equal(_stock("nothing")["Y"], stock["Y"]) == (name in HARMLESS)


@pytest.mark.few(1)
@in_turn(
    name=[n for n, (o, form) in OVERRIDES.items() if form == "fused" and o not in TABLES.values()],
    way=[INTEGER, UNROLLED],
)
def test_same_bits(name: str, way: str) -> None:
    """Formats that `tests/laws` does not cover have the same bits everywhere."""
    assert_same_bits(_stock(name), run_model(_fused(name).proto, CASE.feeds(), native=True, optimize=False), NATIVE)
    proto = rnnqc.lower(CASE.model(), form="integer", unroll=way == UNROLLED, overrides=OVERRIDES[name][0]).proto
    assert_same_bits(_stock(name), run_model(proto, CASE.feeds(), optimize=way == UNROLLED), way)


@pytest.mark.slow
def test_every_point_can_be_turned_off_alone() -> None:
    """Turning off one point leaves the others as they were."""
    base = rnnqc.lower(CASE.model(), form="qcdq")
    cell = next(iter(base.model.cells.values()))
    assert set(cell.points) == {p.name for p in LSTM_POINTS}
    for point in LSTM_POINTS:
        changed = rnnqc.lower(CASE.model(), form="qcdq", overrides=[f"*.forward.{point.name}.bits=none"])
        for name, other in changed.model.cells.items():
            differing = {p for p, settings in other.points.items() if settings != base.model.cells[name].points[p]}
            quantized = base.model.cells[name].points[point.name].bits is not None
            assert differing == ({point.name} if name.endswith(".forward") and quantized else set()), point.name


@in_turn(placement=["main", "if", "loop", "scan", "function"], opset=[17, 13, 20, 22])
def test_qcdq_form_loads_wherever_the_layer_is(placement: Placement, opset: int) -> None:
    """With all optimizations of onnxruntime: some look for the constants of a DequantizeLinear in its own graph."""
    case = RecurrentCase(T=3, B=2, I=8, H=16, placement=placement, opset=opset)
    model, feeds = case.model(), case.feeds()
    reference = run_model(model, feeds, optimize=True)
    found = run_model(rnnqc.lower(model, form="qcdq").proto, feeds, optimize=True)
    for name, value in reference.items():
        assert sqnr(value, found[name]) > 30.0, name
