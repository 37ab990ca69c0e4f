"""Gives the products of recurrences that are no LSTM, GRU or RNN integer arithmetic."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rnnqc.builder import Builder
from rnnqc.diagnostics import Outcome, Remark
from rnnqc.ir import CUSTOM_TAG, Graph, Model, Value, info, safe_name, shape_of
from rnnqc.numerics import Lossy
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.custom_products import PRODUCT_BITS, CustomProduct, read_product
from rnnqc.passes.emit_codes import row_codes
from rnnqc.passes.emit_qcdq import QuantizedWeight, emit_row_fake_quant, emit_weight
from rnnqc.passes.float_recurrences import FloatRecurrence, float_recurrences
from rnnqc.passes.insert_qcdq import USUAL_BITS
from rnnqc.passes.lstm_node import NotHandled
from rnnqc.passes.quantization import encoding_of
from rnnqc.passes.quantized_parameters import weight_codes
from rnnqc.passes.weight_formats import weight_format
from rnnqc.properties import Property
from rnnqc.recipe import Recipe

MIDDLE = 128
"""Zero point of the codes and of the weights: unsigned by unsigned products are exact on every processor."""


class QuantizeCustomCells(Pass):
    """Quantizes the products of every recurrence that is none of ONNX's, in loops and written out.

    Before: `MatMul(x [N,K], W)` or `Gemm(x, W, b)` with a constant W

    After: `QuantizeLinear(x; a scale for each row) -> MatMulInteger(codes, codes of W) -> DequantizeLinear -> Mul ->
    Add`; in form qcdq `x -> fake quantization`, `codes of W -> DequantizeLinear`, `MatMul -> Add`.

    Everything else in the recurrence stays float: what its equations are is not known. The recipe says which bits the
    weights get, at `<loop>.<product>.weight`; other points have no counterpart here.

    * A product whose weights are not constant, not float32 or no matrix stays float.
    * A recipe with another width than 8 bits for hidden states, or no bits for weights, leaves the products float.
    * A recurrence of which no product could be quantized stays float, with a remark.
    """

    info = PassInfo(
        name="quantize-custom-cells",
        summary="integer products in recurrences that are no LSTM, GRU or RNN",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(self, recipe: Recipe, *, integer: bool = True) -> None:
        """A pass with the formats of `recipe`.

        Args:
            recipe: What it says of weights counts.
            integer: Whether products become integer, or stay products of fake-quantized floats (form qcdq).
        """
        self.recipe = recipe
        self.integer = integer

    def run(self, model: Model) -> PassResult:
        """Quantizes the products of every such recurrence."""
        remarks: list[Remark] = []
        count = 0
        widths: list[int] = []
        stored: dict[tuple[Any, ...], tuple[Value, ...]] = {}
        homes = {id(n): g for g in model.graphs() for n in g.nodes}
        for recurrence in list(float_recurrences(model)):
            made, refusal = 0, NotHandled("it has no product with constant weights.", recurrence.found, "none")
            record: dict[str, Any] = {"path": recurrence.path, "op": recurrence.op, "bytes": 0, "float_bytes": 0}
            for node in recurrence.products:
                try:
                    product = read_product(node)
                    bits = self._quantize(model, homes[id(node)], product, recurrence, stored, record)
                except NotHandled as error:
                    refusal = error
                    continue
                widths.append(bits)
                made += 1
            if made:
                remarks.append(
                    self.remark(Outcome.NOTE, recurrence.path, recurrence.op, f"{made} products became integer.")
                )
                count += made
            else:
                why = (refusal.reason, refusal.found, refusal.action)
                remarks.append(self.remark(Outcome.FLOAT, recurrence.path, recurrence.op, *why))
        if count:
            model.remove_dead()
            model.sort()
        usual = all(bits >= USUAL_BITS for bits in widths)
        return PassResult(count > 0, tuple(remarks), {"products": count}, Lossy(10.0) if usual else None)

    def _quantize(
        self,
        model: Model,
        graph: Graph,
        product: CustomProduct,
        recurrence: FloatRecurrence,
        stored: dict[tuple[Any, ...], tuple[Value, ...]],
        record: dict[str, Any],
    ) -> int:
        """Replaces one product; the bits of its weights. Raises NotHandled."""
        base = f"{safe_name(recurrence.path)}.{safe_name(product.name)}"
        hidden = self.recipe.settings(f"{base}.hidden")
        if hidden.get("bits") != PRODUCT_BITS:
            raise NotHandled(
                "the recipe gives hidden states no 8 bits.",
                f"hidden.bits = {hidden.get('bits') or 'none'}",
                "choose a recipe with 8-bit activations, such as int8",
            )
        path = f"{base}.weight"
        s = {k: v for k, v in self.recipe.settings(path).items() if k not in _NOT_HERE}
        columns = product.weights.shape[1]
        point = weight_format(s, product.weights, np.ones(columns), path, 1)
        if point["bits"] is None or not 2 <= point["bits"] <= PRODUCT_BITS:
            raise NotHandled(
                "the recipe gives its weights no 2 to 8 bits.",
                f"weight.bits = {point['bits'] or 'none'}",
                "choose a recipe with weights of up to 8 bits",
            )
        encoding = encoding_of(point)
        if not encoding.signed or encoding.zero_point or any(encoding.zero_points):
            raise NotHandled(
                "the recipe gives its weights codes that are not around 0.",
                f"signed = {encoding.signed}, zero_point = {encoding.zero_point}",
                "choose a recipe with symmetric weights",
            )
        b = Builder(model, prefix=base)
        key = (id(graph), id(product.source), product.turned, json.dumps(s, sort_keys=True, default=str))
        if key not in stored:
            codes = weight_codes(point, product.weights)
            scale = np.asarray(encoding.scale, np.float32)
            scale = scale if encoding.axis is not None else scale[0]
            unsigned = (codes.astype(np.int16) + MIDDLE).astype(np.uint8)
            stored[key] = (
                model.add_initializer(f"{path}.codes", unsigned if self.integer else codes, graph),
                model.add_initializer(f"{path}.scale", np.array(scale), graph),
            )
            record["bytes"] += codes.nbytes + scale.nbytes
            record["float_bytes"] += product.weights.nbytes
        codes_value, scale_value = stored[key]
        if self.integer:
            y = _integer(b, product, codes_value, scale_value)
        else:
            settings: dict[str, Any] = {"bits": PRODUCT_BITS, "signed": False, "zero_point": MIDDLE}
            x = emit_row_fake_quant(b, "hidden", product.x, settings)
            zeros = np.zeros(columns if encoding.axis is not None else (), np.int8)
            zero = model.add_initializer(f"{path}.zero_point", zeros, graph)
            w = emit_weight(b, "weight", QuantizedWeight(codes_value, scale_value, zero), encoding)
            y = b.op("MatMul", [x, w], "product")
        if product.bias is not None:
            b.op("Add", [y, product.bias], "sum")
        target = product.node.outputs[0]
        model.insert_nodes(graph, product.node, b.nodes)
        model.remove_nodes(graph, [product.node])
        last = b.nodes[-1]
        last.outputs.clear()
        last.outputs.append(target)
        loop = [recurrence.loop] if recurrence.loop is not None else []
        for node in (last, *loop):  # the products outlive a loop that is unrolled
            info(node).metadata[CUSTOM_TAG] = json.dumps(record, sort_keys=True)
        return int(point["bits"])


# Keys that need a layer's statistics, or formats that products here do not have.
_NOT_HERE = ("compensation", "bias_correction", "shift_limits", "group_size", "wide_channels", "share")


def _integer(b: Builder, product: CustomProduct, codes: Value, scale: Value) -> Value:
    """The product of the rows of x with the codes of the weights, as real numbers."""
    x, shape = product.x, shape_of(product.x)
    flat = shape is not None and len(shape) == 2
    rows = x if flat else b.op("Reshape", [x, b.i64([-1, product.weights.shape[0]])], "rows")
    units, row_scale = row_codes(b, rows, PRODUCT_BITS, "hidden", MIDDLE)
    acc = b.op("MatMulInteger", [units, codes, b.u8(MIDDLE), b.u8(MIDDLE)], "product")
    real = b.op("DequantizeLinear", [acc, row_scale], "product.scaled", axis=0)
    y = b.op("Mul", [real, scale], "product.real")
    if flat:
        return y
    outer = b.op("Slice", [b.op("Shape", [x], "shape"), b.i64([0]), b.i64([-1]), b.i64([0])], "shape.outer")
    whole = b.op("Concat", [outer, b.i64([product.weights.shape[1]])], "shape.result", axis=0)
    return b.op("Reshape", [y, whole], "product.shaped")
