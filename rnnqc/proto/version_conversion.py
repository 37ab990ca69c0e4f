"""Converts operator sets with onnx, and turns its refusals into messages."""

from __future__ import annotations

import onnx
import onnx.version_converter

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.old_operators import keep_origins, spell_out

NOT_CONVERTED = 13
"""From this operator set on a model is not converted."""
FIRST_SCAN_WITHOUT_BATCH = 9
FIRST_IR_WITH_PLAIN_INITIALIZERS = 4
"""In files before this IR version every initializer has to be an input, too."""


def convert_version(proto: onnx.ModelProto, old: int, new: int, what: str) -> onnx.ModelProto:
    """Converts the model to another operator set.

    Args:
        proto: The model.
        old: Its operator set.
        new: The target.
        what: Name of the model in messages.

    Raises:
        CompileError: It cannot be converted.
    """
    batched = [n for b in blocks_of([proto.graph]) for n in b.node if n.op_type == "Scan" and not n.domain]
    if old < FIRST_SCAN_WITHOUT_BATCH <= new and batched:  # onnx drops the batch axis
        name = batched[0].name or next(iter(batched[0].output), "")
        raise CompileError(
            f'{what} Operator "Scan" (node {name!r}) of operator set {old} runs over a batch of sequences, that of '
            f"{new} over one.",
            supported=f"Scan of operator set {FIRST_SCAN_WITHOUT_BATCH} and later",
            action="export the model again with a newer operator set",
        )
    version, plain = proto.ir_version, onnx.ModelProto()
    plain.CopyFrom(proto)
    plain.ir_version = max(version, FIRST_IR_WITH_PLAIN_INITIALIZERS)  # onnxruntime needs no inputs in older files
    spell_out(plain, old, new)
    try:
        converted = onnx.version_converter.convert_version(plain, new)
    except Exception as error:  # onnx raises errors of its checker, shape inference, converter and others
        raise CompileError(
            f"{what} cannot be converted from operator set {old} to {new} ({error}).",
            supported=f"operator sets from {NOT_CONVERTED} on without conversion",
            action="export the model again with a newer operator set",
        ) from error
    keep_origins(converted, old, what)
    if version != plain.ir_version:
        converted.ir_version = version
    return converted
