"""The operands of a Brevitas cell in the arithmetic "grid32" (no graph here).

Elementwise operations are Brevitas' own, in float32 and in its order. Integer matmuls are exact here, where Brevitas
multiplies float32 matrices in an unspecified order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import Activation
from rnnqc.cells.fixed_point_numbers import FIXED_POINT32, QUANTIZERS, FixedPointNumbers, FixedPointQuantizer
from rnnqc.errors import NotHandled
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.formats.rounding import QONNX_ONLY
from rnnqc.passes.fold.fixed_point_tables import FixedPointTable, place
from rnnqc.passes.fold.fold_fixed_point import FoldedFixedPoint
from rnnqc.passes.formats.point_format import INDEX_BITS, stored_multiplier
from rnnqc.passes.graph.nodes.quant_operators import (
    ACTIVATIONS,
    GATES,
    WIDEST_WEIGHT,
    Parameter,
    QuantLstm,
    check_zero_point,
)

_BYTE_BITS = 8


def grid_of(
    name: str, quantizer: QonnxQuantizer, *, unsigned: bool = False, on_grid: bool = False
) -> FixedPointQuantizer:
    """Returns the quantizer in the operator's terms.

    Args:
        name: For messages.
        quantizer: A quantizer with one scale.
        unsigned: Offset the quantized values so that none is negative.
        on_grid: Its inputs are quantized already: any rounding to the nearest quantized value is correct.

    Raises:
        NotHandled: The operator does not support the quantizer.
    """
    check_one_scale(name, quantizer)
    if quantizer.bipolar:
        raise NotHandled(f"{name} is bipolar.", "1 signed bit", "use 2 bits or more, or unsigned values")
    if quantizer.rounding in QONNX_ONLY and not on_grid:
        found = f"rounding {quantizer.rounding.value}"
        raise NotHandled(f"{name} rounds as no cell of Brevitas does.", found, "use another rounding mode")
    if quantizer.bits > INDEX_BITS:
        raise NotHandled(f"{name} is too wide.", f"{quantizer.bits} bits", f"use up to {INDEX_BITS} bits")
    zero_point = int(quantizer.zero_point.ravel()[0])
    shift = -quantizer.minimum + int(quantizer.narrow) if unsigned and quantizer.signed else 0
    return FixedPointQuantizer(
        scale_of(quantizer),
        zero_point + shift,
        quantizer.minimum + shift,
        quantizer.maximum + shift,
        "half_even" if on_grid else quantizer.rounding.value,
        0 if on_grid else zero_point,
    )


def check_one_scale(name: str, quantizer: QonnxQuantizer) -> None:
    """Checks that activations have one scale, and a zero point that is an integer in their range.

    Raises:
        NotHandled: They do not.
    """
    if quantizer.scale.size != 1 or quantizer.zero_point.size != 1:
        found = f"scale of shape {list(quantizer.scale.shape)}"
        raise NotHandled(f"{name} has a scale for each channel.", found, "give activations one scale")
    check_zero_point(name, quantizer)


def scale_of(quantizer: QonnxQuantizer) -> float:
    """Returns the single scale of a quantizer."""
    return float(quantizer.scale.ravel()[0])


def fold_quant_lstm(node: QuantLstm, x: FixedPointQuantizer) -> FoldedFixedPoint:
    """Folds the scales of a cell.

    Args:
        node: The cell.
        x: The quantizer of its input.

    Raises:
        NotHandled: A format has no integer form.
    """
    q = node.quantizers
    for name, quantizer in q.items():
        check_one_scale(name, quantizer)
    accs = {g: grid_of(f"{g}_acc", q[f"{g}_acc"]) for g in GATES}
    if node.cifg:
        accs["forget"] = accs["input"]
    cell = grid_of("cell_state", q["cell_state"])
    hidden = grid_of("output", q["output"], unsigned=True)
    absent = [FixedPointQuantizer()] * len(GATES)
    grids = [x, hidden, *absent, *absent, *(accs[g] for g in GATES), cell, cell, cell]
    assert len(grids) == len(QUANTIZERS)
    tables: list[FixedPointTable] = []
    offsets = [place(tables, _gate_table(node, gate, accs[gate])) for gate in GATES]
    numbers = FixedPointNumbers.of(
        "static",
        grids,
        gate_table_offset=offsets,
        one=float(q["input_sigmoid"](np.ones((), np.float32))),
        rounded_output=True,
        arithmetic=FIXED_POINT32,
    )
    w, r = stored_weights("W", node.W), stored_weights("R", node.R)
    return FoldedFixedPoint(
        numbers=numbers,
        W=w.codes,
        R=r.codes,
        W_zero_point=w.zero_point if w.zero_point.any() else None,
        R_zero_point=r.zero_point if r.zero_point.any() else None,
        x_multiplier=stored_multiplier(w.scale * x.scale),
        h_multiplier=stored_multiplier(r.scale * hidden.scale),
        B=np.concatenate(node.bias),
        P=None,
        gate_tables=tuple(tables),
        cell_table=_table(ACTIVATIONS[2], q["hidden_state_tanh"], cell),
    )


def points_of(node: QuantLstm) -> dict[str, PointFormat]:
    """Returns the formats of the cell, for reports.

    Raises:
        NotHandled: A format cannot represent a quantizer.
    """
    q = node.quantizers
    points = {"input": q["output"].format(), "hidden": replace(q["output"].format(), rounded_output=True)}
    for key, parameters in (("W", node.W), ("R", node.R)):
        points[f"{key}.weight"] = _format_of(stored_weights(key, parameters), parameters)
    for gate in GATES:
        source = "input" if node.cifg and gate == "forget" else gate
        points[f"{gate}_gate.acc"] = q[f"{source}_acc"].format()
        activation = "cell_tanh" if gate == "cell" else f"{source}_sigmoid"
        points[f"{gate}_gate.activation"] = q[activation].format()
    for name in ("cell_state", "cell_state.kept", "cell_state.added"):
        points[name] = q["cell_state"].format()
    points["hidden.activation"] = q["hidden_state_tanh"].format()
    return points


def _format_of(stored: StoredWeights, parameters: Sequence[Parameter]) -> PointFormat:
    """The format of the quantized values as stored: unsigned ones may be offset to signed ones."""
    used = [p.quantizer for p in parameters if p.quantizer is not None]
    bits, signs, narrow = max(q.bits for q in used), {q.signed for q in used}, all(q.narrow for q in used)
    if stored.lowered or len(signs) > 1:
        bits, signs, narrow = stored.codes.dtype.itemsize * 8, {True}, False
    zeros = stored.zero_point.tolist()
    same = len(set(zeros)) == 1
    return used[0].format(
        bits=bits,
        signed=signs.pop(),
        narrow=narrow,
        scale=tuple(stored.scale.tolist()),
        axis=1,
        zero_point=zeros[0] if same else 0,
        zero_points=() if same else tuple(zeros),
    )


def _columns(parameters: Sequence[Parameter]) -> list[tuple[float, float]]:
    """Zero point and scale of every column, gate by gate."""
    found: list[tuple[float, float]] = []
    for p in parameters:
        assert p.quantizer is not None
        hidden = p.values.shape[0]
        arrays = (p.quantizer.zero_point, p.quantizer.scale)
        if any(a.size not in (1, hidden) or a.size != max(a.shape[:1] or (1,)) for a in arrays):
            shape = list(p.quantizer.scale.shape)
            raise NotHandled(
                "weights have scales along the input.", f"scale of shape {shape}", "one scale for each row"
            )
        found += zip(*(np.broadcast_to(a.ravel(), (hidden,)).tolist() for a in arrays), strict=True)
    return found


@dataclass(frozen=True)
class StoredWeights:
    """W or R as stored in an integer cell.

    Attributes:
        codes: Quantized values `[K,4H]`, int8 or int16.
        zero_point: Of each column, int32 `[4H]`.
        scale: Of each column, float64 `[4H]`.
        lowered: Offset subtracted from unsigned values and their zero points, to store them as signed ones.
    """

    codes: npt.NDArray[np.signedinteger[Any]]
    zero_point: npt.NDArray[np.int32]
    scale: npt.NDArray[np.float64]
    lowered: int


def stored_weights(key: str, parameters: Sequence[Parameter]) -> StoredWeights:
    """Returns the quantized values of all gates.

    Raises:
        NotHandled: They are floats, too wide, or have unsupported zero points or scales.
    """
    codes: list[npt.NDArray[np.int64]] = []
    unsigned: list[npt.NDArray[np.bool_]] = []  # for each column
    binary: list[npt.NDArray[np.bool_]] = []
    bits = 0
    for p in parameters:
        if p.quantizer is None or p.codes is None:
            raise NotHandled(f"{key} is not quantized.", "float weights", "export with weight_quant set")
        if p.quantizer.bits > WIDEST_WEIGHT:
            raise NotHandled(f"{key} is too wide.", f"{p.quantizer.bits} bits", f"use up to {WIDEST_WEIGHT} bits")
        bits = max(bits, p.quantizer.bits)
        check_zero_point(key, p.quantizer)
        codes.append(p.codes.T)
        unsigned.append(np.full(len(p.codes), not p.quantizer.signed))
        binary.append(np.full(len(p.codes), p.quantizer.bipolar))
    columns = np.array(_columns(parameters), np.float64)
    joined = np.concatenate(codes, axis=1)
    wide = bits > _BYTE_BITS
    largest = 2 ** (15 if wide else 7)
    shift = largest if joined.max(initial=0) >= largest else 0  # never for signed ones
    lowered = shift * np.concatenate(unsigned)
    zero_point = (np.where(np.concatenate(binary), 0, columns[:, 0]) - lowered).astype(np.int32)
    dtype = np.int16 if wide else np.int8
    return StoredWeights((joined - lowered).astype(dtype), zero_point, columns[:, 1], shift)


def _gate_table(node: QuantLstm, gate: str, argument: FixedPointQuantizer) -> FixedPointTable:
    if gate == "cell":
        return _table(ACTIVATIONS[1], node.quantizers["cell_tanh"], argument)
    source = "input" if node.cifg and gate == "forget" else gate
    return _table(ACTIVATIONS[0], node.quantizers[f"{source}_sigmoid"], argument)


def _table(activation: Activation, quantizer: QonnxQuantizer, argument: FixedPointQuantizer) -> FixedPointTable:
    """The quantized activation of all representable float32 arguments, with float32 values before the quantizer."""
    multiples = np.arange(argument.low, argument.high + 1).astype(np.float32)
    arguments = (multiples * np.float32(argument.scale)).astype(np.float64)
    return FixedPointTable(quantizer(np.asarray(activation(arguments)).astype(np.float32)))
