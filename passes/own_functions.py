"""Which model-local functions of rnnqc's domain rnnqc has written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from rnnqc.cells.types import CELL_TYPES, fused_type
from rnnqc.diagnostics import CompileError
from rnnqc.ir import DOMAIN
from rnnqc.passes.cell_function import fused_outputs, input_names
from rnnqc.passes.emit_tables import FUNCTION, FUNCTION_INPUTS


def check_own_functions(functions: Iterable[onnx.FunctionProto], source: str) -> None:
    """Refuses functions of domain ai.rnnqc with another name or signature than the operators of rnnqc have.

    Native kernels take the place of functions by domain and name, and a lowering adds functions of its own there.

    Raises:
        CompileError: With the first such function.
    """
    for function in functions:
        if function.domain == DOMAIN and not _is_own(function):
            found = f"{function.name}({', '.join(function.input)}) -> {', '.join(function.output)}"
            written = ", ".join([*(t.fused for t in CELL_TYPES.values()), FUNCTION])
            raise CompileError(
                f"{source}: a model-local function of domain {DOMAIN!r} is none that rnnqc writes. Found: {found}.",
                supported=f"in this domain the functions of {written} that rnnqc writes",
                action="give the model's own functions, and the nodes that call them, another domain",
            )


def _is_own(function: onnx.FunctionProto) -> bool:
    if function.name == FUNCTION:
        return list(function.input) == list(FUNCTION_INPUTS) and len(function.output) == 1
    type_ = fused_type(function.name)
    if type_ is None:
        return False
    return _are_some_of(function.input, input_names(type_)) and _are_some_of(function.output, fused_outputs(type_))


def _are_some_of(names: Iterable[str], known: Sequence[str]) -> bool:
    """Whether `names` are some of `known`, in their order."""
    left = iter(known)
    return all(name in left for name in names)
