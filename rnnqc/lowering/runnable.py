"""Makes Brevitas exports runnable in sessions: with their own quantization, at the speed of fused cells."""

from __future__ import annotations

import onnx

from rnnqc.errors import CompileError
from rnnqc.ir import Model
from rnnqc.lowering.executable import brings_its_own
from rnnqc.lowering.lower import lower
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.given import Given


def runnable(model: Given) -> onnx.ModelProto | None:
    """Converts a Brevitas export that does not run to a model that does, with its own quantization; None for others."""
    try:
        loaded = Model.load(model)
        if brings_its_own(loaded):
            return lower(model).proto
        repair, *others = normal_form(keep_codes=True)
        if not repair(loaded).statistics["squeezes"]:
            return None
        PassManager(others).run(loaded)
    except CompileError:
        return None
    return loaded.proto
