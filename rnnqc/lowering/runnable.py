"""Exports of Brevitas for sessions: with their own quantization, at the speed of fused cells."""

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
    """A model that does not run as Brevitas exports it, with its own quantization, as one that does; else None."""
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
