"""Runs every quantizer of a model separately, on its quantized values, between them and beyond their limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.errors import CompileError
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import EMBEDDED, FLOAT, ROWS, PointFormat
from rnnqc.passes.cells.float_step import ACCUMULATORS
from rnnqc.passes.constant_checks import Findings
from rnnqc.passes.graph.flat.flat_model import FlatModel
from rnnqc.passes.graph.point_names import plain_name
from rnnqc.passes.qcdq.emit_qcdq import ALIASES

Array = npt.NDArray[Any]
Points = Mapping[str, PointFormat]
WEIGHTS = {"W.weight": "W", "R.weight": "R"}
QUANTIZED, LIMITED = "quantized", "limited"
_FIRST = {"codes": "QuantizeLinear", "units": "Div", "below": "Min"}
"""The first operator of a quantizer, by the last part of the name of its result."""
_NARROW = 8
_FRACTIONS = (0.0, 0.05, 0.45, 0.5, 0.55, 0.95)
_ROUNDINGS = 2.0**-21
"""The rounding error of float32 on top of half a step of a row, as a share of the number of steps."""


@dataclass(frozen=True)
class WrittenQuantizer:
    """One quantizer in a flat model.

    Attributes:
        point: Its quantization point, or its name in emit_step.
        source: Name of its input.
        made: Name of its output.
    """

    point: str
    source: str
    made: str


def written_quantizers(flat: FlatModel, cell: str) -> Iterator[WrittenQuantizer]:
    """Yields the quantizers whose values have names below that of a cell, except those of weights."""
    for name, node in list(flat.makers.items()):
        if not node.name.startswith(f"{cell}/"):
            continue
        point, _, what = plain_name(node.name, cell).rpartition(".")
        ends = what == QUANTIZED or (what == LIMITED and point in ACCUMULATORS)
        first = first_of(flat, cell, point, name) if ends and point not in WEIGHTS else None
        if first is not None:
            yield WrittenQuantizer(point, first.input[0], name)


def first_of(flat: FlatModel, cell: str, point: str, made: str) -> onnx.NodeProto | None:
    """Returns the first node of the quantizer that computes a value."""
    stack, seen = [made], set[str]()
    while stack:
        name = stack.pop()
        node = flat.makers.get(name)
        short = plain_name(node.name, cell) if node is not None else ""
        if node is None or name in seen or not short.startswith(f"{point}."):
            continue
        seen.add(name)
        if _FIRST.get(short.removeprefix(f"{point}.")) == node.op_type:
            return node
        stack += node.input
    return None


def check_quantizers(findings: Findings, flat: FlatModel, cell: Cell, points: Points) -> None:
    """Compares every quantizer of a cell's activations with the format of its point."""
    written: set[str] = set()
    for quantizer in written_quantizers(flat, cell.name):
        name, what = quantizer.point, f"{cell.name}.{quantizer.point}"
        point = points.get(ALIASES.get(name, name), FLOAT)
        written.add(name)
        if name in ACCUMULATORS:
            _check_accumulator(findings, flat, quantizer, cell, points)
        elif not point.is_quantized or point.mode == EMBEDDED:
            findings.word(f"quantizer of {what}", "there", "not there", node=quantizer.made)
        elif point.mode == ROWS:
            _check_rows(findings, flat, quantizer, what, point)
        else:
            check_static(findings, flat, quantizer, what, point.complete)
    for name, point in points.items():
        if point.is_quantized and point.mode != EMBEDDED and name not in ("bias", *WEIGHTS) and name not in written:
            findings.word(f"quantizer of {cell.name}.{name}", "missing", "there", node=cell.name)


def check_static(findings: Findings, flat: FlatModel, quantizer: WrittenQuantizer, what: str, e: Format) -> None:
    """Compares a quantizer with its format, bit for bit."""
    values = _values(e)
    _compare(findings, flat, quantizer, what, values, e.dequantize(e.quantize(values)), np.zeros(values.shape))


def _values(e: Format) -> Array:
    """Float32 values `[N,1]` at every quantized value, between them, and beyond the limits."""
    low, high = e.minimum - e.zero_point - 3, e.maximum - e.zero_point + 4
    if e.bits <= _NARROW:
        units = np.add.outer(np.arange(low, high), _FRACTIONS).ravel()
    else:
        rng, ends = np.random.default_rng(0), np.arange(-64, 64)
        drawn = rng.integers(low, high, 4096)
        units = np.concatenate([drawn + rng.choice(_FRACTIONS, 4096), low + ends * 0.5, high + ends * 0.5])
    units = np.concatenate([units, [64.0 * low, 64.0 * high, 0.0, -0.0]])
    return (units * float(e.scale[0])).astype(np.float32)[:, np.newaxis]


def _check_rows(
    findings: Findings, flat: FlatModel, quantizer: WrittenQuantizer, what: str, point: PointFormat
) -> None:
    """Checks that a quantizer with per-row dynamic scales is never off by more than half an LSB of its row."""
    rng, integers = np.random.default_rng(0), point.integers
    bits = integers.bits
    values = (rng.normal(0, 1, (256, 12)) * 10.0 ** rng.uniform(-3, 3, (256, 1))).astype(np.float32)
    values[:64], values[64:96], values[-1] = np.abs(values[:64]), -np.abs(values[64:96]), 0.0
    limited = values.astype(np.float64)
    if quantizer.point == "input":
        extent = np.maximum(limited.max(axis=1), 0.0) - np.minimum(limited.min(axis=1), 0.0)
        steps = (extent / (2.0**bits - 1))[:, np.newaxis]
    else:
        positive = 2.0 ** (bits - 1) - 1
        steps = (np.abs(limited).max(axis=1) / positive)[:, np.newaxis]
        low = (-positive - 1 if integers.signed else 0.0) - integers.zero_point
        limited = np.clip(limited, low * steps, (low + 2 * positive + 1) * steps)
    _compare(
        findings,
        flat,
        quantizer,
        f"a row of {what}",
        values,
        limited,
        (0.5 + _ROUNDINGS * 2.0**bits) * steps + 0 * values,
    )


def _check_accumulator(
    findings: Findings, flat: FlatModel, quantizer: WrittenQuantizer, cell: Cell, points: Points
) -> None:
    """Compares the limits of an accumulator with those of its bits, in units of the product of both scales."""
    what, bits = f"{cell.name}.{quantizer.point}", points.get("accumulator", FLOAT).bits
    if bits is None:
        findings.word(f"limits of {what}", "there", "not there", node=quantizer.made)
        return
    of_x, of_h, of_reset = ACCUMULATORS
    code, weight = {
        of_x: ("input", "W.weight"), of_h: ("hidden", "R.weight"), of_reset: (RESET_HIDDEN, "R.weight"),
    }[quantizer.point]  # fmt: skip
    scales = np.asarray(points[weight].scale, np.float64)
    if len(scales) > 1 and weight == "R.weight" and points.get(RESET_HIDDEN, FLOAT).scale:
        split = cell.candidate_columns.start
        scales = scales[split:] if quantizer.point == of_reset else scales[:split]
    unit, half = scales * points[code].scale[0], 2.0 ** (bits - 1)
    share = np.linspace(-1.5, 1.5, 61)[:, np.newaxis]
    values = (share * half * unit).astype(np.float32)
    expected = np.clip(values, (unit * -half).astype(np.float32), (unit * (half - 1)).astype(np.float32))
    _compare(findings, flat, quantizer, what, values, expected, np.zeros(values.shape))


def _compare(
    findings: Findings, flat: FlatModel, quantizer: WrittenQuantizer, what: str, values: Array, expected: Array,
    allowed: Array,
) -> None:  # fmt: skip
    try:
        made = flat.run({quantizer.source: values}, [quantizer.made])[quantizer.made].astype(np.float64)
    except CompileError as error:
        findings.word(f"quantizer of {what}", error.message, "one that runs", node=quantizer.made)
        return
    near = np.where(np.abs(made - expected) <= allowed, expected, made)
    findings.array(f"quantized values of {what}", near, expected, node=quantizer.made)
