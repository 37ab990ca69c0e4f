"""Nodes of quantized cells: their inputs, and the names of their operators (docs/quant_lstm_cell.md, *Names*)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx

from rnnqc.cells.types import CellType

CONFIGURATION = "configuration"
PLACES = "input_places"
_NO_KERNEL = "_x"


def places_of(names: Sequence[str], given: Sequence[str]) -> list[int]:
    """What the attribute `input_places` says of a node with the inputs `given`; empty if it needs none.

    Args:
        names: The operator's inputs.
        given: Those that the node has, in this order.
    """
    places = [names.index(n) for n in given]
    return places if places != list(range(len(places))) else []


def fused_places(node: onnx.NodeProto) -> Sequence[int]:
    """For each input of a node its place among the operator's inputs."""
    places = next((a.ints for a in node.attribute if a.name == PLACES), ())
    return list(places) or range(len(node.input))


def given_inputs(node: onnx.NodeProto, names: Sequence[str]) -> dict[str, str]:
    """The values that a node is given, by the operator's `names` for its inputs."""
    return {names[p]: v for p, v in zip(fused_places(node), node.input, strict=True) if v}


def name_of_body(type_: CellType, number: int, taken: Collection[str]) -> str:
    """An operator of the native library for a function body.

    Args:
        type_: Of the cell.
        number: The body's `configuration`.
        taken: Names that other bodies have.

    Returns:
        Where no such operator is left, a name without a kernel: such a body runs in standard operators.
    """
    names = (type_.fused_name((number + k) % type_.aliases) for k in range(type_.aliases))
    return next((n for n in names if n not in taken), f"{type_.fused}{_NO_KERNEL}{number:012x}")


def has_kernel(name: str) -> bool:
    """Whether a name that `name_of_body` gave is an operator of the native library."""
    return _NO_KERNEL not in name
