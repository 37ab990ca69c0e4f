"""What every recurrent layer takes alone: float, lowered and stock, lowered and native."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from rnnqc.bench import FLOAT, NATIVE, STOCK, bound_run, session_options, take_turns
from rnnqc.diagnostics import CompileError
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.lstm_node import RECURRENT_OPS, B, P, R, W
from rnnqc.passes.normal_form import normal_form
from rnnqc.pipeline import lower
from rnnqc.reporting.evidence import LayerTime
from rnnqc.reporting.remaking import Remaker
from rnnqc.session import session

ROUNDS = 5


def time_layers(
    model: onnx.ModelProto, remaker: Remaker, shapes: Mapping[str, tuple[int, ...]], rounds: int = ROUNDS
) -> list[LayerTime]:
    """Measures the recurrent layers of the main graph, each in a model of its own.

    Args:
        model: The float model.
        remaker: How it was lowered.
        shapes: `[T, B, I]` of each layer in the data.
        rounds: How often the three take turns.
    """
    loaded = Model.load(model)
    PassManager(normal_form()).run(loaded)
    proto = loaded.proto
    constants = {t.name: t for t in proto.graph.initializer}
    found = []
    for node in proto.graph.node:
        layer = node.name or next((o for o in node.output if o), "")
        if node.domain or node.op_type not in RECURRENT_OPS or layer not in shapes:
            continue
        alone = _alone(proto, node, layer, constants)
        if alone is None:
            continue
        recipe = remaker.record.recipe
        recipe = replace(recipe, rules=(*remaker.held(), *recipe.rules), overrides=0)
        try:
            lowered = lower(alone, recipe, remaker.record.form, stats=remaker.statistics).proto
        except CompileError:
            continue
        feed = {"x": np.random.default_rng(0).normal(0.0, 1.0, shapes[layer]).astype(np.float32)}
        runs = {
            FLOAT: bound_run(session(alone, False, session_options()), feed),
            STOCK: bound_run(session(lowered, False, session_options()), feed),
        }
        with contextlib.suppress(CompileError):  # no native library
            runs[NATIVE] = bound_run(session(lowered, True, session_options()), feed)
        least = {name: 1e6 * min(times) for name, times in take_turns(runs, rounds).items()}
        shape = list(shapes[layer])
        found.append(LayerTime(layer, node.op_type, shape, least[FLOAT], least[STOCK], least.get(NATIVE)))
    return found


def _alone(
    proto: onnx.ModelProto, node: onnx.NodeProto, layer: str, constants: Mapping[str, onnx.TensorProto]
) -> onnx.ModelProto | None:
    """A model of one recurrent node, without lengths and states; None where its parameters are no constants."""
    single = onnx.NodeProto()
    single.CopyFrom(node)
    single.name = layer
    names = [n if k in (W, R, B, P) else "" for k, n in enumerate(node.input)]
    while names and not names[-1]:
        names.pop()
    del single.input[:]
    single.input.extend(["x", *names[1:]])
    if any(n and n not in constants for n in names):
        return None
    graph = helper.make_graph(
        [single],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", "B", None])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in node.output if o],
        [constants[n] for n in dict.fromkeys(names) if n],
    )
    made = onnx.ModelProto(ir_version=proto.ir_version, graph=graph)
    made.opset_import.extend(proto.opset_import)
    return made
