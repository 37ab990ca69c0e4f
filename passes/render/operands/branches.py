"""An If whose branches compute the same results in two ways."""

from __future__ import annotations

from collections.abc import Callable

from rnnqc.ir import Graph, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.point_names import branch_path

Branch = tuple[str, Callable[[Builder], dict[str, Value]]]


def choose(b: Builder, condition: Value, then_branch: Branch, else_branch: Branch) -> dict[str, Value]:
    """Emits an If whose branches compute the same results under the same names.

    If onnxruntime folds the condition, the branches must not contain anything else that it folds: onnxruntime 1.24 to
    1.27 cannot inline a branch with folded constants (`HasExternalDataInMemory(tensor_proto) was false`).
    """
    graphs: list[Graph] = []
    names: list[str] = []
    for suffix, make in (then_branch, else_branch):
        inner = Builder(b.model, b.cell, branch_path(b.prefix, suffix))
        results = make(inner)
        graphs.append(inner.graph([], list(results.values()), "branch"))
        names = list(results)
    outputs = b.ops("If", [condition], names, then_branch=graphs[0], else_branch=graphs[1])
    for output, made in zip(outputs, graphs[0].outputs, strict=True):
        output.dtype = made.dtype
    return dict(zip(names, outputs, strict=True))
