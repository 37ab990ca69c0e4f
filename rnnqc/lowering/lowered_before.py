"""Whether rnnqc lowered a model, and whether two models to compare stand in the right order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from rnnqc.cells.forms import FLOAT
from rnnqc.errors import FLOAT_MODEL, UsageError, located
from rnnqc.ir import Model
from rnnqc.lowering.executable import brings_its_own
from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes
from rnnqc.passes.weight_only.quantize_weights import stored_weights_of_nodes
from rnnqc.recipes.recipe_record import RECIPE_KEY


def is_lowered(model: Model) -> bool:
    """Whether rnnqc lowered a recurrent node of a model, or stored its weights."""
    exported = RECIPE_KEY in model.metadata and brings_its_own(model)  # form qonnx
    return exported or bool(stored_weights_of_nodes(model)) or any(n.form != FLOAT for n in lowered_nodes(model))


def check_order(names: tuple[str, str], protos: Sequence[onnx.ModelProto], command: str) -> None:
    """Refuses two models in the wrong order: the noise would be set against the quantized signal.

    Args:
        names: Names of the supposed float model and of the supposed lowered one.
        protos: The two models.
        command: The command line, with FLOAT.onnx and QUANT.onnx in their places.

    Raises:
        UsageError: The first one is lowered, the second one is not.
    """
    lowered = []
    for name, proto in zip(names, protos, strict=True):
        with located(name):
            lowered.append(is_lowered(Model.load(proto)))
    if lowered == [True, False]:
        right = command.replace("FLOAT.onnx", names[1]).replace("QUANT.onnx", names[0])
        raise UsageError(
            f"{names[0]} is a lowered model, and {names[1]} is not.",
            supported=command,
            action="swap the two" + ("" if FLOAT_MODEL in names else f": {right}"),
        )
