"""Converts a recipe's settings to the format of a quantization point."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import RELU_TABLE, TABLE
from rnnqc.cells.base import CELL, FORGET, OUTPUT, Cell
from rnnqc.errors import CompileError
from rnnqc.formats.format import Format, FormatError, IntegerFormat
from rnnqc.formats.packing import NIBBLE_BITS, PACKED_BITS
from rnnqc.formats.point_format import STATIC, WIDE_BITS, PointFormat
from rnnqc.formats.scales import multiplier_and_shift
from rnnqc.formats.weights import group_scales, mixed_scales
from rnnqc.recipes.keys import Settings, require, rounding_of

CELL_LIMIT = 2.0
INDEX_BITS = 16
"""Widest values that may index a table; of the one that indexes tanh of a cell state the width."""


def integer_format(s: Settings) -> IntegerFormat:
    """Returns the requested format, without its scale.

    Raises:
        FormatError: The settings are invalid.
    """
    signed = bool(s.get("signed", True))
    zero_point = int(s.get("zero_point", 0 if signed else 2 ** (s["bits"] - 1)))
    if s["bits"] == 1 and not signed:
        raise FormatError(
            f"bits = 1 with signed = false, zero_point = {zero_point}.",
            supported="binary values -1 and +1: signed, zero_point = 0",
        )
    return IntegerFormat(
        s["bits"],
        signed,
        zero_point=zero_point,
        narrow=bool(s.get("narrow", False)),
        rounding=rounding_of(s),
    )


@contextlib.contextmanager
def naming_point(path: str) -> Iterator[None]:
    """Prefixes the messages of errors inside with the quantization point."""
    try:
        yield
    except CompileError as error:
        if path not in error.message:
            error.message = f"Quantization point {path!r}: {error.message}"
        if isinstance(error, FormatError) and not error.action:
            error.action = f"--set '{path}...'"
        error.args = (str(error),)
        raise


def with_scale(format_: IntegerFormat, scale: Sequence[float], **others: Any) -> Format:
    """Returns a complete format: `format_` with scales and, for per-channel ones, `axis` and `zero_points`."""
    values = {f.name: getattr(format_, f.name) for f in fields(IntegerFormat)}
    return Format(scale=tuple(scale), **{**values, **others})


def stored_scales(s: Settings, scale: npt.ArrayLike) -> list[float]:
    """Returns scales in their stored precision: float32, of the form `A / 2**n` if the recipe requests that."""
    exact = np.atleast_1d(np.asarray(scale, np.float64))
    if s.get("scale_bits"):
        multiplier, shift = multiplier_and_shift(exact, s["scale_bits"])
        exact = np.ldexp(multiplier.astype(np.float64), -shift)
    return [float(v) for v in exact.astype(np.float32)]


def stored_multiplier(exact: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Returns products of scales in stored precision: float32, never zero, since 0 times an infinite scale is NaN."""
    return np.maximum(exact, float(np.finfo(np.float32).tiny)).astype(np.float32)


def static_format(s: Settings, scale: float) -> Format:
    """Returns the requested format, with one scale.

    Raises:
        FormatError: The settings are invalid.
    """
    return with_scale(integer_format(s), stored_scales(s, scale))


def weight_point(
    s: Settings,
    array: npt.NDArray[np.float32],
    sensitivity: npt.NDArray[np.float64],
    path: str,
    scales: tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]] | None,
) -> PointFormat:
    """Returns the format of a weight matrix.

    Args:
        s: Its settings in the recipe.
        array: The weights `[K,n]`.
        sensitivity: Factor of the error of each channel, `[n]`.
        path: Name of the quantization point, for messages.
        scales: Scales and zero points, `[n]` or `[1]`; None if the scale is set, or belongs to groups.

    Raises:
        CompileError: Settings contradict each other, or do not result in a format.
    """
    per_tensor = s.get("granularity", "per-channel") == "per-tensor"
    group_size, wide = s.get("group_size"), s.get("wide_channels", 0.0)
    _check_weight(s, path)
    zero_points = np.zeros(1, np.int64)
    if "scale" in s:
        scale = given_scales(s, 1 if per_tensor else array.shape[1], path)
        zero_points = np.atleast_1d(np.asarray(s.get("zero_point", 0), np.int64))
    elif scales is not None:
        scale, zero_points = scales
    else:
        scale = group_scales(array, s["bits"], s.get("codebook"))
    given = s.get("zero_point", 0)
    zero_point = int(zero_points[0]) if per_tensor else 0 if isinstance(given, list) else given
    own = () if per_tensor or len(zero_points) == 1 or not zero_points.any() else tuple(int(v) for v in zero_points)
    asked = integer_format({"signed": True, **s, "zero_point": zero_point})
    made = with_scale(asked, stored_scales(s, scale), axis=None if per_tensor else 1, zero_points=own)
    if wide and not group_size:
        made = replace(made, scale=tuple(stored_scales(s, mixed_scales(array, made, WIDE_BITS, wide, sensitivity))))
    return PointFormat(
        s["bits"],
        replace(made, bits=WIDE_BITS) if group_size or wide else made,
        STATIC,
        group_size=group_size or 0,
        codebook=s.get("codebook"),
        wide_channels=wide or 0.0,
        compensation=bool(s.get("compensation")),
        bias_correction=bool(s.get("bias_correction")),
        shift_limits=bool(s.get("shift_limits")),
    )


def given_scales(s: Settings, count: int, path: str) -> npt.NDArray[np.float32]:
    """Returns the scales that a rule sets, `[count]` or one for all; raises CompileError for other counts."""
    given = np.atleast_1d(np.asarray(s["scale"], np.float32))
    zeros = s.get("zero_point", 0)
    for key, found in (("scale", len(given)), ("zero_point", len(zeros) if isinstance(zeros, list) else 1)):
        if found not in (1, count):
            raise CompileError(
                f"Quantization point {path!r}: {key} is a list of {found} numbers.",
                supported=f"one number, or a list of {count}, one for each channel",
                action="correct the list",
            )
    return np.broadcast_to(given, count).copy()


def _check_weight(s: Settings, path: str) -> None:
    """Raises CompileError if settings of a weight contradict each other."""

    def contradiction(key: str, other: str, supported: str) -> CompileError:
        value = str(s.get(other)).lower()
        return CompileError(
            f"Quantization point {path!r}: {key} = {s[key]} with {other} = {value}.",
            supported=supported,
            action=f"--set '{path}.{other}=...' or '{path}.{key}=...'",
        )

    per_tensor = s.get("granularity", "per-channel") != "per-channel"
    if s.get("codebook"):
        if s["bits"] != NIBBLE_BITS:
            raise contradiction("codebook", "bits", "codebooks of weights of 4 bits")
        if not s.get("group_size"):
            raise contradiction("codebook", "group_size", "codebooks of weights in groups")
    if s.get("group_size"):
        if s["bits"] > PACKED_BITS:
            raise contradiction("group_size", "bits", "groups of weights of 2 to 6 bits")
        if per_tensor:
            raise contradiction("group_size", "granularity", "groups in channels, granularity = per-channel")
        if not s.get("narrow", False) or not s.get("signed", True) or not s.get("symmetric", True):
            raise contradiction("group_size", "narrow", "symmetric weights in groups, narrow = true")
        if s.get("limit"):
            raise contradiction("group_size", "limit", "limits of weights without groups")
        if s.get("range", "min-max") != "min-max":
            raise contradiction("group_size", "range", "range = min-max")
        for key in ("pow2", "share"):
            if s.get(key):
                raise contradiction("group_size", key, "scales of groups, which follow from the weights alone")
    elif s.get("wide_channels"):
        if s["bits"] >= WIDE_BITS:
            raise contradiction("wide_channels", "bits", "wide channels of 8 bits among others of 2 to 7")
        if per_tensor:
            raise contradiction("wide_channels", "granularity", "granularity = per-channel")
        if "scale" in s:
            raise contradiction("wide_channels", "scale", "scales that follow from the weights")
        for key, wanted in (("signed", True), ("symmetric", True), ("zero_point", 0)):
            if s.get(key, wanted) != wanted:
                raise contradiction("wide_channels", key, "signed symmetric values around 0")


def hidden_bound(cell: Cell) -> float | None:
    """Returns the largest magnitude of hidden states computed by steps, from the activations; None if unbounded.

    Initial states may exceed it: the part beyond is multiplied separately.
    """
    output = cell.output_activation
    if output is not None:
        o, h = cell.gate_activation(OUTPUT).bounds, output.bounds
        return None if o is None or h is None else max(map(abs, o)) * max(map(abs, h))
    made = cell.gate_activation(len(cell.type.gates) - 1).bounds
    if made is None or not keeps_hidden_bounded(cell):
        return None
    return max(map(abs, made))


def keeps_hidden_bounded(cell: Cell) -> bool:
    """Whether the new hidden state lies between the old one and the candidate: the kept share is 0 .. 1."""
    if cell.type.update is None:
        return not cell.type.reads_hidden
    share = cell.gate_activation(cell.type.update).bounds
    return share is not None and share[0] >= 0.0 and share[1] <= 1.0


def accumulator_scale(cell: Cell, gate: int, s: Settings) -> float | None:
    """Returns the scale that covers the interval on which a gate's activation is not constant; None without one."""
    activation = cell.gate_activation(gate)
    if activation.kind != TABLE:
        return None
    return float(s.get("scale", activation.limit / 2 ** (s["bits"] - 1)))


def cell_state_is_float(cell: Cell, s: Settings, path: str) -> bool:
    """Whether mode "bounded" leaves the cell state of `cell` in float."""
    if s.get("mode") != "bounded":
        return False
    limit = require(s, "scale", path) * 2 ** (min(s["bits"], INDEX_BITS) - 1)
    return not cell_is_bounded(cell, limit)


def cell_is_bounded(cell: Cell, limit: float) -> bool:
    """Whether the state can be an integer: |f| <= 1, small i * g, an output activation constant beyond `limit`."""
    f, g, output = cell.gate_activation(FORGET).bounds, cell.gate_activation(CELL).bounds, cell.activations[2]
    if cell.gate_activation(CELL).kind != TABLE:  # only a table can hold values in LSB of the cell state
        return False
    if f is None or g is None or max(map(abs, f)) > 1.0 or max(map(abs, g)) * max(map(abs, f)) > CELL_LIMIT:
        return False
    return output.kind == TABLE and output.limit <= limit


def stays_between_bounds(cell: Cell) -> bool:
    """Whether the state of a cell never exceeds `STATE_LIMIT`.

    The hidden state of a GRU lies between the candidate and the old state. A cell state of 2**60 keeps every bit when
    |i * g| of a few LSB is added, and |f| <= 1.
    """
    if cell.type.cell_state:
        return cell_is_bounded(cell, math.inf)
    candidate = cell.gate_activation(len(cell.type.gates) - 1)
    return keeps_hidden_bounded(cell) and (candidate.bounds is not None or candidate.kind in ("Relu", RELU_TABLE))
