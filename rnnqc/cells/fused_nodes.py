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
MORE_X = ("X2", "X3", "X4")
"""The operator's inputs for the further parts of the input, behind `X` along the last axis."""
X_FACTOR = "X_factor"
"""The operator's input for what multiplies the columns of the input."""
_INPUTS = (
    "X", "W", "R", "x_multiplier", "h_multiplier", "B", "gate_table", "cell_table",
    "sequence_lens", "initial_h", "initial_c", "P", "W_zero_point", "R_zero_point",
    "W_group_multiplier", "R_group_multiplier", "X_scale", *MORE_X, X_FACTOR,
)  # fmt: skip


def input_names(type_: CellType) -> tuple[str, ...]:
    """Returns the fused operator's inputs. Without cell state, `hidden_bias` takes the place of `cell_table`."""
    return _INPUTS if type_.cell_state else tuple("hidden_bias" if n == "cell_table" else n for n in _INPUTS)


def fused_outputs(type_: CellType) -> tuple[str, ...]:
    """Returns the fused operator's outputs."""
    return (*output_names(type_), "Y_codes")


def places_of(names: Sequence[str], given: Sequence[str]) -> list[int]:
    """Returns the attribute `input_places` for a node with the inputs `given`; empty if it is not needed.

    Args:
        names: The operator's inputs.
        given: The inputs of the node, in its order.
    """
    places = [names.index(n) for n in given]
    return places if places != list(range(len(places))) else []


def fused_places(node: onnx.NodeProto) -> Sequence[int]:
    """Returns for each input of a node its position among the operator's inputs."""
    places = next((a.ints for a in node.attribute if a.name == PLACES), ())
    return list(places) or range(len(node.input))


def given_inputs(node: onnx.NodeProto, names: Sequence[str]) -> dict[str, str]:
    """Returns the input values of a node by the operator's input `names`."""
    return {names[p]: v for p, v in zip(fused_places(node), node.input, strict=True) if v}


class BodyNames(Protocol):
    """The names for function bodies of one kind of node."""

    @property
    def fused(self) -> str:
        """The operator."""

    @property
    def aliases(self) -> int:
        """The number of further operators in the native library."""

    def fused_name(self, number: int) -> str:
        """Returns the name of one of these."""


@dataclass(frozen=True)
class OperatorNames:
    """The operator names for a kind of node that is not a cell type.

    Attributes:
        fused: The operator.
        aliases: The number of further operators in the native library.
    """

    fused: str
    aliases: int

    def fused_name(self, number: int) -> str:
        """Returns operator `number` < `aliases`."""
        return alias_name(self.fused, number)


def name_of_body(type_: BodyNames, number: int, taken: Collection[str]) -> str:
    """Chooses an operator of the native library for a function body.

    Args:
        type_: The type of the cell, or another kind of node with several bodies.
        number: The body's `configuration`.
        taken: Names that other bodies have.

    Returns:
        The operator; if none is left, a name without a kernel, so that the body runs in standard operators.
    """
    names = (type_.fused_name((number + k) % type_.aliases) for k in range(type_.aliases))
    return next((n for n in names if n not in taken), f"{type_.fused}{_NO_KERNEL}{number:012x}")


def has_kernel(name: str) -> bool:
    """Whether a name from `name_of_body` is an operator of the native library."""
    return _NO_KERNEL not in name
