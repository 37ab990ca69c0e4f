"""Repairs lowered models that other tools joined or renamed: their functions get operator names with kernels again."""

from __future__ import annotations

import re
from collections.abc import Iterable

import onnx

from rnnqc.cells import custom_nodes, rearrange_nodes
from rnnqc.cells.fused_nodes import CONFIGURATION, BodyNames, name_of_body
from rnnqc.cells.linear_nodes import kind_behind_prefix
from rnnqc.cells.types import fused_type
from rnnqc.errors import CompileError
from rnnqc.ir import DOMAIN
from rnnqc.proto.graph_walks import blocks_of

_NAME = re.compile(r"Quant[A-Z]+Cell(_\w+)?$")


def check_bodies(model: onnx.ModelProto) -> None:
    """Raises CompileError if nodes of different configurations call one function: joining models lost a body."""
    calls = _calls(model)
    for function in model.functions:
        numbers = _configurations(calls.get((function.domain, function.name), []))
        if function.domain == DOMAIN and CONFIGURATION in function.attribute and len(numbers) > 1:
            raise CompileError(
                f"Function {function.name!r} is called by nodes of {len(numbers)} configurations: models were joined "
                "that have different bodies of this name, and all but one are lost.",
                supported="models that were joined with all of their functions",
                action="join them again, each with a prefix of its own that functions get, too "
                "(onnx.compose.add_prefix); rnnqc.name_functions gives the joined model native kernels again",
            )


def _calls(model: onnx.ModelProto) -> dict[tuple[str, str], list[onnx.NodeProto]]:
    """Returns all nodes, grouped by operator."""
    calls: dict[tuple[str, str], list[onnx.NodeProto]] = {}
    for block in blocks_of([model.graph, *model.functions]):
        for node in block.node:
            calls.setdefault((node.domain, node.op_type), []).append(node)
    return calls


def _configurations(nodes: Iterable[onnx.NodeProto]) -> set[int]:
    return {a.i for n in nodes for a in n.attribute if a.name == CONFIGURATION}


def name_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy in which the functions behind rnnqc's operators have the names that `lower` gives them.

    Tools that add a prefix to names of functions (`onnx.compose.add_prefix`, and `merge_models` with prefixes) detach
    the native kernels: such a model runs in standard operators. This function restores the kernels. Functions with
    equal bodies become one. Functions that do not record their configuration, from files of older rnnqc versions,
    keep their names.

    Raises:
        CompileError: Nodes of different configurations call one function, so that a body was lost.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    check_bodies(result)
    calls = _calls(result)
    ours = [f for f in result.functions if f.domain == DOMAIN and CONFIGURATION in f.attribute]
    taken = {f.name for f in result.functions if f.domain == DOMAIN and not any(f is o for o in ours)}
    named: dict[tuple[str, int], str] = {}
    linear: set[str] = set()
    kept: list[onnx.FunctionProto] = []
    for function in result.functions:
        kind = kind_behind_prefix(function.name) if function.domain == DOMAIN and not function.overload else None
        if kind is not None:
            for node in calls.get((DOMAIN, function.name), []):
                node.op_type = kind.name
            function.name = kind.name
            kept += [function] if kind.name not in linear else []
            linear.add(kind.name)
            continue
        nodes = calls.get((function.domain, function.name), []) if any(function is o for o in ours) else []
        type_ = _names_behind(function.name)
        numbers = _configurations(nodes)
        if type_ is None or not numbers or function.overload:
            kept.append(function)
            continue
        key = type_.fused, numbers.pop()
        if key not in named:
            named[key] = name_of_body(type_, key[1], taken)
            taken.add(named[key])
            kept.append(function)
        for node in nodes:
            node.op_type = named[key]
        function.name = named[key]
    copies = [onnx.FunctionProto.FromString(f.SerializeToString()) for f in kept]
    del result.functions[:]
    result.functions.extend(copies)
    return result


def _names_behind(name: str) -> BodyNames | None:
    """Returns the possible names of a function, whatever prefix tools added; None for one without bodies."""
    if custom_nodes.is_custom_node(name):
        return custom_nodes.NAMES
    if rearrange_nodes.is_rearrange_node(name):
        return rearrange_nodes.NAMES
    found = _NAME.search(name)
    return fused_type(found[0]) if found is not None else None
