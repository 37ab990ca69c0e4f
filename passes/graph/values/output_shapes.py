"""Infers shapes of graph outputs where an exporter declared no meaningful ones."""

from __future__ import annotations

from collections.abc import Collection

from rnnqc.ir import Model, Variable, shape_of

Dims = list[int | str | None]


def infer_output_shapes(model: Model, known: Collection[str] = ()) -> None:
    """Replaces the declared shape of every output of the main graph by the shape that follows from the inputs.

    An unknown dimension keeps its name.

    Args:
        model: The model.
        known: Names of values whose shape is already correct.
    """
    given = {d for v in model.graph.inputs for d in (shape_of(v) or ()) if isinstance(d, str)}
    outputs = [v for v in model.graph.outputs if isinstance(v, Variable) and v.name not in known]
    declared: list[Dims | None] = [v.shape for v in outputs]
    for value in outputs:
        value.shape = None
    model.infer_shapes()
    for value, old in zip(outputs, declared, strict=True):
        new = shape_of(value)
        if new is None:
            value.shape = old
            continue
        names: Dims = [d if isinstance(d, str) else None for d in old or ()]
        names = names if len(names) == len(new) else [None] * len(new)
        value.shape = [d if isinstance(d, int) or d in given else n for d, n in zip(new, names, strict=True)]
