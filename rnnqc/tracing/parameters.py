"""The parameters of a cell: quantized weights, biases and peepholes, under the same names in every form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx

from rnnqc.cells.fixed_point_numbers import FixedPointNumbers
from rnnqc.cells.stages import IntegerCell, QuantizedCell
from rnnqc.proto.graph_walks import needed
from rnnqc.reference.codes import weight_codes
from rnnqc.tracing.qcdq_nodes import QcdqNodes

Array = npt.NDArray[Any]
_REAL = {"B": "bias", "hidden_bias": "hidden_bias", "P": "peepholes"}
_PASSED = ("Cast", "Clip", "Identity")


def parameters_of_operator(
    cell: IntegerCell, operands: Mapping[str, Array], scales: Mapping[str, Array]
) -> dict[str, Array]:
    """Returns the parameters of a cell in its integer form by their names in a dump; nothing if there are no operands.

    `W.weight.codes` `[I,GH]` and `R.weight.codes` `[H,GH]`, unpacked; their scales, and their zero points where these
    are not 0; `bias`, `hidden_bias` and `peepholes` where the cell has them as real values.

    Args:
        cell: The cell.
        operands: Its constants, by the names of the operator's inputs.
        scales: The scales of W and R.
    """
    weights = {key: _of_operator(cell, key, operands) for key in ("W", "R")}
    weights = {k: {**parts, "scale": scales[k]} if parts and k in scales else parts for k, parts in weights.items()}
    # Look-up arithmetic has them in quantization steps, with zero points folded in.
    has_real = isinstance(cell.numbers, FixedPointNumbers)
    return _named(weights, {key: operands.get(key) for key in _REAL} if has_real else {})


def parameters_of_nodes(cell: QuantizedCell, nodes: QcdqNodes, constants: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the same parameters of a cell in form qcdq, with the scales of its weights.

    Args:
        cell: The cell.
        nodes: Its nodes.
        constants: Its constants, by their names.
    """
    weights = {key: _of_nodes(nodes, key, constants) for key in ("W", "R")}
    return _named(weights, {key: constants.get(getattr(cell, key) or "") for key in _REAL})


def _named(weights: Mapping[str, Mapping[str, Array]], others: Mapping[str, Array | None]) -> dict[str, Array]:
    made: dict[str, Array] = {}
    for key, parts in weights.items():
        made |= {f"{key}.weight.{p}": array for p, array in parts.items() if p != "zero_point" or array.any()}
    return made | {_REAL[key]: array for key, array in others.items() if array is not None}


def _of_operator(cell: IntegerCell, key: str, operands: Mapping[str, Array]) -> dict[str, Array]:
    """Returns quantized values and zero points of W or R."""
    stored = operands.get(key)
    if stored is None or stored.dtype.kind not in "iu":
        return {}
    made = {} if f"{key}_zero_point" not in operands else {"zero_point": operands[f"{key}_zero_point"]}
    names = ("group_size", "bits", "codebook", "wide_columns")
    size, bits, codebook, wide = (int(getattr(cell.numbers, f"{key.lower()}_{name}")) for name in names)
    columns = len(cell.type.gates) * cell.hidden_size
    multipliers = operands.get(f"{key}_group_multiplier")
    return {"codes": weight_codes(stored, multipliers, size, columns, bits, cell.type.fused, codebook, wide), **made}


def _of_nodes(own: QcdqNodes, key: str, constants: Mapping[str, Array]) -> dict[str, Array]:
    """Returns quantized W or R, scales and zero points from the nodes that dequantize them; empty for float weights."""
    name = own.in_front.get(f"{key}.weight.quantized")
    if name is None:
        return {}
    nodes = needed(own.nodes, [name])
    last = nodes[-1]
    codes, scale = last.input[:2]
    zero = last.input[2] if len(last.input) > 2 else ""
    centred = next((n for n in nodes if codes in n.output), None)
    if centred is not None and centred.op_type == "Sub":
        codes, zero = centred.input
    parts = {"codes": codes, "scale": scale, "zero_point": zero}
    found = {part: constants.get(_source(nodes, value)) for part, value in parts.items()}
    return {part: array for part, array in found.items() if array is not None}


def _source(nodes: Sequence[onnx.NodeProto], value: str) -> str:
    """Follows `value` back through nodes that do not change it, such as casts and limits."""
    for node in reversed(nodes):
        if value in node.output and node.op_type in _PASSED:
            value = node.input[0]
    return value
