"""Replaces onnxruntime's own quantized LSTM by an LSTM with the weights that its quantized values stand for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rnnqc.cells.forms import ORT_DOMAIN, ORT_LSTM
from rnnqc.cells.types import LSTM
from rnnqc.errors import LOWER_THE_FLOAT_MODEL, NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.ir import Model, Node, Value, attribute, constant_array, display_name, info, input_or_none, safe_name
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.nodes.listed_weights import found_listed, unlist_weights
from rnnqc.passes.graph.nodes.lstm_node import DIRECTIONS, INPUT_NAMES, WEIGHTS_TAG, B, P, R, W
from rnnqc.passes.graph.values.quantized_constants import StoredCodes
from rnnqc.passes.normalize.canonicalize import FIRST_IR_WITH_FREE_INITIALIZERS
from rnnqc.proto.inlining import functions_with, inlined

_FOUND = f"operator {ORT_DOMAIN}.{ORT_LSTM}"
_SCALE = {W: P + 1, R: P + 3}
"""Where the scale of W and R is; its zero point follows."""


class ReadOrtLstm(Pass):
    """Replaces `com.microsoft::DynamicQuantizeLSTM` by an LSTM with dequantized weights.

    Before, as `onnxruntime.quantization.quantize_dynamic` writes it: `DynamicQuantizeLSTM(X, W int8 [D,I,4H],
    R int8 [D,H,4H], .., W_scale [D] or [D,4H], W_zero_point, R_scale, R_zero_point)`

    After: `LSTM(X, W [D,4H,I], R [D,4H,H], ..)` with float weights, and the other inputs, the attributes and the
    outputs as before. A recipe whose number format holds the quantized values takes them over from these floats.

    * onnxruntime also quantizes X and the hidden state, by the largest values of each call and step. That is gone: the
      recipe has formats of its own for them.
    * Model-local functions that contain such nodes are inlined.
    * Nodes that rnnqc itself has written (form `ort`) stay.
    * Nodes whose weights are no constants, or whose shapes do not fit, stay, with a remark.
    """

    info = PassInfo(
        name="read-ort-lstm",
        summary="make LSTMs with the same weights of onnxruntime's quantized ones",
        numerics=Lossy(0.0),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at every node of every graph."""
        remarks: list[Remark] = []
        made: dict[tuple[int, ...], Value] = {}
        count = 0
        inner = functions_with(model.functions, lambda domain, op: (domain, op) == (ORT_DOMAIN, ORT_LSTM))
        if inner:
            model.reload(inlined(model.proto, inner))
        for path, graph in list(model.paths()):
            for node in graph.nodes:
                if (node.domain, node.op) != (ORT_DOMAIN, ORT_LSTM) or WEIGHTS_TAG in info(node).metadata:
                    continue
                node.name = node.name or model.fresh_name(next((v.name for v in node.outputs if v.name), node.op))
                name = f"{path}{display_name(node)}"
                try:
                    weights = {k: _dequantized(node, k) for k in (W, R)}
                except NotHandled as why:
                    remarks.append(self.refused(Outcome.FLOAT, name, node.op, why))
                    continue
                remarks.append(self._taken_over(model, node, name))
                _rewrite(model, made, node, weights)
                count += 1
        return PassResult(bool(count or inner), tuple(remarks), {"nodes": count})

    def _taken_over(self, model: Model, node: Node, name: str) -> Remark:
        """Removes the constants of a node from the graph inputs, and reports that it keeps its weights."""
        reason, found = "onnxruntime's tool has quantized it; a recipe of 8 bits takes its weights over", _FOUND
        listed = unlist_weights(model, node, (W, R, B, P, *range(P + 1, len(node.inputs))))
        if listed and model.ir_version >= FIRST_IR_WITH_FREE_INITIALIZERS:
            reason += "; they are defaults that a run could replace: the stored ones count, and the inputs go"
            found += f", {found_listed(listed)}"
        action = f"{LOWER_THE_FLOAT_MODEL}, if you have it; without the native library the file as it is may be faster"
        return self.remark(Outcome.NOTE, name, LSTM.op, f"{reason}.", found, action)


def _dequantized(node: Node, k: int) -> npt.NDArray[np.float32]:
    """W or R `[D,4H,K]`, contiguous.

    Raises:
        NotHandled: It is no constant, or its shape is not what onnxruntime takes.
    """
    name, at = INPUT_NAMES[k], _SCALE[k]
    held = [constant_array(input_or_none(node, i)) for i in (k, at, at + 1)]
    codes, scale, zero_point = held
    if codes is None or scale is None or zero_point is None:
        raise NotHandled(
            "it is already quantized, dynamically, by onnxruntime's tool, and its weights are computed.",
            f"{_FOUND}, {name} with its scale and zero point not all constant",
            LOWER_THE_FLOAT_MODEL,
        )
    directions = len(DIRECTIONS.get(attribute(node, "direction", "forward"), ()))
    columns = 4 * int(attribute(node, "hidden_size", 0))
    if codes.ndim != 3 or (codes.shape[0], codes.shape[2]) != (directions, columns) or not codes.size:
        raise _misshapen(name, f"[{directions}, inputs, {columns}]", codes)
    for what, array in ((f"{name}_scale", scale), (f"{name}_zero_point", zero_point)):
        if array.shape not in ((directions,), (directions, columns)):
            raise _misshapen(what, f"[{directions}] or [{directions}, {columns}]", array)
    spread = [
        np.broadcast_to(a.astype(np.float32).reshape(directions, 1, -1), codes.shape) for a in (scale, zero_point)
    ]
    values = StoredCodes(codes.astype(np.int64), *spread).values
    return np.ascontiguousarray(values.transpose(0, 2, 1))


def _misshapen(name: str, expected: str, found: npt.NDArray[np.generic]) -> NotHandled:
    return NotHandled(
        f"onnxruntime does not run it: {name} should have shape {expected}.",
        f"{_FOUND}, {name} of shape {list(found.shape)}",
        LOWER_THE_FLOAT_MODEL,
    )


def _rewrite(
    model: Model, made: dict[tuple[int, ...], Value], node: Node, weights: dict[int, npt.NDArray[np.float32]]
) -> None:
    """Makes an LSTM of the node; nodes with the same constants share the new ones."""
    sources = {k: tuple(id(node.inputs[i]) for i in (k, _SCALE[k], _SCALE[k] + 1)) for k in weights}
    for k, array in weights.items():
        if sources[k] not in made:
            name = f"{safe_name(display_name(node))}/{INPUT_NAMES[k]}.dequantized"
            made[sources[k]] = model.add_initializer(name, array)
        node.inputs[k] = made[sources[k]]
    while len(node.inputs) > P + 1:
        node.inputs.pop()
    node.op, node.domain = LSTM.op, None
