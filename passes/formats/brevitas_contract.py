"""Brevitas' contract: the formats that its `QuantLSTMCell` supports, and the conversion of a quantized cell to it.

A cell that fits is computed in Brevitas' arithmetic (`fold_quant_lstm`) and can be written as Brevitas exports it. Both
use the same `QuantLstm`, which is also the result of reading such a node: a cell keeps its numbers when it is written
and read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, GATES, INPUT, PRODUCT_POINTS
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.types import LSTM
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import PointFormat
from rnnqc.formats.qonnx import FloatArray, QonnxQuantizer
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Variable
from rnnqc.passes.formats.point_format import INDEX_BITS
from rnnqc.passes.graph.nodes.quant_operators import ACTIVATIONS, WIDEST_WEIGHT, Parameter, QuantLstm
from rnnqc.passes.graph.nodes.quant_operators import GATES as SHORT_GATES

ROUNDING_NAMES: Mapping[Rounding, str] = {
    Rounding.HALF_EVEN: "ROUND",
    Rounding.FLOOR: "FLOOR",
    Rounding.CEIL: "CEIL",
    Rounding.TOWARD_ZERO: "ROUND_TO_ZERO",
    Rounding.HALF_EVEN_UP: "DPU",
    Rounding.HALF_AWAY: "HALF_UP",
}
"""As Brevitas writes them; the last one is QONNX's, which Brevitas does not have."""
WIDEST_ACTIVATION = 32
_FORMAT = ("bits", "signed", "narrow", "scale", "zero_point", "rounding")
_PASSED = ("cell_state.kept", "cell_state.added")


@dataclass(frozen=True)
class Misfit:
    """A property of a cell that Brevitas' cell does not support.

    Attributes:
        point: The quantization point, or the property of the layer.
        found: Its value.
        supported: The supported values.
    """

    point: str
    found: str
    supported: str

    def __str__(self) -> str:
        return f"{self.point}: {self.found} (supported: {self.supported})"


def misfits(cell: QuantizedCell) -> list[Misfit]:
    """Returns the reasons why a cell with resolved points does not fit Brevitas' contract; empty if it fits."""
    if cell.type is not LSTM:
        return [Misfit("operator", cell.op, LSTM.op)]
    return [*_of_layer(cell), *_of_points(cell)]


def _of_layer(cell: QuantizedCell) -> Iterator[Misfit]:
    found = tuple(a.name for a in cell.activations)
    if cell.activations != ACTIVATIONS:
        yield Misfit("activations", ", ".join(found), ", ".join(a.name for a in ACTIVATIONS))
    if cell.clip is not None:
        yield Misfit("clip", f"{cell.clip:g}", "none")
    if cell.P is not None:
        yield Misfit("peepholes", "P", "none")


def _of_points(cell: QuantizedCell) -> Iterator[Misfit]:
    gates = [g for k, g in enumerate(GATES) if not (cell.input_forget and k == FORGET)]
    for name in (*PRODUCT_POINTS, "accumulator"):
        if not cell.point(name).is_float:
            yield Misfit(name, _described(cell.point(name)), "bits = none")
    for name in ("input", "hidden", *(f"{g}.acc" for g in gates), "cell_state", *_PASSED):
        yield from _of_activation(name, cell.point(name), INDEX_BITS)
    for name in (*(f"{g}.activation" for g in gates), "hidden.activation"):
        point = cell.point(name)
        yield from _of_activation(name, point, WIDEST_ACTIVATION)
        if point.static is not None and point.table not in (None, "exact"):
            yield Misfit(name, f"table = {point.table}", "table = exact")
    if not cell.point("hidden").rounded_output:
        yield Misfit("hidden", "rounded_output = false", "rounded_output = true")
    yield from _differing(cell, "hidden", ("input",), "share = io for both")
    yield from _differing(cell, "cell_state", _PASSED, "one share for the three")
    yield from _of_weights(cell)
    bias = cell.point("bias")
    if bias.format is not None and (bias.format.zero_point or not bias.format.signed):
        yield Misfit("bias", _described(bias), "signed values, zero_point = 0")


def _of_activation(name: str, point: PointFormat, widest: int) -> Iterator[Misfit]:
    held = point.static
    if held is None:
        yield Misfit(name, _described(point), "one static scale")
    elif held.zero_point:
        # Brevitas adds the zero point before rounding, recipes after it.
        yield Misfit(name, f"zero_point = {held.zero_point}", "zero_point = 0")
    elif not 2 <= held.bits <= widest:
        yield Misfit(name, _described(point), f"2 to {widest} bits")
    elif held.rounding not in ROUNDING_NAMES:
        names = ", ".join(r.value for r in ROUNDING_NAMES)
        yield Misfit(name, f"rounding = {held.rounding.value}", names)


def _differing(cell: QuantizedCell, name: str, others: tuple[str, ...], supported: str) -> Iterator[Misfit]:
    first = cell.point(name).static
    for other in others:
        held = cell.point(other).static
        if first is not None and held is not None:
            keys = [k for k in _FORMAT if getattr(first, k) != getattr(held, k)]
            if keys:
                found = ", ".join(f"{k} = {_short(held, k)}, of {name} {_short(first, k)}" for k in keys)
                yield Misfit(other, found, f"the format of {name}: {supported}")


def _of_weights(cell: QuantizedCell) -> Iterator[Misfit]:
    pair = [cell.point(f"{k}.weight") for k in ("W", "R")]
    for name, point in zip(("W.weight", "R.weight"), pair, strict=True):
        grouped = [k for k in ("group_size", "wide_channels") if getattr(point, k)]
        if point.static is None or grouped:
            found = f"{grouped[0]} = {getattr(point, grouped[0])}" if grouped else _described(point)
            yield Misfit(name, found, "a scale for each channel, gate or tensor")
        elif point.static.bits > WIDEST_WEIGHT:
            yield Misfit(name, _described(point), f"1 to {WIDEST_WEIGHT} bits")
    w, r = (p.static for p in pair)
    if w is not None and r is not None:
        keys = ["bits"] if pair[0].bits != pair[1].bits else []
        names = ("signed", "narrow", "scale", "zero_point", "zero_points")
        keys += [k for k in names if getattr(w, k) != getattr(r, k)]
        if keys:
            found = f"another {', '.join(k.rstrip('s') for k in keys)} than W.weight"
            yield Misfit("R.weight", found, "scales that W and R share: share = {cell}/weight")


def _described(point: PointFormat) -> str:
    return "bits = none" if point.is_float else f"{point.bits} bits, {point.mode or 'no scale'}"


def _short(held: Format, key: str) -> str:
    value = getattr(held, key)
    if key == "scale":
        return f"{value[0]:.6g}" + (", ..." if len(value) > 1 else "")
    return str(value.value if isinstance(value, Rounding) else value)


def quantizer_of(point: PointFormat) -> QonnxQuantizer:
    """Returns the quantizer of a point with one scale and zero point 0."""
    held = point.complete
    return _quantizer(held, np.asarray(held.scale[0], np.float32), np.zeros((), np.float32), held.rounding)


def _quantizer(
    held: Format, scale: FloatArray, zero_point: FloatArray, rounding: Rounding = Rounding.HALF_EVEN
) -> QonnxQuantizer:
    narrow = held.narrow and held.signed  # QONNX has narrow unsigned formats, recipes do not
    return QonnxQuantizer(scale, zero_point, held.bits, held.signed, narrow, rounding)


def bias_quantizers(cell: QuantizedCell) -> list[QonnxQuantizer | None]:
    """Returns the quantizer of each gate, with scale `[1]` or `[H]`; None without one. Coupled gates share theirs."""
    if cell.points["bias"].is_float:
        return [None] * len(GATES)
    held, zero = cell.points["bias"].complete, np.zeros((), np.float32)
    scales = map(np.atleast_1d, _by_gate(held.scale, cell.hidden_size))
    made: list[QonnxQuantizer | None] = [_quantizer(held, s, zero) for s in scales]
    if cell.input_forget:
        made[FORGET] = made[INPUT]
    return made


def quant_lstm_of(
    cell: QuantizedCell, w: npt.NDArray[np.integer[Any]], r: npt.NDArray[np.integer[Any]], bias: FloatArray
) -> QuantLstm:
    """Returns a fitting cell in Brevitas' terms. Its values represent the cell's, but are separate objects.

    Args:
        cell: The cell.
        w: Quantized W `[I,4H]`.
        r: Quantized R `[H,4H]`.
        bias: `[4H]`.
    """
    points = cell.points
    quantizers = {"output": quantizer_of(points["hidden"]), "cell_state": quantizer_of(points["cell_state"])}
    for k, (gate, short) in enumerate(zip(GATES, SHORT_GATES, strict=True)):
        source = GATES[INPUT] if cell.input_forget and k == FORGET else gate
        quantizers[f"{short}_acc"] = quantizer_of(points[f"{source}.acc"])
        activation = f"{short}_tanh" if short == "cell" else f"{short}_sigmoid"
        quantizers[activation] = quantizer_of(points[f"{source}.activation"])
    quantizers["hidden_state_tanh"] = quantizer_of(points["hidden.activation"])
    matrices = {k: _parameters(points[f"{k}.weight"].complete, q, cell) for k, q in (("W", w), ("R", r))}
    biases = np.split(bias.astype(np.float32), len(GATES))
    if cell.input_forget:
        for parts in matrices.values():
            parts[FORGET] = parts[INPUT]
        biases[FORGET] = biases[INPUT]
    return QuantLstm(
        cell.hidden_size,
        cell.input_size,
        False,
        cell.reverse,
        cell.input_forget,
        quantizers,
        matrices["W"],
        matrices["R"],
        biases,
        *(Variable(name or "") for name in (cell.x, cell.initial_h, cell.initial_c)),
    )


def _parameters(held: Format, quantized: npt.NDArray[np.integer[Any]], cell: QuantizedCell) -> list[Parameter]:
    """The parts of a matrix by gate, `[H,K]` each."""
    made = []
    for part, scale, zero in zip(
        np.split(quantized.astype(np.int64), len(GATES), axis=1),
        _by_gate(held.scale, cell.hidden_size),
        _by_gate(held.all_zero_points, cell.hidden_size),
        strict=True,
    ):
        rows, zeros = (a.reshape(-1, 1) if a.ndim else a for a in (scale, zero))
        real = np.asarray((part.T.astype(np.float32) - zeros) * rows, np.float32)
        made.append(Parameter(real, _quantizer(held, rows, zeros), part.T))
    return made


def _by_gate(values: npt.ArrayLike, hidden: int) -> list[FloatArray]:
    """The values of each gate as `[H]` float32, or 0-d if they are equal."""
    columns = np.broadcast_to(np.asarray(values, np.float32), (len(GATES) * hidden,))
    parts = np.split(columns, len(GATES))
    return [p[0].reshape(()) if (p == p[0]).all() else p.copy() for p in parts]
