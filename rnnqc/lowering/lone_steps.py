"""Models that are one step of a recurrent layer of other equations: nothing in them comes back, so none is found."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence

import onnx

from rnnqc.data.feeds import true_inputs
from rnnqc.errors import CompileError
from rnnqc.ir import Model
from rnnqc.lowering.layer import inferred_outputs, layer, width_of_state
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.find_recurrent_nodes import recurrent_nodes
from rnnqc.passes.normal_form import normal_form

_MOST_INPUTS = 8


def states_of_lone_step(proto: onnx.ModelProto) -> dict[str, str]:
    """The states with which `rnnqc.layer` makes a layer of the model that lowering quantizes.

    Args:
        proto: A model without recurrent layers.

    Returns:
        For each input but one the output that it may become: the first of its shape that is not taken. Empty where no
        such layer can be lowered.
    """
    inputs = true_inputs(proto)
    if not 2 <= len(inputs) <= _MOST_INPUTS:
        return {}
    outputs = list(inferred_outputs(proto).values())
    for x in inputs:
        states = _paired([i for i in inputs if i is not x], outputs)
        if states:
            with contextlib.suppress(CompileError):
                made = Model.load(layer(proto, state=states))
                PassManager(normal_form()).run(made)
                if any(n.status == "lowered" for n in recurrent_nodes(made)):
                    return states
    return {}


def hint(states: Mapping[str, str]) -> str:
    """What to tell of a model with such states."""
    pairs = " ".join(f"--state {shlex.quote(f'{i}:{o}')}" for i, o in states.items())
    return (
        f"if the model is one step of a recurrent layer, `rnnqc layer IN.onnx -o OUT.onnx {pairs}` makes a layer of "
        "it, which can be lowered (docs/custom_cells.md). The pairs are those whose shapes fit, in order: check that "
        "each output becomes that input."
    )


def _paired(inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for before in inputs:
        for after in outputs:
            if after.name not in pairs.values() and _may_become(before, after):
                pairs[before.name] = after.name
                break
        else:
            return {}
    return pairs


def _may_become(before: onnx.ValueInfoProto, after: onnx.ValueInfoProto) -> bool:
    try:
        width_of_state(before, after)
    except CompileError:
        return False
    return True
