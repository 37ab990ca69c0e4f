"""Replaces the integer products in recurrences that onnxruntime's tool has quantized by products of floats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.cells.forms import ORT_DOMAIN
from rnnqc.errors import LOWER_THE_FLOAT_MODEL, Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.ir import (
    DOMAIN,
    Graph,
    Model,
    Node,
    Value,
    attribute,
    constant_array,
    display_name,
    input_or_none,
    maker_of,
    safe_name,
)  # fmt: skip
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.integer_recurrences import integer_recurrences
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.nodes.listed_weights import found_listed, unlist_weights
from rnnqc.passes.graph.values.quantized_constants import StoredCodes
from rnnqc.passes.normalize.canonicalize import FIRST_IR_WITH_FREE_INITIALIZERS
from rnnqc.proto.inlining import functions_with, inlined

_FLOAT = 1  # onnx.TensorProto.FLOAT


class ReadDynamicProducts(Pass):
    """Replaces integer products by MatMul with dequantized weights, in recurrences alone.

    Before, as `onnxruntime.quantization.quantize_dynamic` writes them in loops and unrolled steps, and as onnxruntime's
    optimizer fuses them (`DynamicQuantizeMatMul`, `MatMulIntegerToFloat`):

        DynamicQuantizeLinear(h) -> q, s, z; MatMulInteger(q, R int8, z, zero) -> Cast -> Mul(s * scale)

    After: `MatMul(h, (R - zero) * scale)`

    Later passes see the recurrence as it was before it was quantized. A recipe whose number format holds the quantized
    values takes them over from these floats; onnxruntime's scales of the state, which follow from its largest value in
    each step, are gone. A recurrence with any other quantized product stays as it is.
    """

    info = PassInfo(
        name="read-dynamic-products",
        summary="make products of floats of the integer ones in recurrences",
        numerics=Lossy(0.0),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every recurrence."""
        held = [f for f in model.functions if f.domain != DOMAIN]
        inner = functions_with(held, lambda domain, op: (domain, op) in _KINDS)
        if inner:
            model.reload(inlined(model.proto, inner))
        remarks: list[Remark] = []
        made: dict[tuple[int, ...], Value] = {}
        homes = {id(n): g for g in model.graphs() for n in g.nodes}
        results = {id(v) for g in model.graphs() for v in g.outputs}
        count = 0
        for recurrence in list(integer_recurrences(model)):
            products = [_read(results, n) for n in recurrence.products]
            known = [p for p in products if p is not None]
            if len(known) < len(products):
                continue
            listed: list[str] = []
            for product in known:
                listed += unlist_weights(model, product.node, range(len(product.node.inputs)))
                _rewrite(model, made, homes[id(product.last)], product)
            count += len(known)
            reason, found = "onnxruntime's tool has quantized it; a recipe of 8 bits takes its weights over.", ""
            if listed and model.ir_version >= FIRST_IR_WITH_FREE_INITIALIZERS:
                found = found_listed(listed)
            found = ", ".join(filter(None, [recurrence.found, found]))
            action = f"{LOWER_THE_FLOAT_MODEL}, if you have it"
            remarks.append(self.remark(Outcome.NOTE, recurrence.path, recurrence.op, reason, found, action))
        return PassResult(bool(count or inner), tuple(remarks), {"products": count})


_MATMUL, _FUSED, _TO_FLOAT = (
    ("", "MatMulInteger"), (ORT_DOMAIN, "DynamicQuantizeMatMul"), (ORT_DOMAIN, "MatMulIntegerToFloat"),
)  # fmt: skip
_KINDS = frozenset({_MATMUL, _FUSED, _TO_FLOAT})


@dataclass(frozen=True)
class _Weight:
    """A dequantized weight.

    Attributes:
        values: The weight `[K,N]`.
        key: Equal for equal sources.
    """

    values: npt.NDArray[np.float32]
    key: tuple[int, ...]


@dataclass(frozen=True)
class _Product:
    """An integer product.

    Attributes:
        node: Its node.
        last: The node that computes its real values.
        operand: The real values that are multiplied by the weight.
        weight: The weight.
        bias: What is added, if anything.
    """

    node: Node
    last: Node
    operand: Value
    weight: _Weight
    bias: Value | None


def _read(graph_outputs: set[int], node: Node) -> _Product | None:
    """Returns a product of a constant weight and a dynamically quantized operand; None for others."""
    kind = (node.domain or "", node.op)
    given = [input_or_none(node, k) for k in range(7)]
    if kind == _FUSED:
        operand, codes, scale, zero_point, bias = given[:5]
        last: Node | None = node
    elif kind in _KINDS:
        quantizer = None if given[0] is None else maker_of(given[0])
        if quantizer is None or quantizer.op != "DynamicQuantizeLinear":
            return None
        values, its_scale, its_zero_point = quantizer.outputs
        operand, bias, last = quantizer.inputs[0], given[6], node
        if kind == _TO_FLOAT:
            _, codes, of_operand, scale, offset, zero_point, _ = given
        else:
            of_operand, codes, offset, zero_point = its_scale, given[1], given[2], given[3]
            last, scale = _scaled(graph_outputs, node, its_scale)
        if given[0] is not values or of_operand is not its_scale or offset is not its_zero_point:
            return None
    else:
        return None
    weight = _weight(codes, scale, zero_point)
    return None if last is None or operand is None or weight is None else _Product(node, last, operand, weight, bias)


def _scaled(graph_outputs: set[int], node: Node, scale: Value) -> tuple[Node | None, Value | None]:
    """Returns the Mul that scales integer sums, and the scale of the weight in its factor; `scale` is the operand's."""
    cast = _only_user(graph_outputs, node, "Cast")
    scaled = _only_user(graph_outputs, cast, "Mul") if cast is not None and attribute(cast, "to", 0) == _FLOAT else None
    if cast is None or scaled is None:
        return None, None
    factors = [maker_of(v) for v in scaled.inputs if v is not cast.outputs[0]]
    factor = factors[0] if len(factors) == 1 else None
    if factor is None or factor.op != "Mul":
        return None, None
    others = [v for v in factor.inputs if v is not scale]
    return (scaled, others[0]) if len(others) == 1 else (None, None)


def _only_user(graph_outputs: set[int], node: Node, op: str) -> Node | None:
    """Returns the only reader of a node's output, if it is such an operator."""
    (made,) = node.outputs
    users = list(made.outputs)
    is_one = len(users) == 1 and id(made) not in graph_outputs
    return users[0] if is_one and users[0].op == op and not users[0].domain else None


def _weight(codes: Value | None, scale: Value | None, zero_point: Value | None) -> _Weight | None:
    arrays = [constant_array(v) for v in (codes, scale, zero_point)]
    if arrays[0] is None or arrays[1] is None or arrays[0].ndim != 2 or (arrays[2] is None) != (zero_point is None):
        return None
    columns = arrays[0].shape[1]
    given = [np.zeros(1) if a is None else np.ravel(a) for a in arrays[1:]]
    if any(a.size not in (1, columns) for a in given):
        return None
    spread = [np.broadcast_to(a.astype(np.float32), arrays[0].shape) for a in given]
    values = StoredCodes(arrays[0].astype(np.int64), *spread).values
    return _Weight(values, tuple(id(v) for v in (codes, scale, zero_point)))


def _rewrite(model: Model, made: dict[tuple[int, ...], Value], graph: Graph, product: _Product) -> None:
    """Makes a MatMul of a product; products with the same constants share the new one."""
    name, last, key = safe_name(display_name(product.node)), product.last, product.weight.key
    if key not in made:
        made[key] = model.add_initializer(f"{name}/weight.dequantized", product.weight.values)
    operands: list[Value] = [product.operand, made[key]]
    last.domain, last.op = None, "MatMul"
    if product.bias is not None:
        b = Builder(model, prefix=name)
        operands = [b.op("MatMul", operands, "product"), product.bias]
        model.insert_nodes(graph, last, b.nodes)
        last.op = "Add"
    last.attrs.clear()
    last.inputs = operands
