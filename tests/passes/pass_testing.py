"""Applying one pass, with everything that has to hold of every pass.

`apply` checks the ONNX file before and after, what the pass says of having changed the model, its numerics by its own
comparator in onnxruntime without optimizations (they would hide a wrong graph), and that a second run changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx

from rnnqc.cells.types import fused_type
from rnnqc.data.generated_feeds import generate_feeds
from rnnqc.errors import Outcome
from rnnqc.ir import Graph, Model, Node, Value, display_name, graph_info, subgraphs
from rnnqc.lowering.executable import executable
from rnnqc.passes import (
    Canonicalize,
    Cleanup,
    DecomposeLstm,
    FoldScales,
    FuseQuantLstmCell,
    InsertQcdq,
    Pass,
    PassManager,
    PassResult,
    Unroll,
    VerifyModified,
    VerifyNumerics,
)
from rnnqc.passes.pipeline import normal_form
from rnnqc.recipes.recipe import Recipe, load_recipe
from tests import few
from tests.generate.layers import RecurrentCase
from tests.runs.sessions import Array

INT8 = load_recipe("int8")
ORDER = ("canonicalize", "decompose-lstm", "insert-qcdq", "fold-scales", "cleanup", "fuse-quant-lstm-cell")

CASES: tuple[RecurrentCase, ...] = (
    RecurrentCase(),
    RecurrentCase(direction="bidirectional", lens=(5, 0), initial_h=True, initial_c=True, peepholes=True),
    RecurrentCase(direction="reverse", clip=0.5, input_forget=True, dynamic_batch=True),
    RecurrentCase(direction="reverse", lens=(2, 4), dynamic_time=True),
    RecurrentCase(placement="if", weights="computed"),
    RecurrentCase(placement="loop", initial_h=True, initial_c=True),
    RecurrentCase(placement="scan", B=1, initial_h=True),
    RecurrentCase(placement="function", opset=18),
    RecurrentCase(opset=9, bias=False),
    RecurrentCase(opset=14, weights="constant", outputs=("Y_h",)),
    RecurrentCase(opset=20, outputs=("Y_c",), lens=(1, 5)),
)
"""Layers that between them take every path of the passes."""


def make_pass(name: str, recipe: Recipe = INT8, dispatch: bool = True) -> Pass:
    """A pass by its name."""
    passes: dict[str, Pass] = {
        p.info.name: p
        for p in (
            Canonicalize(),
            DecomposeLstm(),
            InsertQcdq(recipe),
            FoldScales(dispatch=dispatch),
            Cleanup(),
            Unroll(),
            FuseQuantLstmCell(),
        )
    }
    return passes[name]


def before(name: str, proto: onnx.ModelProto | Model, recipe: Recipe = INT8) -> Model:
    """The model as the pass called `name` meets it in the default order; unroll comes after cleanup."""
    model = proto if isinstance(proto, Model) else Model.load(proto)
    stop = ORDER.index(name) if name in ORDER else ORDER.index("fuse-quant-lstm-cell")
    dispatch = name != "unroll"
    PassManager([make_pass(n, recipe, dispatch) for n in ORDER[:stop]]).run(model)
    return model


def in_front_of(kind: type[Pass], proto: onnx.ModelProto) -> Model:
    """The model as a pass of the normal form meets it."""
    model, passes = Model.load(proto), normal_form()
    PassManager(passes[: next(k for k, p in enumerate(passes) if isinstance(p, kind))]).run(model)
    return model


def apply(pass_: Pass, model: Model, feeds: Sequence[Mapping[str, Array]] | None = None) -> PassResult:
    """Runs `pass_` on `model`, whose inputs and outputs have types, and checks what has to hold of every pass."""
    proto = model.proto
    onnx.checker.check_model(proto, full_check=True)
    chosen = [generate_feeds(proto, seed=s) for s in range(2 if few.ALL else 1)] if feeds is None else feeds
    verifier = VerifyNumerics(chosen, executable=executable)
    manager = PassManager([pass_], [VerifyModified(), verifier], given=pass_.info.requires)
    (result,) = manager.run(model)
    if result.modified:
        others = ("constants: ", "without quantizers: ", "single steps: ", "function bodies: ")
        compared = [text for _, text in verifier.checks if not text.startswith(others)]
        assert len(compared) == len(chosen) * len(proto.graph.output), verifier.checks
    onnx.checker.check_model(model.proto, full_check=True)
    once = model.proto.SerializeToString(deterministic=True)
    second = pass_(model)
    assert not second.modified, f"a second run says it changed something: {second}"
    assert model.proto.SerializeToString(deterministic=True) == once, "a second run changed something"
    return result


def declines(pass_: Pass, model: Model, reason: str, outcome: Outcome = Outcome.FLOAT) -> PassResult:
    """Runs `pass_`, which has to decline exactly one site with a reason."""
    result = pass_(model)
    model.check()
    (remark,) = [r for r in result.remarks if r.outcome is outcome]
    assert re.search(reason, remark.reason), remark
    assert remark.pass_name == pass_.info.name
    assert remark.found, "a site that stays has to be explained"
    assert remark.action
    return result


def nodes_of(model: Model, *ops: str) -> list[Node]:
    """The nodes of these types in all graphs, outer graphs first; all nodes without types."""
    return [n for g in model.graphs() for n in g.nodes if not ops or plain_op(n.op) in ops]


def plain_op(op: str) -> str:
    """The operator; for a quantized cell the one that it is an alias of."""
    type_ = fused_type(op)
    return op if type_ is None else type_.fused


def op_types(graph: Graph) -> list[str]:
    """Operator types of one graph, in order."""
    return [n.op for n in graph.nodes]


def text_of(model: Model) -> str:
    """The model as text: one line for each node with the names of its values, subgraphs indented."""
    lines: list[str] = []
    _graph_lines(model.graph, "", lines)
    for function in model.functions:
        lines.append(f"function {function.domain}::{function.name}:{function.overload}")
        lines.append(f"  ({', '.join(function.input)}) -> ({', '.join(function.output)})")
    return "\n".join(lines) + "\n"


def _graph_lines(graph: Graph, indent: str, lines: list[str]) -> None:
    lines.append(f"{indent}inputs: {_names(graph.inputs)}")
    for name, constant in graph_info(graph).initializers.items():
        lines.append(f"{indent}constant {name}: {constant.dtype}{list(constant.shape)}")
    for node in graph.nodes:
        domain = f"{node.domain}::" if node.domain else ""
        lines.append(f"{indent}{_names(node.outputs)} = {domain}{node.op}{_attributes(node)}({_names(node.inputs)})")
        for key, inner in subgraphs(node):
            lines.append(f"{indent}  {key}")
            _graph_lines(inner, f"{indent}    ", lines)
    lines.append(f"{indent}outputs: {_names(graph.outputs)}")


def _attributes(node: Node) -> str:
    shown: dict[str, Any] = {k: v for k, v in node.attrs.items() if not isinstance(v, Graph)}
    return "" if not shown or node.domain else "<" + ", ".join(f"{k}={v}" for k, v in sorted(shown.items())) + ">"


def _names(values: Iterable[Value]) -> str:
    return ", ".join(v.name or "-" for v in values)


def called(node: Node) -> str:
    """The name of a node in messages."""
    return display_name(node)
