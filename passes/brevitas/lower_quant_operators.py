"""Lowers the quantizers of Brevitas and QONNX to standard operators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.formats.qonnx import DOMAINS
from rnnqc.ir import (
    Graph,
    Model,
    Node,
    Value,
    attribute,
    constant_array,
    display_name,
    dtype_of,
    input_or_none,
    output_or_none,
    safe_name,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.brevitas.emit_qonnx import (
    emit_bipolar,
    emit_live_quant,
    emit_quant,
    emit_trunc,
    read_live_quant,
    read_trunc,
)
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP, check_finite, is_quant, is_trunc, read_quant
from rnnqc.passes.graph.values.quantized_constants import along, byte_codes, channel_axis, stored_codes

# Operators whose weights onnxruntime keeps as DequantizeLinear. It fuses DequantizeLinear and MatMul to MatMulNBits
# (1.31), which quantizes the other operand to 8 bits, and fails on a DequantizeLinear before view operators (operator
# set 21).
_DEQUANTIZED = ("Conv", "ConvTranspose")


class LowerQuantOperators(Pass):
    """Replaces Quant, IntQuant, BipolarQuant and Trunc by standard operators with the same bits.

    Before: `Quant(x, scale, zero_point, bits)`

    After: `Div -> Add(zero_point) -> Round -> Clip -> Sub(zero_point) -> Mul`, in float32

    QuantizeLinear adds the zero point after rounding and would give another quantized value at ties.

    * Quantized constants become 8-bit values with a DequantizeLinear before Conv and Gemm (transB = 1), and 8-bit
      values with `Cast -> Sub -> Mul` before all others, which gives the same floats. Wider ones become floats.
    * Parameters may be computed at run time.
    * An unknown quantizer stays, with a remark, as other operators of QONNX do.
    """

    info = PassInfo(
        name="lower-quant-operators",
        summary="lower Brevitas and QONNX quantizers to standard operators",
        numerics=Bitwise(),
    )

    def run(self, model: Model) -> PassResult:
        """Lowers every quantizer of every graph."""
        remarks: list[Remark] = []
        count = 0
        for path, graph in list(model.paths()):
            for node in [n for n in graph.nodes if n.domain in DOMAINS and n.op != CELL_OP]:
                name, op = f"{path}{display_name(node)}", node.op
                refusal = _refusal(model, graph, node)
                if refusal is None:
                    count += 1
                    continue
                remarks.append(self.refused(Outcome.NOTE, name, op, refusal))
        return PassResult(count > 0, tuple(remarks), {"quantizers": count})


def _refusal(model: Model, graph: Graph, node: Node) -> NotHandled | None:
    """Lowers the node; returns the reason if it cannot be lowered."""
    try:
        _lower(model, graph, node)
    except NotHandled as refusal:
        return refusal
    return None


def _lower(model: Model, graph: Graph, node: Node) -> None:
    if not (is_quant(node) or is_trunc(node)):
        raise NotHandled("it is no operator that is known.", f"domain {node.domain!r}", "export the model without it")
    needed = 1 if is_trunc(node) else 2 if node.op == "BipolarQuant" else 4
    target = output_or_none(node, 0)
    lacking = [k for k in range(needed) if input_or_none(node, k) is None]
    if lacking or target is None:
        found = f"no input {lacking[0]}" if lacking else "no output"
        raise NotHandled("it lacks an input or its output.", found, "export the model again")
    source = node.inputs[0]
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
            made = _constant(model, graph, node, b, quantizer(check_finite("constant", np.asarray(array))))
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
    """Returns a quantized constant: 8-bit quantized values and their dequantization if they fit, else floats."""
    target = node.outputs[0]
    name = safe_name(target.name)
    stored = stored_codes(model, target)
    held = byte_codes(stored) if stored is not None and stored.codes.size else None
    axis = channel_axis(stored.scale, stored.zero_point) if stored is not None and held is not None else None
    if stored is None or held is None or axis is None:
        return model.add_initializer(f"{target.name}.constant", values, graph)
    codes = model.add_initializer(f"{name}.codes", held[0], graph)
    if all(_takes_dequantized(c, target) for c in target.outputs):
        pairs = (("scale", along(stored.scale, axis)), ("zero_point", along(held[1], axis)))
        made = [model.add_initializer(f"{name}.{n}", a, graph) for n, a in pairs]
        return b.op("DequantizeLinear", [codes, *made], "dequantized", **({} if axis < 0 else {"axis": axis}))
    shape = [1] * stored.codes.ndim
    if axis >= 0:
        shape[axis] = -1
    scale, zero_point = (along(a, axis).reshape(shape if axis >= 0 else ()) for a in (stored.scale, stored.zero_point))
    whole: Value = b.cast(codes, np.float32, "codes.float")
    if zero_point.any():
        whole = b.op("Sub", [whole, model.add_initializer(f"{name}.zero_point", zero_point, graph)], "multiples")
    return b.op("Mul", [whole, model.add_initializer(f"{name}.scale", scale, graph)], "dequantized")


def _takes_dequantized(consumer: Node, value: Value) -> bool:
    if consumer.op == "Gemm" and not consumer.domain:
        return bool(attribute(consumer, "transB", 0)) and [v is value for v in consumer.inputs[:2]] == [False, True]
    return consumer.op in _DEQUANTIZED and not consumer.domain
