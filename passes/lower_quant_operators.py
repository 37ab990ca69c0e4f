"""Writes the quantizers of Brevitas and QONNX in standard operators."""

from __future__ import annotations

from rnnqc.builder import Builder
from rnnqc.diagnostics import Outcome, Remark
from rnnqc.ir import Model, Value, constant_array, display_name
from rnnqc.numerics import Bitwise
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.emit_rounding import emit_rounding
from rnnqc.passes.lstm_node import NotHandled
from rnnqc.passes.quant_operators import is_quant, read_quant
from rnnqc.qonnx import QonnxQuantizer


class LowerQuantOperators(Pass):
    """Replaces Quant, IntQuant and BipolarQuant by standard operators with the same bits.

    Before: `Quant(x, scale, zero_point, bits)`

    After: `Div -> Add(zero_point) -> Round -> Clip -> Sub(zero_point) -> Mul`, in float32

    QuantizeLinear adds the zero point after rounding and would give another code at ties. Quantizers of constants
    become initializers. One whose parameters are not constant stays, with a remark.
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
            for node in [n for n in graph.nodes if is_quant(n)]:
                name = f"{path}{display_name(node)}"
                try:
                    quantizer = read_quant(node)
                except NotHandled as refusal:
                    remarks.append(
                        self.remark(Outcome.NOTE, name, node.op, refusal.reason, refusal.found, refusal.action)
                    )
                    continue
                count += 1
                source, target = node.inputs[0], node.outputs[0]
                array = constant_array(source)
                if array is not None and not any(target is v for v in graph.outputs):
                    made = model.add_initializer(f"{target.name}.constant", quantizer(array), graph)
                    model.replace_all_uses(target, made)
                    model.remove_nodes(graph, [node])
                    continue
                b = Builder(model, prefix=display_name(node))
                node.outputs.clear()
                emit_quant(b, quantizer, source, target)
                model.insert_nodes(graph, node, b.nodes)
                model.remove_nodes(graph, [node])
        if count:
            model.remove_dead()
            model.sort()
        return PassResult(count > 0, tuple(remarks), {"quantizers": count})


def emit_quant(b: Builder, q: QonnxQuantizer, x: Value, target: Value) -> None:
    """`target` is `x` through a quantizer of constant parameters."""
    scale = b.f32(q.scale)
    if q.bipolar:
        positive = b.op("GreaterOrEqual", [x, b.f32(0.0)], "positive")
        codes: Value = b.op("Where", [positive, b.f32(1.0), b.f32(-1.0)], "codes")
    else:
        units: Value = b.op("Div", [x, scale], "units")
        if q.zero_point.any():
            units = b.op("Add", [units, b.f32(q.zero_point)], "shifted")
        whole = emit_rounding(b, units, q.rounding, "codes")
        codes = b.op("Clip", [whole, b.f32(q.minimum), b.f32(q.maximum)], "codes")
        if q.zero_point.any():
            codes = b.op("Sub", [codes, b.f32(q.zero_point)], "multiples")
    b.add("Mul", [codes, scale], [target], "values")
