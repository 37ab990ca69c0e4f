"""Sessions for models of every kind: lowered in memory, float, exports that onnxruntime does not run as they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from rnnqc.errors import CompileError, located
from rnnqc.ir import CELLS_KEY, DOMAIN, Model
from rnnqc.ir.joining import check_bodies
from rnnqc.lowering.runnable import runnable
from rnnqc.passes.graph.constant_outputs import independent_outputs, warning_of
from rnnqc.passes.normalize.own_functions import check_own_functions
from rnnqc.proto.external_data import check_external, links_are_allowed, refuse_external
from rnnqc.proto.files import load_proto, serialized
from rnnqc.proto.given import Given, as_given
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.loop_bodies import check_results
from rnnqc.sessions.opening import Opener

_BATCH_AXIS, _RANK_OF_Y = 2, 4


def session_of_any(
    model: Given, native: bool, options: ort.SessionOptions | None, arguments: Mapping[str, Any]
) -> tuple[ort.InferenceSession, str | None]:
    """Makes a session, as `rnnqc.session` documents it.

    Returns:
        It, and a warning of outputs that depend on no input.

    Raises:
        CompileError: The library is missing, onnxruntime refuses the model, or the model has functions of its own in
            rnnqc's domain.
    """
    model = _checked(as_given(model))
    made = _opened(model, Opener(options, native, arguments, _operators(model)))
    lost = _lost_outputs(made, model)
    return made, warning_of(lost) if lost else None


def session_of_exposed(model: onnx.ModelProto, native: bool, options: ort.SessionOptions) -> ort.InferenceSession:
    """Makes a `session` for a model that exposes inner values, which need not depend on any input."""
    refuse_external(model)
    return _opened(model, Opener(options, native, {}, _operators(model)))


def _opened(model: str | os.PathLike[str] | onnx.ModelProto, open_: Opener) -> ort.InferenceSession:
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else os.fspath(model)
    try:
        try:
            made = open_(source)
            exported = runnable(model) if _may_be_bound_to_a_batch(made, model) else None
        except Exception:
            _readable(model)
            exported = runnable(model)
            if exported is None:
                raise
        return made if exported is None else open_(serialized(exported, "The lowered model"))
    except CompileError:
        raise
    except Exception as error:
        name = "the model" if isinstance(model, onnx.ModelProto) else os.fspath(model)
        with located(name):
            _check_bodies(model)
        raise CompileError(f"onnxruntime {ort.__version__} refuses {name}: {error}") from error


def _operators(model: str | os.PathLike[str] | onnx.ModelProto) -> set[str] | None:
    """Returns rnnqc's operators in a model; None if there are none, or for a file, which is not read for this."""
    if not isinstance(model, onnx.ModelProto):
        return None
    blocks = blocks_of([model.graph, *model.functions])
    return {n.op_type for b in blocks for n in b.node if n.domain == DOMAIN} or None


def _lost_outputs(made: ort.InferenceSession, model: str | os.PathLike[str] | onnx.ModelProto) -> list[str]:
    """Returns outputs that depend on no input; empty for lowered models, as `lower` has reported theirs.

    Raises:
        CompileError: The model has functions of its own in rnnqc's domain.
    """
    if CELLS_KEY in made.get_modelmeta().custom_metadata_map:
        return []
    loaded = _readable(model)
    try:
        return [] if loaded is None else independent_outputs(loaded)
    except Exception:
        return []  # it runs, even if the compiler cannot read it


def _check_bodies(model: str | os.PathLike[str] | onnx.ModelProto) -> None:
    """Raises CompileError if the model lost a function body when it was joined."""
    try:
        proto = model if isinstance(model, onnx.ModelProto) else load_proto(Path(model))
    except CompileError:
        return
    check_bodies(proto)


def _readable(model: str | os.PathLike[str] | onnx.ModelProto) -> Model | None:
    """Loads the model; None if the compiler cannot read it.

    Raises:
        CompileError: The model has functions of its own in rnnqc's domain.
    """
    try:
        loaded = Model.load(model)
    except Exception:
        return None
    check_own_functions(loaded.functions, loaded.source)
    return loaded


def _checked(model: str | os.PathLike[str] | onnx.ModelProto) -> str | os.PathLike[str] | onnx.ModelProto:
    """Checks a model's external data by this package's rules, and results in memory; returns the model.

    Data behind links that the user has allowed is loaded, because onnxruntime has its own rules for links.
    """
    if isinstance(model, onnx.ModelProto):
        refuse_external(model)
        check_results(model, "the model")
        return model
    path = Path(model)
    if not path.is_file() or b"location" not in path.read_bytes():
        return model  # every reference to another file has this key
    if links_are_allowed():
        return load_proto(path)
    try:
        proto = onnx.load(path, load_external_data=False)
    except Exception:
        return model  # onnxruntime reports the error
    check_external(proto, path)
    return model


def _may_be_bound_to_a_batch(made: ort.InferenceSession, model: str | os.PathLike[str] | onnx.ModelProto) -> bool:
    """Whether a model that loads may fail for batches other than 1: a Squeeze after an LSTM, dynamic sizes."""
    if CELLS_KEY in made.get_modelmeta().custom_metadata_map:
        return False
    if all(isinstance(d, int) for i in made.get_inputs() for d in i.shape):
        return False
    proto = model if isinstance(model, onnx.ModelProto) else onnx.load(os.fspath(model), load_external_data=False)
    made_by_lstm = {n.output[0] for n in proto.graph.node if n.op_type == "LSTM" and n.output}
    squeezes = [n for n in proto.graph.node if n.op_type == "Squeeze" and n.input and n.input[0] in made_by_lstm]
    named = {name for n in squeezes for name in n.input[1:]}
    constants = {
        t.name: onnx.numpy_helper.to_array(t).ravel().tolist() for t in proto.graph.initializer if t.name in named
    }
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.output[0] in named:
            constants[node.output[0]] = _held(node)
    for squeeze in squeezes:
        axes = [list(a.ints) for a in squeeze.attribute if a.name == "axes"]
        axes += [constants[name] for name in squeeze.input[1:] if name in constants]
        if axes in ([[_BATCH_AXIS]], [[_BATCH_AXIS - _RANK_OF_Y]]):
            return True
    return False


def _held(node: onnx.NodeProto) -> list[Any]:
    """Returns the elements of a Constant; empty if it cannot hold axes."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return list(onnx.numpy_helper.to_array(attribute.t).ravel().tolist())
        if attribute.name in ("value_ints", "value_int"):
            return list(attribute.ints) or [attribute.i]
    return []
