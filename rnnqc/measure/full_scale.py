"""Outputs whose full scale a model says: probabilities and masks, which a sigmoid makes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import onnx

from rnnqc.data.input_uses import MOVERS
from rnnqc.evaluation.comparison import OutputComparison
from rnnqc.evaluation.numerics import decibels
from rnnqc.proto.graph_walks import blocks_of, branch_results

QUIET = 0.1
"""Share of the full scale below which an output says nothing by its SQNR: a probability of 1e-4, of 2e-4 instead."""
_UNIT = ("Sigmoid", "HardSigmoid")
_KEEPS: dict[str, int | None] = {**MOVERS, "ReduceMean": 0, "ReduceMax": 0}
del _KEEPS["TopK"]  # its second output holds indices


def unit_outputs(proto: onnx.ModelProto) -> set[str]:
    """Outputs of the main graph whose values a sigmoid has made, and nodes after it only moved, or averaged."""
    makers = {o: n for block in blocks_of([proto.graph]) for n in block.node for o in n.output if o}
    return {o.name for o in proto.graph.output if _is_unit(o.name, makers)}


def _is_unit(name: str, makers: dict[str, onnx.NodeProto]) -> bool:
    pending, seen = [name], {name}
    while pending:
        value = pending.pop()
        node = makers.get(value)
        if node is None or node.op_type not in (*_UNIT, *_KEEPS, "If"):
            return False
        if node.op_type not in _UNIT:
            source = _KEEPS.get(node.op_type)
            more = branch_results(node, value) or (node.input if source is None else node.input[source : source + 1])
            pending += [m for m in more if m not in seen]
            seen.update(more)
    return True


def judged(outputs: Collection[OutputComparison], unit: Collection[str]) -> list[OutputComparison]:
    """The comparisons with the SQNR of outputs `unit` that are nearly zero set against `QUIET` of their full scale."""
    return [_loud(o) if o.name in unit and 0.0 < o.rms_error < math.inf and o.rms < QUIET else o for o in outputs]


def _loud(output: OutputComparison) -> OutputComparison:
    return replace(output, sqnr_db=decibels(QUIET**2, output.rms_error**2))
