"""Reads weights of recurrent nodes that are already stored as integers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Model, Node, Value, constant_array, display_name, info, input_or_none, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.nodes.listed_weights import found_listed, unlist_weights
from rnnqc.passes.graph.nodes.lstm_node import WEIGHTS_TAG, B, P, R, W, is_recurrent
from rnnqc.passes.graph.values.quantized_constants import (
    along,
    byte_codes,
    channel_axis,
    is_stored_as_codes,
    stored_codes,
)

_OLDEST_OPSET = 13  # DequantizeLinear with an axis


class ReadWeightCodes(Pass):
    """Stores weights that come from quantizers or dequantizers as one constant each for W and R.

    Before: `(quantized values -> Clip -> DequantizeLinear) x G -> Concat -> Unsqueeze -> LSTM`, or Quant of floats
    instead of DequantizeLinear, as Brevitas exports it; likewise for GRU and RNN

    After: `quantized values int8 [1,GH,K] -> DequantizeLinear(scale [GH], axis=1) -> LSTM` with `keep`, otherwise float
    weights. With operators between the two, sessions fail from operator set 21 on.

    * With `keep`, the node's other constants are no longer graph inputs.
    * Weights whose scale varies along their inputs, with more than 8 bits, or from an unknown pattern become floats or
      stay unchanged.
    The weights are bit-exact either way; onnxruntime multiplies constants in another order than values.
    """

    info = PassInfo(
        name="read-weight-codes",
        summary="store dequantized weights as one constant",
        numerics=Close(1e-6),
    )

    def __init__(self, *, keep: bool = False) -> None:
        """Creates the pass.

        Args:
            keep: Whether integers stay integers; otherwise a later pass quantizes the floats.
        """
        self.keep = keep

    def run(self, model: Model) -> PassResult:
        """Reads W and R of every recurrent node of every graph."""
        remarks: list[Remark] = []
        made: dict[int, _Made] = {}
        count = 0
        for path, graph in list(model.paths()):
            for node in list(graph.nodes):  # dequantizers are inserted at the front
                if not is_recurrent(node):
                    continue
                if self.keep and WEIGHTS_TAG in info(node).metadata:
                    continue
                used = {k: self._read(model, made, node, k) for k in (W, R)}
                if not any(used.values()):
                    continue
                count += 1
                for k, matrix in used.items():
                    if matrix is not None:
                        node.inputs[k] = matrix.value
                if any(m is not None and m.format for m in used.values()):
                    record = _record(node, used)
                    info(node).metadata[WEIGHTS_TAG] = json.dumps(record, sort_keys=True)
                    remarks.append(self._kept(model, node, f"{path}{display_name(node)}"))
        return PassResult(count > 0, tuple(remarks), {"nodes": count})

    def _kept(self, model: Model, node: Node, name: str) -> Remark:
        """Removes the other constants of a node from the graph inputs, and reports that it keeps its weights."""
        reason, found = "keeps the weights it was exported with", "no recipe"
        listed = unlist_weights(model, node)
        if listed:
            reason += "; others are defaults that a run could replace: the stored ones count, and the inputs go"
            found += f", {found_listed(listed)}"
        action = "--recipe int8 makes an integer cell of it"
        return self.remark(Outcome.NOTE, name, node.op, f"{reason}.", found, action)

    def _read(self, model: Model, made: dict[int, _Made], node: Node, k: int) -> _Made | None:
        value = input_or_none(node, k)
        if value is None or not is_stored_as_codes(value):
            return None
        if id(value) not in made:
            stored = stored_codes(model, value)
            if stored is None:
                return None
            name = f"{safe_name(display_name(node))}/{'W' if k == W else 'R'}"
            codes = byte_codes(stored)
            axis = channel_axis(stored.scale, stored.zero_point)
            keep = self.keep and stored.codes.ndim == 3 and stored.codes.shape[0] == 1
            if not keep or codes is None or axis not in (-1, 1) or model.opset < _OLDEST_OPSET:
                made[id(value)] = _Made(value, model.add_initializer(f"{name}.dequantized", stored.values))
            else:
                arrays = [codes[0], along(stored.scale, axis), along(codes[1], axis)]
                made[id(value)] = _dequantizer(model, value, name, arrays)
        return made[id(value)]


def has_weight_codes(node: Node) -> bool:
    """Whether a recurrent node has weights that come from quantized values."""
    if not is_recurrent(node):
        return False
    values = (input_or_none(node, k) for k in (W, R))
    return any(v is not None and is_stored_as_codes(v) for v in values)


@dataclass
class _Made:
    """The replacement of a value.

    Attributes:
        source: The value, kept so that its id is not reused.
        value: Its replacement.
        format: Type of the quantized values; "" for floats.
        size: Size of the constants in bytes.
        shape: Shape of the weights.
    """

    source: Value
    value: Value
    format: str = ""
    size: int = 0
    shape: list[int] = field(default_factory=list)


def _dequantizer(model: Model, source: Value, name: str, arrays: list[npt.NDArray[Any]]) -> _Made:
    builder = Builder(model, prefix=name)
    names = ("codes", "scale", "zero_point")
    held = [model.add_initializer(f"{name}.{n}", a) for n, a in zip(names, arrays, strict=True)]
    axis = {"axis": 1} if arrays[1].ndim else {}
    value = builder.op("DequantizeLinear", list(held), "float", **axis)
    # All inputs are constant: the node may come first, where subgraphs see it, too.
    model.graph.nodes[:0] = builder.nodes
    return _Made(source, value, arrays[0].dtype.name, sum(a.nbytes for a in arrays), list(arrays[0].shape))


def _record(node: Node, used: dict[int, _Made | None]) -> dict[str, Any]:
    """The record of the stored weights, as quantize-weights writes it."""
    record: dict[str, Any] = {"bytes": 0, "float_bytes": 0, "exported": True}
    for k, key in ((W, "W"), (R, "R")):
        made = used[k]
        record[key] = [made.format if made is not None and made.format else np.dtype(np.float32).name]
        if made is not None and made.format:
            record["bytes"] += made.size
    for k in (W, R, B, P):
        value = input_or_none(node, k)
        array = constant_array(value) if value is not None else None
        record["float_bytes"] += 0 if array is None else array.nbytes
    return record
