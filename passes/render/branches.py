"""An If whose branches make the same results in two ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rnnqc.ir import Constant, Graph, Node, Value, subgraphs
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.point_names import branch_path

Branch = tuple[str, Callable[[Builder], dict[str, Value]]]


def choose(
    b: Builder, condition: Value, then_branch: Branch, else_branch: Branch, constants: Sequence[Value] | None = None
) -> dict[str, Value]:
    """An If whose branches make the same results under the same names.

    With a condition that onnxruntime folds, what does not depend on more than `constants` stands before it:
    onnxruntime 1.24 to 1.27 cannot put a branch with folded constants in place of the If
    (`HasExternalDataInMemory(tensor_proto) was false`).
    """
    graphs: list[Graph] = []
    names: list[str] = []
    for suffix, make in (then_branch, else_branch):
        inner = Builder(b.model, b.cell, branch_path(b.prefix, suffix))
        results = make(inner)
        if constants is not None:
            b.nodes += _moved_out(inner, constants)
        graphs.append(inner.graph([], list(results.values()), "branch"))
        names = list(results)
    outputs = b.ops("If", [condition], names, then_branch=graphs[0], else_branch=graphs[1])
    for output, made in zip(outputs, graphs[0].outputs, strict=True):
        output.dtype = made.dtype
    return dict(zip(names, outputs, strict=True))


def _moved_out(inner: Builder, constants: Sequence[Value]) -> list[Node]:
    """Takes from a branch what onnxruntime may fold there: nodes on constants, and those on shapes from outside."""
    made = {id(v) for node in inner.nodes for v in node.outputs}
    folded = {id(v) for v in constants}
    moved: list[Node] = []
    for node in inner.nodes:
        if subgraphs(node):
            continue
        of_outside = node.op == "Shape" and id(node.inputs[0]) not in made
        if of_outside or all(isinstance(v, Constant) or not v.name or id(v) in folded for v in node.inputs):
            moved.append(node)
            folded.update(id(v) for v in node.outputs)
    gone = {id(n) for n in moved}
    inner.nodes = [n for n in inner.nodes if id(n) not in gone]
    return moved
