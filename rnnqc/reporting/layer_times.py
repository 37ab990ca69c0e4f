"""Times every recurrent layer alone: float, lowered without the native library, and lowered with it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from rnnqc.cells.types import CELL_TYPES
from rnnqc.data.feeds import Feeds
from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.ir import Model
from rnnqc.lowering.lower import lower
from rnnqc.passes import PassManager
from rnnqc.passes.graph.nodes.lstm_node import W
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.graph_walks import reads
from rnnqc.reporting.evidence import LayerTime
from rnnqc.search.relowering import Relowering
from rnnqc.sessions import session
from rnnqc.timing import FLOAT, NATIVE, STOCK, bound_run, session_options, take_turns

Array = npt.NDArray[Any]
Constants = dict[str, onnx.TensorProto | onnx.NodeProto]
ROUNDS = 5
"""The number of rounds in which the three variants take turns."""


def time_layers(
    model: onnx.ModelProto, relowering: Relowering, layers: Collection[str], feed: Feeds
) -> list[LayerTime]:
    """Times the recurrent nodes and loops of the main graph, each in a model of its own.

    Args:
        model: The float model.
        relowering: How it was lowered.
        layers: Names of the layers to time.
        feed: Inputs of the whole model; the inputs of each layer are computed from them.
    """
    loaded = Model.load(model)
    PassManager(normal_form()).run(loaded)
    proto = loaded.proto
    nodes = {n.name or next((o for o in n.output if o), ""): n for n in proto.graph.node}
    nodes = {k: n for k, n in nodes.items() if k in layers and (n.op_type in CELL_TYPES or n.op_type in _LOOPS)}
    constants: Constants = {t.name: t for t in proto.graph.initializer}
    constants |= {o: n for n in proto.graph.node if not any(n.input) for o in n.output}  # such as empty sequences
    wanted = dict.fromkeys(name for n in nodes.values() for name in sorted(reads(n)) if name not in constants)
    values = _values(proto, wanted, feed)
    recipe = relowering.record.recipe
    recipe = replace(recipe, rules=(*relowering.held(), *recipe.rules), overrides=0)
    found = []
    for layer, node in nodes.items():
        inputs = {n: values[n] for n in wanted if n in reads(node)}
        parameters = node.input[W : W + 3] if node.op_type in CELL_TYPES else ()
        if not all(isinstance(v, np.ndarray) for v in inputs.values()) or any(n in inputs for n in parameters):
            continue
        alone = _alone(proto, node, layer, constants, inputs)
        try:
            lowered = lower(alone, recipe, relowering.record.form, stats=relowering.statistics).proto
        except CompileError:
            continue
        runs = {
            FLOAT: bound_run(session(alone, False, session_options()), inputs),
            STOCK: bound_run(session(lowered, False, session_options()), inputs),
        }
        with contextlib.suppress(CompileError):  # no native library
            runs[NATIVE] = bound_run(session(lowered, True, session_options()), inputs)
        least = {name: 1e6 * min(times) for name, times in take_turns(runs, ROUNDS).items()}
        given = (inputs[n].shape for n in node.input if n in inputs)
        shape = next((list(s) for s in given if len(s) == SEQUENCE), [])
        found.append(LayerTime(layer, node.op_type, shape, least[FLOAT], least[STOCK], least.get(NATIVE)))
    return found


SEQUENCE = 3
"""Rank of a sequence."""
_LOOPS = ("Scan", "Loop")


def _values(proto: onnx.ModelProto, names: Iterable[str], feed: Feeds) -> dict[str, Any]:
    """Computes the named values of the main graph for one feed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in feed)
    made = run_session(make_session(copy), feed, sequences=True) if copy.graph.output else {}
    return {**feed, **made}


def _alone(
    proto: onnx.ModelProto,
    node: onnx.NodeProto,
    layer: str,
    constants: Constants,
    inputs: Mapping[str, Array],
) -> onnx.ModelProto:
    """Returns a model of one node whose inputs have dynamic length and batch size."""
    single = onnx.NodeProto()
    single.CopyFrom(node)
    single.name = layer
    held = [constants[n] for n in sorted(reads(node)) if n in constants]
    types = {v.name: v for v in (*proto.graph.value_info, *proto.graph.output)}
    graph = helper.make_graph(
        [*(c for c in held if isinstance(c, onnx.NodeProto)), single],
        "layer",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), [*[None] * (array.ndim - 1), *array.shape[-1:]]
            )
            for name, array in inputs.items()
        ],
        [types.get(o, onnx.ValueInfoProto(name=o)) for o in node.output if o],
        [c for c in held if isinstance(c, onnx.TensorProto)],
    )
    made = onnx.ModelProto(ir_version=proto.ir_version, graph=graph)
    made.opset_import.extend(proto.opset_import)
    return made
