"""Nodes of quantized cells: their inputs, and the names of their operators (docs/quant_lstm_cell.md, *Names*)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx

from rnnqc.cells.types import CellType, alias_name, output_names

CONFIGURATION = "configuration"
PLACES = "input_places"
_NO_KERNEL = "_x"
FUNCTION = "ActivationTable"
"""The function that makes the two halves of a piecewise-linear table."""
FUNCTION_INPUTS = ("low", "rise", "length", "padding", "scale", "offset")
FUNCTION_OUTPUTS = ("from_zero", "below_zero")
_INPUTS = (
    "X", "W", "R", "x_multiplier", "h_multiplier", "B", "gate_table", "cell_table",
    "sequence_lens", "initial_h", "initial_c", "P", "W_zero_point", "R_zero_point",
    "W_group_multiplier", "R_group_multiplier",
)  # fmt: skip


def input_names(type_: CellType) -> tuple[str, ...]:
    """The fused operator's inputs. Without cell state its table's place is that of the hidden gate's own bias."""
    return _INPUTS if type_.cell_state else tuple("hidden_bias" if n == "cell_table" else n for n in _INPUTS)


def fused_outputs(type_: CellType) -> tuple[str, ...]:
    """The fused operator's outputs."""
    return (*output_names(type_), "Y_codes")


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


class BodyNames(Protocol):
    """What names there are for the bodies of a kind of node."""

    @property
    def fused(self) -> str:
        """The operator."""

    @property
    def aliases(self) -> int:
        """How many further operators the native library has for it."""

    def fused_name(self, number: int) -> str:
        """One of these."""


@dataclass(frozen=True)
class OperatorNames:
    """The names for a kind of node that is no cell of a type.

    Attributes:
        fused: The operator.
        aliases: How many further operators the native library has for it.
    """

    fused: str
    aliases: int

    def fused_name(self, number: int) -> str:
        """Operator `number` < `aliases`."""
        return alias_name(self.fused, number)


def name_of_body(type_: BodyNames, number: int, taken: Collection[str]) -> str:
    """An operator of the native library for a function body.

    Args:
        type_: Of the cell, or what else has several bodies.
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
