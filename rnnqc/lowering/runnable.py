"""Makes models that onnxruntime refuses runnable in sessions; Brevitas exports at the speed of fused cells."""

from __future__ import annotations

import onnx

from rnnqc.errors import CompileError
from rnnqc.ir import Model
from rnnqc.lowering.executable import brings_its_own, executable
from rnnqc.lowering.lower import lower
from rnnqc.proto.given import Given


def runnable(model: Given) -> onnx.ModelProto | None:
    """Lowers a Brevitas export with its own quantization; converts others as `executable` does; None if they run."""
    try:
        loaded = Model.load(model)
        if brings_its_own(loaded):
            return lower(model).proto
        proto = loaded.proto
        made = executable(proto)
    except CompileError:
        return None
    return None if made is proto else made
