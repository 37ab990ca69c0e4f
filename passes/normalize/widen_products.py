"""Makes float16 matmuls that crash onnxruntime compute in float32."""

from __future__ import annotations

from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise, Float16Close
from rnnqc.ir import Model, display_name
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.float16_products import products_behind_transposes, widen


class WidenProducts(Pass):
    """Puts Casts around float16 matmuls behind a Transpose.

    Before: `MatMul(Transpose(x), W)`, in float16

    After: `Cast(MatMul(Transpose(Cast(x)), Cast(W)))`, in float32

    onnxruntime from 1.24 fuses the first with the Transpose, and crashes when the model runs on a CPU. Layers with the
    batch in front are followed by such a Transpose. Others compute in float32 on a CPU, too, with Casts around them.
    """

    info = PassInfo(
        name="widen-products",
        summary="compute float16 matmuls behind a Transpose in float32",
        numerics=Float16Close(),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at the matmuls of every graph."""
        remarks: list[Remark] = []
        for path, graph, node in list(products_behind_transposes(model)):
            widen(model, graph, node, range(2))
            name = f"{path}{display_name(node)}"
            remarks.append(self.remark(Outcome.NOTE, name, node.op, "of float16, computes in float32."))
        return PassResult(bool(remarks), tuple(remarks), {"matmuls": len(remarks)}, None if remarks else Bitwise())
