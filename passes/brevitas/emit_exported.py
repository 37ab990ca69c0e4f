"""Emits a cell exported by Brevitas as the explicit Scan, with Brevitas' own quantizers at its quantization points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import GATES
from rnnqc.cells.stages import QuantizedCell
from rnnqc.errors import NotHandled
from rnnqc.formats.format import Format, IntegerFormat
from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.ir import Graph, Model, Node, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.brevitas.emit_qonnx import emit_quant
from rnnqc.passes.cells.boundary import Boundary
from rnnqc.passes.cells.float_arithmetic import FloatArithmetic
from rnnqc.passes.cells.float_step import ONE, Quantizer
from rnnqc.passes.cells.loop_driver import emit_cell
from rnnqc.passes.fold.fold_quant_lstm import stored_weights
from rnnqc.passes.formats.quantized_parameters import MULTIPLIED
from rnnqc.passes.graph.nodes.quant_operators import GATES as SHORT_GATES
from rnnqc.passes.graph.nodes.quant_operators import Parameter, QuantLstm
from rnnqc.passes.qcdq.emit_qcdq import QuantizedWeight, emit_qcdq, emit_weight, has_operators


def emit_exported_cell(
    model: Model,
    graph: Graph,
    cell: QuantizedCell,
    lstm: QuantLstm,
    at: Boundary,
    outer: Mapping[str, QonnxQuantizer],
) -> tuple[list[Node], QuantizedCell]:
    """Returns the nodes of the cell between its boundary values, and the cell with the names of its parameters.

    Every operation is Brevitas', in float32 and in its order; matmuls are onnxruntime's.

    Args:
        model: The model.
        graph: The graph of the cell.
        cell: The cell, with rounded outputs.
        lstm: The same in Brevitas' terms; its weights may be floats.
        at: Its boundary.
        outer: Quantizers of boundary values: `input`, `initial_h`, `initial_c`. Values without one are read unchanged.
    """
    names = {"B": model.add_initializer(f"{cell.name}/B", np.concatenate(lstm.bias), graph).name}
    weights: dict[str, tuple[QuantizedWeight, Format]] = {}
    for key, parameters in (("W", lstm.W), ("R", lstm.R)):
        try:
            arrays, encoding = _weight(key, parameters)
        except NotHandled:
            values = np.ascontiguousarray(np.concatenate([p.values for p in parameters]).T)
            names[key] = model.add_initializer(f"{cell.name}/{key}.float", values, graph).name
            continue
        held = {k: model.add_initializer(f"{cell.name}/{key}.{k}", a, graph) for k, a in arrays.items()}
        weights[f"{key}.weight"] = QuantizedWeight(**held), encoding
        names[key] = held["codes"].name
    quantizer = exported_quantizer({**_by_point(lstm), **outer}, weights)
    named = replace(cell, **names)
    return emit_cell(model, named, at, FloatArithmetic(quantizer, bias_last=True)).nodes, named


def _by_point(lstm: QuantLstm) -> dict[str, QonnxQuantizer]:
    """Returns the quantizers inside a cell by quantization point."""
    q = lstm.quantizers
    found = {"hidden": q["output"], "hidden.activation": q["hidden_state_tanh"], ONE: q["input_sigmoid"]}
    found |= dict.fromkeys(("cell_state", "cell_state.kept", "cell_state.added"), q["cell_state"])
    for gate, short in zip(GATES, SHORT_GATES, strict=True):
        found[f"{gate}.acc"] = q[f"{short}_acc"]
        found[f"{gate}.activation"] = q["cell_tanh" if short == "cell" else f"{short}_sigmoid"]
    return found


def exported_quantizer(
    quantizers: Mapping[str, QonnxQuantizer], weights: Mapping[str, tuple[QuantizedWeight, Format]]
) -> Quantizer:
    """Returns a quantizer that applies Brevitas' own at the points that have one, and dequantizes weights."""

    def is_plain(b: Builder, point: str) -> bool:
        """Whether QuantizeLinear and DequantizeLinear compute the values of the point."""
        q = quantizers.get(point)
        if q is None:
            return False
        # QuantizeLinear adds the zero point after rounding, Brevitas before; it has no narrow range for unsigned
        # formats.
        plain = not q.zero_point.any() and not q.bipolar and (q.signed or not q.narrow) and q.scale.size == 1
        return plain and has_operators(b, IntegerFormat(q.bits, q.signed, rounding=q.rounding))

    def quantize(b: Builder, point: str, value: Value) -> Value:
        if point in weights:
            written_out = not is_plain(b, MULTIPLIED[point[0]])
            return emit_weight(b, point, *weights[point], written_out=written_out)
        q = quantizers.get(point)
        if q is None:
            return value
        if is_plain(b, point):
            scale = (float(q.scale.ravel()[0]),)
            return emit_qcdq(b, point, value, Format(q.bits, q.signed, scale, narrow=q.narrow))
        target = b.value(f"{point}.quantized", np.float32)
        inner = Builder(b.model, b.cell, f"{b.prefix}/{point}")
        emit_quant(inner, q, value, target)
        b.nodes += inner.nodes
        return target

    return quantize


def _weight(key: str, parameters: Sequence[Parameter]) -> tuple[dict[str, npt.NDArray[np.generic]], Format]:
    """Returns quantized values `[K,4H]`, with scale and zero point (one, or one per column) for DequantizeLinear."""
    stored = stored_weights(key, parameters)
    codes, zeros, scales = stored.codes, stored.zero_point, stored.scale
    axis: int | None = 1
    if (scales == scales[0]).all() and (zeros == zeros[0]).all():
        scales, zeros, axis = scales[0].reshape(()), zeros[0].reshape(()), None
    formats = {
        (p.quantizer.bits, p.quantizer.signed, p.quantizer.narrow) for p in parameters if p.quantizer is not None
    }
    bits, signed, narrow = next(iter(formats))
    if len(formats) > 1 or not signed:
        bits, narrow = codes.dtype.itemsize * 8, False
    encoding = Format(
        bits,
        True,
        tuple(np.atleast_1d(scales).tolist()),
        narrow=narrow,
        axis=axis,
        zero_point=int(zeros) if axis is None else 0,
        zero_points=() if axis is None or not zeros.any() else tuple(zeros.tolist()),
    )
    arrays = {"codes": codes, "scale": scales.astype(np.float32), "zero_point": zeros.astype(codes.dtype)}
    return arrays, encoding
