"""Brevitas' contract: the formats that its `QuantLSTMCell` can express, and a quantized cell in its terms.

A cell that fits is computed in Brevitas' arithmetic (`fold_quant_lstm`) and can be written as Brevitas exports it. Both
start from the same `QuantLstm`, which is also what reading such a node gives: a cell that is written and read again has
the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, GATES, INPUT, PRODUCT_POINTS, Cell
from rnnqc.cells.types import LSTM
from rnnqc.formats.encoding import Rounding
from rnnqc.formats.qonnx import FloatArray, QonnxQuantizer, QonnxRounding
from rnnqc.ir import Variable
from rnnqc.passes.formats.point_format import INDEX_BITS
from rnnqc.passes.graph.quant_operators import ACTIVATIONS, WIDEST_WEIGHT, Parameter, QuantLstm
from rnnqc.passes.graph.quant_operators import GATES as SHORT_GATES

ROUNDING_NAMES: Mapping[Rounding | QonnxRounding, str] = {
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
    """Something about a cell that Brevitas' cell cannot express.

    Attributes:
        point: The quantization point, or the property of the layer.
        found: What it is.
        supported: What it would have to be.
    """

    point: str
    found: str
    supported: str

    def __str__(self) -> str:
        return f"{self.point}: {self.found} (supported: {self.supported})"


def misfits(cell: Cell) -> list[Misfit]:
    """What keeps the cell, whose points are resolved, from Brevitas' contract; empty if it fits."""
    if cell.type is not LSTM:
        return [Misfit("operator", cell.op, LSTM.op)]
    return [*_of_layer(cell), *_of_points(cell)]


def _of_layer(cell: Cell) -> Iterator[Misfit]:
    found = tuple(a.name for a in cell.activations)
    if cell.activations != ACTIVATIONS:
        yield Misfit("activations", ", ".join(found), ", ".join(a.name for a in ACTIVATIONS))
    if cell.clip is not None:
        yield Misfit("clip", f"{cell.clip:g}", "none")
    if cell.P is not None:
        yield Misfit("peepholes", "P", "none")


def _of_points(cell: Cell) -> Iterator[Misfit]:
    points = cell.points
    gates = [g for k, g in enumerate(GATES) if not (cell.input_forget and k == FORGET)]
    for name in (*PRODUCT_POINTS, "accumulator"):
        if points.get(name, {}).get("bits") is not None:
            yield Misfit(name, _described(points[name]), "bits = none")
    for name in ("input", "hidden", *(f"{g}.acc" for g in gates), "cell_state", *_PASSED):
        yield from _of_activation(name, points, INDEX_BITS)
    for name in (*(f"{g}.activation" for g in gates), "hidden.activation"):
        yield from _of_activation(name, points, WIDEST_ACTIVATION)
        table = points.get(name, {}).get("table", "exact")
        if "scale" in points.get(name, {}) and table != "exact":
            yield Misfit(name, f"table = {table}", "table = exact")
    if not points.get("hidden", {}).get("rounded_output"):
        yield Misfit("hidden", "rounded_output = false", "rounded_output = true")
    yield from _differing(points, "hidden", ("input",), "share = io for both")
    yield from _differing(points, "cell_state", _PASSED, "one share for the three")
    yield from _of_weights(points)
    bias = points.get("bias", {"bits": None})
    if bias["bits"] is not None and (bias["zero_point"] or not bias["signed"]):
        yield Misfit("bias", _described(bias), "signed codes, zero_point = 0")


def _of_activation(name: str, points: Mapping[str, Mapping[str, Any]], widest: int) -> Iterator[Misfit]:
    point = points.get(name, {"bits": None})
    if point["bits"] is None or "scale" not in point:
        yield Misfit(name, _described(point), "one static scale")
    elif point["zero_point"]:
        # Brevitas adds a zero point before rounding, recipes after it.
        yield Misfit(name, f"zero_point = {point['zero_point']}", "zero_point = 0")
    elif not 2 <= point["bits"] <= widest:
        yield Misfit(name, _described(point), f"2 to {widest} bits")
    elif Rounding(point["rounding"]) not in ROUNDING_NAMES:
        names = ", ".join(r.value for r in ROUNDING_NAMES)
        yield Misfit(name, f"rounding = {point['rounding']}", names)


def _differing(
    points: Mapping[str, Mapping[str, Any]], name: str, others: tuple[str, ...], supported: str
) -> Iterator[Misfit]:
    first = points.get(name, {})
    for other in others:
        point = points.get(other, {})
        if "scale" in first and "scale" in point:
            keys = [k for k in _FORMAT if first[k] != point[k]]
            if keys:
                found = ", ".join(f"{k} = {_short(point[k])}, of {name} {_short(first[k])}" for k in keys)
                yield Misfit(other, found, f"the format of {name}: {supported}")


def _of_weights(points: Mapping[str, Mapping[str, Any]]) -> Iterator[Misfit]:
    pair = [points.get(f"{k}.weight", {"bits": None}) for k in ("W", "R")]
    for name, point in zip(("W.weight", "R.weight"), pair, strict=True):
        grouped = [k for k in ("group_size", "wide_channels") if point.get(k)]
        if "scale" not in point or grouped:
            found = f"{grouped[0]} = {point[grouped[0]]}" if grouped else _described(point)
            yield Misfit(name, found, "a scale for each channel, gate or tensor")
        elif point["bits"] > WIDEST_WEIGHT:
            yield Misfit(name, _described(point), f"1 to {WIDEST_WEIGHT} bits")
    if all("scale" in p for p in pair):
        keys = [
            k
            for k in ("bits", "signed", "narrow", "scale", "zero_point", "zero_points")
            if pair[0].get(k) != pair[1].get(k)
        ]
        if keys:
            found = f"another {', '.join(k.rstrip('s') for k in keys)} than W.weight"
            yield Misfit("R.weight", found, "scales that W and R share: share = {cell}/weight")


def _described(point: Mapping[str, Any]) -> str:
    return "bits = none" if point["bits"] is None else f"{point['bits']} bits, {point.get('mode', 'no scale')}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{value[0]:.6g}" + (", ..." if len(value) > 1 else "")
    return str(value)


def quantizer_of(point: Mapping[str, Any]) -> QonnxQuantizer:
    """The quantizer of a resolved point with one scale and the zero point 0."""
    scale = np.asarray(point["scale"][0], np.float32)
    return _quantizer(point, scale, np.zeros((), np.float32), Rounding(point["rounding"]))


def _quantizer(
    point: Mapping[str, Any], scale: FloatArray, zero_point: FloatArray, rounding: Rounding = Rounding.HALF_EVEN
) -> QonnxQuantizer:
    narrow = bool(point["narrow"] and point["signed"])  # recipes know no narrow unsigned codes, QONNX does
    return QonnxQuantizer(scale, zero_point, point["bits"], point["signed"], narrow, rounding)


def bias_quantizers(cell: Cell) -> list[QonnxQuantizer | None]:
    """Of each gate, its scale `[1]` or `[H]`; None for a bias that is not quantized. Coupled gates have the same."""
    point = cell.points["bias"]
    if point["bits"] is None:
        return [None] * len(GATES)
    zero = np.zeros((), np.float32)
    scales = map(np.atleast_1d, _by_gate(point["scale"], cell.hidden_size))
    made: list[QonnxQuantizer | None] = [_quantizer(point, s, zero) for s in scales]
    if cell.input_forget:
        made[FORGET] = made[INPUT]
    return made


def quant_lstm_of(
    cell: Cell, w: npt.NDArray[np.integer[Any]], r: npt.NDArray[np.integer[Any]], bias: FloatArray
) -> QuantLstm:
    """A cell that fits, in Brevitas' terms. Its values stand for those that the cell names, without being them.

    Args:
        cell: The cell.
        w: Codes of W `[I,4H]`.
        r: Codes of R `[H,4H]`.
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
    matrices = {k: _parameters(points[f"{k}.weight"], codes, cell) for k, codes in (("W", w), ("R", r))}
    biases = np.split(bias.astype(np.float32), len(GATES))
    if cell.input_forget:
        for parts in (*matrices.values(), biases):
            parts[FORGET] = parts[INPUT]  # type: ignore[index]
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


def _parameters(point: Mapping[str, Any], codes: npt.NDArray[np.integer[Any]], cell: Cell) -> list[Parameter]:
    """The gates' parts of a matrix, `[H,K]` each."""
    zero_points = np.asarray(point.get("zero_points") or [point["zero_point"]])
    made = []
    for part, scale, zero in zip(
        np.split(codes.astype(np.int64), len(GATES), axis=1),
        _by_gate(point["scale"], cell.hidden_size),
        _by_gate(zero_points, cell.hidden_size),
        strict=True,
    ):
        rows, zeros = (a.reshape(-1, 1) if a.ndim else a for a in (scale, zero))
        real = np.asarray((part.T.astype(np.float32) - zeros) * rows, np.float32)
        made.append(Parameter(real, _quantizer(point, rows, zeros), part.T))
    return made


def _by_gate(values: npt.ArrayLike, hidden: int) -> list[FloatArray]:
    """For each gate `[H]` float32, or 0-d where its values are equal."""
    columns = np.broadcast_to(np.asarray(values, np.float32), (len(GATES) * hidden,))
    parts = np.split(columns, len(GATES))
    return [p[0].reshape(()) if (p == p[0]).all() else p.copy() for p in parts]
