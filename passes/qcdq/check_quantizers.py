"""Compares the constants of written quantizers with the formats that their points have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.formats.format import Format
from rnnqc.ir import Model, constant_array, display_name
from rnnqc.passes.cells.float_step import ACCUMULATORS
from rnnqc.passes.constant_checks import Findings
from rnnqc.passes.formats.point_format import encoding_of
from rnnqc.passes.qcdq.emit_qcdq import ALIASES, LARGEST_ROW, SMALLEST_ROW
from rnnqc.passes.qcdq.written_quantizers import WrittenQuantizer, written_quantizers

Points = Mapping[str, Mapping[str, Any]]
FLOAT: Mapping[str, Any] = {"bits": None}
WEIGHTS = {"W.weight": "W", "R.weight": "R"}
_OF_ROWS = "a row"


def check_quantizers(findings: Findings, model: Model, cell: Cell, points: Points) -> dict[str, list[WrittenQuantizer]]:
    """Compares every quantizer of activations of a cell with its point; returns all that are written.

    Args:
        findings: What is found goes there.
        model: With the cell in form qcdq.
        cell: The cell.
        points: The formats it has to have.
    """
    written = written_quantizers(model, cell)
    for name, quantizers in written.items():
        if name in WEIGHTS:
            continue
        point = points.get(ALIASES.get(name, name), FLOAT)
        for quantizer in quantizers:
            what = f"{cell.name}.{name}"
            if name in ACCUMULATORS:
                _check_accumulator(findings, what, cell, quantizer, points)
            elif point["bits"] is None or "mode" not in point:
                findings.word(f"quantizer of {what}", "there", "not there", node=display_name(quantizer.last))
            elif point["mode"] == "dynamic-row":
                _check_rows(findings, what, quantizer, point)
            else:
                check_static(findings, what, quantizer, encoding_of(point))
    for name, point in points.items():
        quantized = point["bits"] is not None and "mode" in point and name != "bias"
        if quantized and name not in written:
            findings.word(f"quantizer of {cell.name}.{name}", "missing", "there", node=cell.name)
    return written


def check_static(findings: Findings, what: str, quantizer: WrittenQuantizer, e: Format) -> None:
    """Compares a quantizer with one scale: scales, zero points, limits and rounding."""
    nodes, last = quantizer.nodes, quantizer.last
    scale, zero = np.asarray(e.scale, np.float32), float(e.zero_point)
    findings.word(f"rounding of {what}", _value(quantizer.rounding), e.rounding.value, node=display_name(last))
    findings.input(f"scale of {what}", last, 1, scale)
    clip = nodes.get("clipped")
    if quantizer.has_operators:
        findings.input(f"scale of {what}", nodes["codes"], 1, scale)
        for node in (nodes["codes"], last):
            findings.input(f"zero point of {what}", node, 2, zero)
        kind = getattr(constant_array(nodes["codes"].inputs[2]), "dtype", None)
        findings.word(f"type of the codes of {what}", str(kind), str(e.dtype), node=display_name(last))
        limits = np.iinfo(e.dtype)
        needed, shift = (e.minimum, e.maximum) != (limits.min, limits.max), 0.0
    else:
        if "units" not in nodes:
            findings.word(f"quantizer of {what}", f"a {last.op}", "a quantizer", node=display_name(last))
            return
        findings.input(f"scale of {what}", nodes["units"], 1, scale)
        needed, shift = True, zero
    if clip is not None:
        for position, limit in ((1, e.minimum), (2, e.maximum)):
            findings.input(f"limit of the codes of {what}", clip, position, limit - shift)
    elif needed:
        findings.word(f"limits of the codes of {what}", "missing", "there", node=display_name(last))


def _value(rounding: Any) -> str:
    return "none" if rounding is None else str(rounding.value)


def _check_rows(findings: Findings, what: str, quantizer: WrittenQuantizer, point: Mapping[str, Any]) -> None:
    """Compares a quantizer with a scale for each row; that of the input has a zero point for each row, too."""
    nodes, bits = quantizer.nodes, point["bits"]
    if quantizer.point == "input":
        top = 2.0**bits - 1
        wanted: list[tuple[str, tuple[float, ...]]] = [
            ("low", (-LARGEST_ROW, 0.0)), ("high", (0.0, LARGEST_ROW)), ("limited", (SMALLEST_ROW,)), ("scale", (top,)),
            ("zero_point", (top,)), ("codes", (0.0, top)),
        ]  # fmt: skip
    else:
        positive = 2.0 ** (bits - 1) - 1
        low = (-positive - 1 if point["signed"] else 0.0) - point["zero_point"]
        high = low + 2 * positive + 1
        clips = low > -positive or high < positive
        wanted = [("limited", (SMALLEST_ROW, LARGEST_ROW)), ("scale", (positive,))]
        wanted += [("clipped", (low, high))] if clips else []
    for name, constants in wanted:
        if name not in nodes:
            findings.word(f"{name} of {_OF_ROWS} of {what}", "missing", "there", node=display_name(quantizer.last))
            continue
        for position, value in enumerate(constants, 1):
            findings.input(f"{name} of {_OF_ROWS} of {what}", nodes[name], position, np.float32(value))


def _check_accumulator(findings: Findings, what: str, cell: Cell, quantizer: WrittenQuantizer, points: Points) -> None:
    """Compares the limits of a sum of products with those of its bits, in units of the product of both scales."""
    bits = points.get("accumulator", FLOAT)["bits"]
    if bits is None:
        findings.word(f"limits of {what}", "there", "not there", node=display_name(quantizer.last))
        return
    of_x, of_h, of_reset = ACCUMULATORS
    code, weight = {
        of_x: ("input", "W.weight"), of_h: ("hidden", "R.weight"), of_reset: (RESET_HIDDEN, "R.weight"),
    }[quantizer.point]  # fmt: skip
    scales = np.asarray(points[weight]["scale"], np.float64)
    if len(scales) > 1 and weight == "R.weight" and "scale" in points.get(RESET_HIDDEN, FLOAT):
        split = cell.candidate_columns.start
        scales = scales[split:] if quantizer.point == of_reset else scales[:split]
    unit = scales * points[code]["scale"][0]
    half = 2.0 ** (bits - 1)
    findings.input(f"upper limit of {what}", quantizer.nodes["below"], 1, (unit * (half - 1)).astype(np.float32))
    findings.input(f"lower limit of {what}", quantizer.nodes["limited"], 1, (unit * -half).astype(np.float32))
