"""Checks that two models to compare are a float model and a lowered one, in this order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from rnnqc.errors import FLOAT_MODEL, UsageError, located
from rnnqc.ir import Model
from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes
from rnnqc.passes.weight_only.quantize_weights import stored_weights_of_nodes


def is_lowered(proto: onnx.ModelProto, source: str) -> bool:
    """Whether a model has recurrent nodes that rnnqc lowered, or whose weights it stored; `source` is its name."""
    with located(source):
        loaded = Model.load(proto)
        return bool(lowered_nodes(loaded) or stored_weights_of_nodes(loaded))


def check_order(names: tuple[str, str], protos: Sequence[onnx.ModelProto], command: str) -> None:
    """Refuses two models in the wrong order: the noise would be set against the quantized signal.

    Args:
        names: Names of the supposed float model and of the supposed lowered one.
        protos: The two models.
        command: The command line, with FLOAT.onnx and QUANT.onnx in their places.

    Raises:
        UsageError: The first one is lowered, the second one is not.
    """
    if [is_lowered(proto, name) for name, proto in zip(names, protos, strict=True)] == [True, False]:
        right = command.replace("FLOAT.onnx", names[1]).replace("QUANT.onnx", names[0])
        raise UsageError(
            f"{names[0]} is a lowered model, and {names[1]} is not.",
            supported=command,
            action="swap the two" + ("" if FLOAT_MODEL in names else f": {right}"),
        )
