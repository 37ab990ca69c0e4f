"""Removes redundant Casts from the bodies of loops."""

from __future__ import annotations

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Model, attribute, dtype_of, info
from rnnqc.ir.builder import onnx_type
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop
from rnnqc.passes.invariants import Property


class RemoveIdleCasts(Pass):
    """Replaces a Cast to the type of its input by Identity, in the bodies of Loop and Scan.

    Before, as jax2onnx writes every state that a loop carries:

        tanh(x W + h R) -> Cast(float) -> h of the next step

    After: `tanh(x W + h R) -> Identity -> h of the next step`

    Then later passes see the state itself, and remove the Identity, except where it keeps outputs of a body distinct. A
    Cast of unknown type stays.
    """

    info = PassInfo(
        name="remove-idle-casts",
        summary="remove casts in loops that convert nothing",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at the body of every loop."""
        count = 0
        for body in [g for g, owner, _ in bodies(model) if owner is not None and is_loop(owner)]:
            for node in body.nodes:
                kind = dtype_of(node.inputs[0]) if node.op == "Cast" and not node.domain else None
                if kind is not None and attribute(node, "to", 0) == onnx_type(kind):
                    node.op = "Identity"
                    node.attrs.clear()
                    info(node).proto = None  # now of rnnqc's own: later passes remove it where they can
                    count += 1
        return PassResult(count > 0, (), {"casts": count})
