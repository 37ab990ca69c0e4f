"""Operators that draw random numbers, which differ from one run of a model to the next."""

from __future__ import annotations

import onnx

from rnnqc.proto.graph_walks import blocks_of

RANDOM = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)
"""Standard operators; with an attribute `seed` two sessions draw the same."""


def random_values(model: onnx.ModelProto) -> list[str]:
    """Returns a text for a model that draws random numbers without a seed; none for others."""
    nodes = [
        node
        for block in blocks_of([model.graph, *model.functions])
        for node in block.node
        if node.op_type in RANDOM and not node.domain and all(a.name != "seed" for a in node.attribute)
    ]
    if not nodes:
        return []
    more = f", and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    text = (
        f"node {nodes[0].name!r} ({nodes[0].op_type}){more} draws random numbers: two runs of the float model differ, "
        "and a comparison shows their difference, too. Resolution: give these nodes an attribute seed in both models, "
        "or compare outputs that do not depend on them."
    )
    return [text]
