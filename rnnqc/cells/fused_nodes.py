"""The inputs of a node of a quantized cell (docs/quant_lstm_cell.md, *Names*)."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

PLACES = "input_places"


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
