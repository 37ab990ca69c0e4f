"""Distinguishes compiler defects from models that are invalid in ways that rnnqc's own checks do not cover."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import onnx

from rnnqc.errors import CompileError, InternalError, RnnqcError, UsageError
from rnnqc.evaluation.evaluate import make_session
from rnnqc.formats.qonnx import DOMAINS
from rnnqc.proto.given import Given, as_given, name_of, proto_of
from rnnqc.proto.graph_walks import blocks_of

_INVALID = ("INVALID_GRAPH", "invalid model", "InferenceError")
"""Messages of onnxruntime about a graph that contradicts itself, on any platform."""
_TYPES = "Type Error"
"""Its message about types that do not match; for a float model, other versions may accept it."""
_UNKNOWN = ("No Op registered", "is not a registered function/op")
"""Its messages about operators that another onnxruntime, or one with a custom operator library, may have."""
_NOT_VALID = "The model is not valid: "
P = ParamSpec("P")
T = TypeVar("T")


@contextlib.contextmanager
def blaming_invalid(model: Given) -> Iterator[None]:
    """Replaces a failure inside by a `CompileError` if onnxruntime refuses the model, too."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (RnnqcError, MemoryError)) and not isinstance(error, InternalError):
            raise
        refusal = _refusal(model)
        if refusal is None:
            raise
        raise refusal from error


def refusing_invalid_models(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function so that its failures are blamed on its first argument, a model, if that is invalid."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        model: Any = args[0] if args else next(iter(kwargs.values()), None)
        with blaming_invalid(model):
            return function(*args, **kwargs)

    return wrapped


def refuse_invalid_input(model: Given, lowered: onnx.ModelProto) -> None:
    """Refuses a model whose graph onnxruntime finds invalid, unless lowering has repaired it.

    Models that need operators, types or versions that this onnxruntime lacks are accepted.

    Args:
        model: The model that was lowered.
        lowered: The lowered model.

    Raises:
        CompileError: Neither of the two can run.
    """
    refusal = _refusal(model)
    if refusal is None or not _says(refusal, _INVALID) or _says(refusal, _UNKNOWN):
        return
    try:
        make_session(lowered, optimize=False)
    except CompileError:
        raise refusal from None


def refuse_invalid_output(model: Given, lowered: onnx.ModelProto) -> None:
    """Refuses a lowered model whose graph onnxruntime finds invalid although it accepts the float one.

    Args:
        model: The model that was lowered.
        lowered: The lowered model.

    Raises:
        InternalError: The lowered graph is invalid.
    """
    refusal = _refusal(lowered)
    if refusal is None or not _says(refusal, (*_INVALID, _TYPES)) or _says(refusal, _UNKNOWN) or _refusal(model):
        return
    text = refusal.message.removeprefix(_NOT_VALID)
    raise InternalError(
        f"the lowered model is not valid, and was not written: {text} Please report this; --form integer may do."
    )


def _says(error: CompileError, texts: Sequence[str]) -> bool:
    return any(t in error.message for t in texts)


def _refusal(model: Given) -> CompileError | None:
    """Returns onnxruntime's refusal of a model; None if it accepts it, or if it has operators of QONNX or Brevitas."""
    try:
        model = as_given(model)
    except UsageError:
        return None
    try:
        proto = proto_of(model)
        if any(node.domain in DOMAINS for block in blocks_of([proto.graph, *proto.functions]) for node in block.node):
            return None
        make_session(proto, optimize=False)
    except CompileError as error:
        refusal = CompileError(
            f"{_NOT_VALID}{error.message}",
            supported="models that onnxruntime loads",
            action="export the model again",
        )
        refusal.locate(name_of(model))
        return refusal
    return None
