"""Replaces LSTM nodes with stored weights by onnxruntime's own quantized LSTM, for programs without a library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.forms import ORT_DOMAIN, ORT_LSTM
from rnnqc.cells.types import CELL_TYPES, LSTM
from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.ir import (
    Constant,
    Graph,
    Model,
    Node,
    Value,
    Variable,
    constant_array,
    display_name,
    graph_info,
    info,
    input_or_none,
    safe_name,
)  # fmt: skip
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.nodes.lstm_node import INPUT_NAMES, SEQUENCE_LENS, WEIGHTS_TAG, P, R, W, X, is_recurrent
from rnnqc.passes.invariants import Property

_DOMAIN_VERSION = 1
_OPERANDS = ("codes", "scale", "zero_point")
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Stored:
    """W or R of one direction as stored: int8 or uint8 `[1,4H,K]`, scale and zero point `[4H]` or `[]`."""

    codes: Constant
    scale: Array
    zero_point: Array


class WriteOrtLstm(Pass):
    """Replaces LSTM nodes whose weights are stored in 8 bits by `com.microsoft::DynamicQuantizeLSTM`.

    Before: `LSTM(X, DequantizeLinear(q int8 [1,4H,K], scale, zero_point, axis=1), ..)`; a Concat joins two directions.

    After: `DynamicQuantizeLSTM(X, q [D,K,4H], .., scale [D,4H], zero_point [D,4H])`, with the other inputs, the
    attributes and the outputs as before. onnxruntime multiplies the quantized values q with 8-bit values of X and of
    the hidden state. Their scales follow from the largest values of each call and each step, over all rows together, so
    a result depends on the rest of the batch and of the sequence.

    * Quantized values beyond +-64 become unsigned, 128 higher: on x86-64 without VNNI onnxruntime adds products with
      signed ones in a saturating int16.
    * With `sequence_lens` X is set to 0 in the padding, whose values would affect the scale otherwise.
    * Equal weights of several nodes stay one constant.
    * Unsupported weights stay, with a remark: packed ones of 4 bits, float16, and zero points that differ between
      channels.
    """

    info = PassInfo(
        name="write-ort-lstm",
        summary="write LSTMs with stored weights as onnxruntime's quantized operator",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Rewrites every LSTM node of every graph whose weights are stored."""
        homes = {id(c): g for g in model.graphs() for c in graph_info(g).initializers.values()}
        joined: dict[tuple[int, ...], list[Value]] = {}
        remarks: list[Remark] = []
        count = 0
        for path, graph in list(model.paths()):
            for node in list(graph.nodes):
                if not is_recurrent(node) or WEIGHTS_TAG not in info(node).metadata:
                    continue
                try:
                    weights = [_stored(node, k) for k in (W, R)]
                except NotHandled as why:
                    name = f"{path}{display_name(node)}"
                    remarks.append(self.refused(Outcome.NOTE, name, node.op, why))
                    continue
                operands = [_operands(model, homes, joined, stored) for stored in weights]
                if input_or_none(node, SEQUENCE_LENS) is not None:
                    _clear_padding(model, graph, node)
                _rewrite(node, operands)
                count += 1
        if count:
            model.import_domain(ORT_DOMAIN, _DOMAIN_VERSION)
        return PassResult(count > 0, tuple(remarks), {"nodes": count})


def _stored(node: Node, k: int) -> list[_Stored]:
    """W or R of each direction.

    Raises:
        NotHandled: The operator does not support it.
    """
    directions = _directions(node.inputs[k])
    found = [_read(v) for v in directions]
    name = INPUT_NAMES[k]
    made = [s for s in found if s is not None]
    if len(made) != len(found):
        raise NotHandled(
            "onnxruntime's quantized LSTM takes weights of 8 bits; it computes in float, on the stored weights.",
            f"{name} stored in 4 bits or fewer, in float16, or not at all",
            "choose 5 to 8 bits for W and R, for example --set '*.weight.bits=8'",
        )
    for stored in made:
        if np.unique(stored.zero_point).size > 1:
            raise NotHandled(
                "onnxruntime's quantized LSTM has one zero point for all channels; it computes in float, on the "
                "stored weights.",
                f"{name} with other zero points",
                "choose symmetric weights, as recipe int8 has them",
            )
    if len({(s.codes.values.dtype, s.scale.shape) for s in made}) > 1:
        raise NotHandled(
            "onnxruntime's quantized LSTM has one type of weights for both directions; it computes in float, on the "
            "stored weights.",
            f"{name} in different formats",
            "give both directions the same format",
        )
    return made


def _directions(value: Value) -> Sequence[Value]:
    maker = value.inputs[0] if value.inputs else None
    return list(maker.inputs) if maker is not None and maker.op == "Concat" else [value]


def _read(value: Value) -> _Stored | None:
    """Reads a DequantizeLinear of constants; None for other producers."""
    maker = value.inputs[0] if value.inputs else None
    if maker is None or maker.op != "DequantizeLinear" or not isinstance(maker.inputs[0], Constant):
        return None
    scale, zero_point = (constant_array(v) for v in maker.inputs[1:])
    assert scale is not None and zero_point is not None
    return _Stored(maker.inputs[0], scale, zero_point)


def _operands(
    model: Model, homes: dict[int, Graph], joined: dict[tuple[int, ...], list[Value]], stored: Sequence[_Stored]
) -> list[Value]:
    """Quantized values `[D,K,4H]`, scales and zero points `[D,4H]` or `[D]`, as constants."""
    key = tuple(id(s.codes) for s in stored)
    if key not in joined:
        home, prefix = homes.get(key[0], model.graph), stored[0].codes.name.removesuffix(".codes")
        held = (lambda a: a) if all(map(_is_exact, stored)) else _unsigned
        parts: list[Callable[[_Stored], Array]] = [
            lambda s: np.ascontiguousarray(held(s.codes.values[0]).T),
            lambda s: s.scale,
            lambda s: held(s.zero_point),
        ]
        arrays = [np.stack([part(s) for s in stored]) for part in parts]
        joined[key] = [
            model.add_initializer(f"{prefix}.by_column.{name}", array, home)
            for name, array in zip(_OPERANDS, arrays, strict=True)
        ]
    return joined[key]


def _is_exact(stored: _Stored) -> bool:
    """Whether the sum of two products of signed weights with 8-bit values, 255 at most, fits into int16."""
    codes = stored.codes.values
    return bool(codes.dtype == np.int8 and not stored.zero_point.any() and np.abs(codes.astype(np.int16)).max() <= 64)


def _unsigned(codes: Array) -> Array:
    """Quantized int8 values as uint8, 128 higher."""
    return codes if codes.dtype == np.uint8 else (codes.astype(np.int16) + 128).astype(np.uint8)


def _clear_padding(model: Model, graph: Graph, node: Node) -> None:
    """Sets X of the node to 0 beyond the end of each sequence: Where(step < length, X, 0)."""
    b = Builder(model, prefix=f"{safe_name(display_name(node))}/padding")
    x, lens = node.inputs[X], node.inputs[SEQUENCE_LENS]
    time = b.op("Gather", [b.op("Shape", [x], "shape"), b.i64(0)], "time")
    steps = b.op("Reshape", [b.op("Range", [b.i64(0), time, b.i64(1)], "steps"), b.i64([-1, 1, 1])], "steps.column")
    ends = b.op("Reshape", [b.cast(lens, np.int64, "lengths"), b.i64([1, -1, 1])], "lengths.row")
    node.inputs[X] = b.op("Where", [b.op("Less", [steps, ends], "inside"), x, b.f32(0.0)], "cleared")
    model.insert_nodes(graph, node, b.nodes)


def _rewrite(node: Node, operands: Sequence[Sequence[Value]]) -> None:
    """Replaces an LSTM node by the operator; its other inputs, outputs and attributes stay."""
    others = [*node.inputs[R + 1 :], *(Variable.empty() for _ in range(P + 1 - len(node.inputs)))]
    (w, w_scale, w_zero), (r, r_scale, r_zero) = operands
    node.inputs = [node.inputs[0], w, r, *others, w_scale, w_zero, r_scale, r_zero]
    node.op, node.domain = ORT_LSTM, ORT_DOMAIN
    node.attrs.pop("layout", None)
    assert len(CELL_TYPES[LSTM.op].gates) * int(node.attrs["hidden_size"]) == operands[0][0].shape[-1]
