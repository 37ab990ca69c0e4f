"""Compares weights and biases in few bits with the floats they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.data.statistics import PointStatistics
from rnnqc.formats.compensation import bias_correction, squared_error
from rnnqc.formats.format import Format
from rnnqc.formats.format_request import MAX_CODE
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.weights import quantize_groups, quantize_matrix
from rnnqc.ir import Value, constant_array, display_name
from rnnqc.passes.constant_checks import Findings, WrongConstant
from rnnqc.passes.formats.point_format import encoding_of
from rnnqc.passes.formats.quantized_parameters import MULTIPLIED, weight_codes
from rnnqc.passes.qcdq.written_quantizers import WrittenQuantizer
from rnnqc.recipes.recipe import Settings

Array = npt.NDArray[Any]
Point = Mapping[str, Any]
Seen = Mapping[str, PointStatistics]
NEAREST = (Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.HALF_UP, Rounding.HALF_EVEN_UP)
AS_GOOD = 1 + 1e-9
"""Compensated codes that are made again may differ, if their squared error is no more than so many times that."""
_SHARED = 1e-4


def check_weight(
    findings: Findings, what: str, written: WrittenQuantizer, point: Point, weights: Array
) -> Array | None:
    """Compares scales, zero points and codes of a weight matrix; returns the codes `[K,n]`.

    Args:
        findings: What is found goes there.
        what: How messages call the point.
        written: Its nodes: DequantizeLinear, or Cast, Sub, Mul.
        point: Its format.
        weights: The floats `[K,n]`.
    """
    e, last, node = encoding_of(point), written.last, display_name(written.last)
    findings.input(f"scale of {what}", last, 1, np.asarray(e.scale, np.float32))
    zeros = np.asarray(e.zero_points or e.zero_point)
    codes: Value = last.inputs[0]
    if last.op == "DequantizeLinear":
        findings.input(f"zero point of {what}", last, 2, zeros)
    elif zeros.any():
        subtracted = codes.inputs[0] if codes.inputs else last
        findings.word(f"zero point of {what}", subtracted.op, "Sub", node=node)
        cast = subtracted.inputs[1].inputs[0] if subtracted.op == "Sub" and subtracted.inputs[1].inputs else None
        findings.array(f"zero point of {what}", constant_array(cast.inputs[0]) if cast else None, zeros, node=node)
    clip = written.nodes.get("clipped")
    for position, limit in ((1, e.minimum), (2, e.maximum)) if clip is not None else ():
        findings.input(f"limit of the codes of {what}", clip, position, limit)
    while constant_array(codes) is None and codes.inputs and codes.inputs[0].inputs:
        codes = codes.inputs[0].inputs[0]
    held = constant_array(codes)
    if held is None or held.shape != weights.shape:
        findings.array(f"codes of {what}", held, weights, node=node, constant=codes.name)
        return None
    findings.word(f"type of the codes of {what}", str(held.dtype), str(e.dtype), node=node)
    return held


def check_codes(
    findings: Findings, what: str, codes: Array, point: Point, weights: Array, moment: Array | None, columns: slice
) -> None:
    """Compares the codes of some columns of a weight matrix with its floats: the nearest ones, or compensated ones."""
    e, part = encoding_of(point), weights[:, columns]
    some = dict(point)
    if e.axis is not None:
        some |= {k: point[k][columns] for k in ("scale", "zero_points") if k in point}
    own = encoding_of(some)
    plain = _plain(own, point, part)
    if not point.get("compensation") or moment is None:
        findings.array(f"codes of {what}", codes[:, columns], plain, node=what)
        _check_half_steps(findings, what, own, point, codes[:, columns], part)
        return
    findings.compared += 1
    again = weight_codes(PointFormat.from_dict(some), part, moment)
    own_codes = codes[:, columns]
    worse = np.asarray((own_codes != again).any(axis=0))
    if worse.any():  # the order of a sum may decide between two that are as good
        made = own.dequantize(own_codes).astype(np.float64) - part
        best = own.dequantize(again).astype(np.float64) - part
        worse &= squared_error(made, moment) > squared_error(best, moment) * AS_GOOD
    if worse.any():
        findings.array(f"codes of {what}", np.where(worse, own_codes, again), again, node=what)


def _plain(e: Format, point: Point, weights: Array) -> Array:
    if point.get("group_size"):
        scale, rounding = np.asarray(e.scale, np.float32), Rounding(point["rounding"])
        return quantize_groups(weights, scale, point["bits"], point["group_size"], rounding)
    return quantize_matrix(e, weights)


def _check_half_steps(findings: Findings, what: str, e: Format, point: Point, codes: Array, weights: Array) -> None:
    """No code is further from its weight than half a step, unless the format ends there."""
    if point.get("group_size") or e.bits == 1:
        return
    step, zero = e.scale_array(2).astype(np.float64), e.zero_point_array(2)
    low, high = (e.minimum - zero) * step, (e.maximum - zero) * step
    share = (0.5 if e.rounding in NEAREST else 1.0) + _SHARED
    off = np.abs((codes.astype(np.int64) - zero) * step - np.clip(weights, low, high)) / step
    findings.compared += 1
    if (off > share).any():
        index = tuple(int(k) for k in np.unravel_index(int(np.argmax(off)), off.shape))
        text = f"distance in steps of {what} from its float"
        findings.wrong.append(WrongConstant(text, "", what, index, float(off[index]), share, int((off > share).sum())))


def check_reach(findings: Findings, what: str, s: Settings, point: Point, weights: Array, gates: int) -> None:
    """By the rule min-max of symmetric signed codes, the largest weight of a channel has the largest code.

    What it compares is the rule itself, without the functions that make scales.
    """
    special = ("scale", "group_size", "wide_channels", "limit", "share", "pow2", "scale_bits", "max_fix_position")
    usual = s.get("range", "min-max") == "min-max" and s.get("symmetric", True) and s.get("signed", True)
    if not usual or any(s.get(k) for k in special) or s.get("zero_point") or point.get("shift_limits"):
        return
    if s.get("levels", MAX_CODE) != MAX_CODE or point["bits"] < 2:
        return
    top = 2.0 ** (point["bits"] - 1) - 1
    largest = np.abs(weights).max(axis=0).astype(np.float64)
    scale = np.asarray(point["scale"], np.float64)
    if s.get("granularity") == "per-gate":
        largest = np.repeat(largest.reshape(gates, -1).max(axis=1), len(largest) // gates)
    if len(scale) == 1:
        largest = largest.max(keepdims=True)
    tiny = largest < 2.0**-100
    findings.array(f"scale of {what}", scale, np.where(tiny, 1.0, largest / top), node=what, ulps=1.0)


def check_biases(
    findings: Findings,
    cell: Cell,
    points: Mapping[str, Point],
    before: Mapping[str, Array],
    after: Mapping[str, Array | None],
    codes: Mapping[str, Array],
    seen: Seen,
) -> None:
    """Compares B and hidden_bias with what they were, with what errors of the weights are made up for, on their grid.

    Args:
        findings: What is found goes there.
        cell: The cell.
        points: Its formats.
        before: W, R, B and hidden_bias as floats.
        after: B and hidden_bias as they are now.
        codes: Of W and R.
        seen: Statistics by the name of the point, or nothing.
    """
    wanted = {k: before[k].astype(np.float64) for k in ("B", "hidden_bias") if k in before}
    corrected = False
    candidate = cell.candidate_columns
    for key, source in MULTIPLIED.items():
        point = points[f"{key}.weight"]
        if not point.get("bias_correction") or f"{cell.name}.{source}" not in seen or key not in codes:
            continue
        error = encoding_of(point).dequantize(codes[key]) - before[key]
        correction = _correction(error, seen[f"{cell.name}.{source}"])
        other = seen.get(f"{cell.name}.{RESET_HIDDEN}")
        if key == "R" and other is not None:
            correction[candidate] = _correction(error[:, candidate], other)
        if key == "R" and "hidden_bias" in wanted:
            wanted["hidden_bias"] = wanted["hidden_bias"] + correction[candidate]
            correction[candidate] = 0.0
        wanted["B"] = wanted["B"] + correction
        corrected = True
    for key, value in wanted.items():
        what = f"{'bias' if key == 'B' else key} of {cell.name}"
        name = cell.B if key == "B" else str(cell.hidden_bias)
        _check_bias(findings, what, name, cell, points["bias"], after[key], value, corrected, key != "B")


def _check_bias(
    findings: Findings, what: str, name: str, cell: Cell, point: Point, found: Array | None, wanted: Array,
    corrected: bool, of_candidate: bool,
) -> None:  # fmt: skip
    tolerance = 1e-5 * np.maximum(1e-3, np.abs(wanted)) if corrected else np.spacing(np.abs(wanted).astype(np.float32))
    if point["bits"] is None:
        if not corrected:
            findings.array(what, found, wanted, node=cell.name, constant=name)
            return
        step: Array = np.zeros(wanted.shape)
        low, high, share = np.full(wanted.shape, -np.inf), np.full(wanted.shape, np.inf), 0.0
    else:
        e = encoding_of(point)
        scale = np.asarray(e.scale, np.float64)
        own = scale[cell.candidate_columns] if of_candidate and len(scale) > 1 else scale
        step = np.broadcast_to(own, wanted.shape)
        low, high = (e.minimum - e.zero_point) * step, (e.maximum - e.zero_point) * step
        share = (0.5 if e.rounding in NEAREST else 1.0) + _SHARED
    findings.compared += 1
    if found is None or found.shape != wanted.shape:
        findings.array(what, found, wanted, node=cell.name, constant=name)
        return
    off = np.abs(found - np.clip(wanted, low, high)) - share * step - tolerance
    if point["bits"] is not None:  # whole multiples of a step
        rounded = np.spacing(np.abs(found)) / step
        off = np.maximum(off, np.abs(found / step - np.rint(found / step)) - 1e-3 - rounded)
    if (off > 0).any():
        k = int(np.argmax(off))
        wrong = WrongConstant(what, name, cell.name, (k,), float(found[k]), float(wanted[k]), int((off > 0).sum()))
        findings.wrong.append(wrong)


def _correction(error: Array, seen: PointStatistics) -> Array:
    if seen.channel_mean is None:
        return np.zeros(error.shape[1])
    return np.asarray(bias_correction(error, seen.channel_mean), np.float64)
