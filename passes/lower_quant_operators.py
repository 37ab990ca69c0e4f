"""Writes the quantizers of Brevitas and QONNX in standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.builder import Builder
from rnnqc.diagnostics import Outcome, Remark
from rnnqc.ir import Graph, Model, Node, Value, constant_array, display_name, dtype_of, safe_name
from rnnqc.numerics import Bitwise
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.emit_qonnx import (
    emit_bipolar,
    emit_live_quant,
    emit_quant,
    emit_trunc,
    read_live_quant,
    read_trunc,
)
from rnnqc.passes.lstm_node import NotHandled
from rnnqc.passes.quant_operators import is_quant, is_trunc, read_quant
from rnnqc.passes.quantized_constants import StoredCodes, along, byte_codes, channel_axis, stored_codes

_OPSET_OF_PROPAGATION = 21
_VIEWS = ("Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Slice", "Expand", "Gather")


class LowerQuantOperators(Pass):
    """Replaces Quant, IntQuant, BipolarQuant and Trunc by standard operators with the same bits.

    Before: `Quant(x, scale, zero_point, bits)`

    After: `Div -> Add(zero_point) -> Round -> Clip -> Sub(zero_point) -> Mul`, in float32

    QuantizeLinear adds the zero point after rounding and would give another code at ties.

    * Quantizers of constants become codes of 8 bits and a DequantizeLinear, or floats where the codes are wider, have
      scales along several axes, or go into a view operator from operator set 21 on, which onnxruntime fails on.
    * Parameters may be computed when the model runs.
    * One that is not known stays, with a remark.
    """

    info = PassInfo(
        name="lower-quant-operators",
        summary="write Brevitas' quantizers in standard operators",
        numerics=Bitwise(),
    )

    def run(self, model: Model) -> PassResult:
        """Lowers every quantizer of every graph."""
        remarks: list[Remark] = []
        count = 0
        for path, graph in list(model.paths()):
            for node in [n for n in graph.nodes if is_quant(n) or is_trunc(n)]:
                name, op = f"{path}{display_name(node)}", node.op
                refusal = _refusal(model, graph, node)
                if refusal is None:
                    count += 1
                    continue
                why = (refusal.reason, refusal.found, refusal.action)
                remarks.append(self.remark(Outcome.NOTE, name, op, *why))
        if count:
            model.remove_dead()
            model.sort()
        return PassResult(count > 0, tuple(remarks), {"quantizers": count})


def _refusal(model: Model, graph: Graph, node: Node) -> NotHandled | None:
    """Lowers the node, or says why not."""
    try:
        _lower(model, graph, node)
    except NotHandled as refusal:
        return refusal
    return None


def _lower(model: Model, graph: Graph, node: Node) -> None:
    source, target = node.inputs[0], node.outputs[0]
    if dtype_of(source) not in (None, np.dtype(np.float32)):
        raise NotHandled("its input is not float32.", f"{dtype_of(source)}", "convert the model to float32")
    b = Builder(model, prefix=display_name(node))
    if is_trunc(node):
        truncation = read_trunc(node)
        node.outputs.clear()
        emit_trunc(b, truncation, source, target)
    elif _are_constant(node.inputs[1:]):
        quantizer = read_quant(node)
        array = constant_array(source)
        if array is not None and not any(target is v for v in graph.outputs):
            made = _constant(model, graph, node, b, quantizer(array))
            model.replace_all_uses(target, made)
        else:
            node.outputs.clear()
            emit_quant(b, quantizer, source, target)
    elif node.op == "BipolarQuant":
        node.outputs.clear()
        emit_bipolar(b, source, node.inputs[1], target)
    else:
        live = read_live_quant(node)
        node.outputs.clear()
        emit_live_quant(b, live, source, target)
    model.insert_nodes(graph, node, b.nodes)
    model.remove_nodes(graph, [node])


def _are_constant(values: list[Value]) -> bool:
    return all(constant_array(v) is not None for v in values if v.name)


def _constant(model: Model, graph: Graph, node: Node, b: Builder, values: npt.NDArray[np.float32]) -> Value:
    """A quantized constant: codes and their dequantizer if they fit into bytes, else floats."""
    name = node.outputs[0].name
    stored = stored_codes(model, node.outputs[0])
    views = model.opset >= _OPSET_OF_PROPAGATION and any(c.op in _VIEWS for c in node.outputs[0].outputs)
    held = None if views or stored is None else _bytes(stored)
    if held is None:
        return model.add_initializer(f"{name}.constant", values, graph)
    codes, scale, zero_point, axis = held
    made = [
        model.add_initializer(f"{safe_name(name)}.{n}", a, graph)
        for n, a in (("codes", codes), ("scale", scale), ("zero_point", zero_point))
    ]
    return b.op("DequantizeLinear", list(made), "dequantized", **({} if axis < 0 else {"axis": axis}))


def _bytes(
    stored: StoredCodes,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.float32], npt.NDArray[Any], int] | None:
    """Codes, scales, zero points and their axis, -1 for none; None if DequantizeLinear cannot have them."""
    held, axis = byte_codes(stored), channel_axis(stored.scale, stored.zero_point)
    if held is None or axis is None or stored.codes.size == 0:
        return None
    return held[0], along(stored.scale, axis), along(held[1], axis), axis
