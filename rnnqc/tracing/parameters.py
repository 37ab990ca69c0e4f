"""The parameters of a cell: codes of its weights, and what it adds to its products, in every form by the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.grid_numbers import GridNumbers
from rnnqc.cells.stages import IntegerCell
from rnnqc.proto.graph_walks import needed
from rnnqc.reference.integer_cell import weight_codes
from rnnqc.tracing.program import Program

Array = npt.NDArray[Any]
_REAL = {"B": "bias", "hidden_bias": "hidden_bias", "P": "peepholes"}
_PASSED = ("Cast", "Clip", "Identity")


def parameters_of(program: Program, constants: Mapping[str, Array]) -> dict[str, Array]:
    """The parameters of a cell by their names in a dump.

    `W.weight.codes` `[I,GH]` and `R.weight.codes` `[H,GH]`, unpacked; their zero points where these are not 0; of form
    qcdq their scales; `bias`, `hidden_bias` and `peepholes` where the cell has them as real values.

    Args:
        program: The cell.
        constants: Of form qcdq, all of the program's constants by their names; of others, those of the operator by the
            names of its inputs.
    """
    cell = program.cell
    made: dict[str, Array] = {}
    for key in ("W", "R"):
        if isinstance(cell, IntegerCell):
            parts = _of_operator(cell, key, constants)
        else:
            parts = _of_nodes(program, key, constants)
        zero = parts.get("zero_point")
        if zero is not None and not zero.any():
            del parts["zero_point"]
        made |= {f"{key}.weight.{part}": array for part, array in parts.items()}
    # In the arithmetic "tables" they are in units of codes, with zero points.
    if not isinstance(cell, IntegerCell) or isinstance(cell.numbers, GridNumbers):
        for key, name in _REAL.items():
            held = constants.get(getattr(cell, key) or "" if cell.form == "qcdq" else key)
            made |= {} if held is None else {name: held}
    return made


def _of_operator(cell: IntegerCell, key: str, constants: Mapping[str, Array]) -> dict[str, Array]:
    """Codes and zero points of W or R, as the operator takes them."""
    stored = constants.get(key)
    if stored is None or stored.dtype.kind not in "iu":
        return {}
    made = {} if f"{key}_zero_point" not in constants else {"zero_point": constants[f"{key}_zero_point"]}
    if cell.form == "integer" and stored.dtype == np.uint8:
        # Of loops that were written out: zero point 128, and W with rows for the zero points of the input.
        rows = cell.input_size if key == "W" else cell.hidden_size
        return {"codes": (stored[:rows].astype(np.int16) - 128).astype(np.int8), **made}
    size = int(getattr(cell.numbers, f"{key.lower()}_group_size"))
    columns = len(cell.type.gates) * cell.hidden_size
    return {"codes": weight_codes(stored, constants.get(f"{key}_group_multiplier"), size, columns), **made}


def _of_nodes(program: Program, key: str, constants: Mapping[str, Array]) -> dict[str, Array]:
    """Codes, scales and zero points of W or R out of the nodes that dequantize them; nothing for float weights."""
    name = program.named(prelude=True).get(f"{key}.weight.quantized")
    if name is None:
        return {}
    nodes = needed(program.nodes, [name])
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
    """What casts and limits leave as it is."""
    for node in reversed(nodes):
        if value in node.output and node.op_type in _PASSED:
            value = node.input[0]
    return value
