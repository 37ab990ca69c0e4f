"""Analysis: Dropout nodes that drop values at run time, for example after an export in training mode. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.errors import and_more
from rnnqc.ir import Model, constant_array, display_name, input_or_none

RATIO, TRAINING = 1, 2


def training_dropouts(model: Model) -> list[str]:
    """Returns the paths of the Dropout nodes whose `training_mode` is true and whose ratio is not 0."""
    found = []
    for path, graph in model.paths():
        for node in graph.nodes:
            mode, ratio = (input_or_none(node, k) if node.op == "Dropout" else None for k in (TRAINING, RATIO))
            on = None if mode is None else constant_array(mode)
            share = None if ratio is None else constant_array(ratio)
            if on is not None and on.any() and (share is None or share.any()):
                found.append(f"{path}{display_name(node)}")
    return found


def training_warning(nodes: Sequence[str]) -> str:
    """Returns the warning about a model with these nodes."""
    return (
        f'Operator "Dropout" (node {nodes[0]!r}){and_more(nodes)}: training_mode is true, so that each run '
        "drops other values. Resolution: export the model in evaluation mode (PyTorch: model.eval(), and no "
        "training=TrainingMode.TRAINING)."
    )
