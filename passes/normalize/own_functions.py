"""Recognizes the model-local functions that rnnqc has written in its own domain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import onnx

from rnnqc.cells import custom_nodes, rearrange_nodes
from rnnqc.cells.fused_nodes import fused_outputs, input_names
from rnnqc.cells.linear_nodes import OPERATOR, linear_kind
from rnnqc.cells.types import CELL_TYPES, fused_type
from rnnqc.errors import CompileError
from rnnqc.ir import DOMAIN

_PREFIX = re.compile(rf"^.+(?=(Quant([A-Z]+|Custom)Cell(_\w+)?|{OPERATOR}\w*)$)")
"""A function name with a prefix of other tools (`onnx.compose.add_prefix`); such a name has no kernel."""


def check_own_functions(functions: Iterable[onnx.FunctionProto], source: str) -> None:
    """Refuses functions of domain ai.rnnqc whose name or signature is not that of an operator of rnnqc.

    Native kernels replace functions by domain and name, and a lowering adds functions to this domain.

    Raises:
        CompileError: There is another function; names the first.
    """
    for function in functions:
        if function.domain == DOMAIN and not _is_own(function):
            found = f"{function.name}({', '.join(function.input)}) -> {', '.join(function.output)}"
            cells = [t.fused for t in CELL_TYPES.values()]
            own = ", ".join([*cells, custom_nodes.OPERATOR, OPERATOR, rearrange_nodes.OPERATOR])
            raise CompileError(
                f"{source}: a model-local function of domain {DOMAIN!r} is not one of rnnqc's. Found: {found}.",
                supported=f"in this domain the functions that rnnqc writes: {own}",
                action="give the model's own functions, and the nodes that call them, another domain",
            )


def _is_own(function: onnx.FunctionProto) -> bool:
    name = _PREFIX.sub("", function.name)
    if custom_nodes.is_custom_function(name, function.input, function.output):
        return True
    if rearrange_nodes.is_rearrange_function(name, function.input, function.output):
        return True
    kind, type_ = linear_kind(name), fused_type(name)
    if kind is not None:
        return tuple(function.input) == kind.inputs and list(function.output) == ["Y"]
    if type_ is None:
        return False
    return _are_some_of(function.input, input_names(type_)) and _are_some_of(function.output, fused_outputs(type_))


def _are_some_of(names: Iterable[str], known: Sequence[str]) -> bool:
    """Whether `names` is a subsequence of `known`."""
    left = iter(known)
    return all(name in left for name in names)
