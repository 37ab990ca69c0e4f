"""Instruments: timing, dumps after each change, a check that `modified` is exact."""

from __future__ import annotations

import time
from pathlib import Path

from rnnqc.errors import InternalError
from rnnqc.ir import Model
from rnnqc.passes.base import Pass, PassResult
from rnnqc.passes.manager import Instrument


class Timing(Instrument):
    """Seconds per pass, in `seconds` (name, seconds)."""

    def __init__(self) -> None:
        self.seconds: list[tuple[str, float]] = []
        self._start = 0.0

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Stops the clock."""
        self.seconds.append((pass_.info.name, time.perf_counter() - self._start))


class DumpAfterChange(Instrument):
    """Writes the model to a folder after every pass that changed it: `01_canonicalize.onnx`, ..."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Writes the model if it changed."""
        self._count += 1
        if result.modified:
            self.folder.mkdir(parents=True, exist_ok=True)
            model.save(self.folder / f"{self._count:02d}_{pass_.info.name}.onnx")


class VerifyModified(Instrument):
    """Checks `modified` against the serialized model."""

    def __init__(self) -> None:
        self._before = b""

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Remembers the bytes."""
        self._before = self._bytes(model)

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Compares."""
        changed = self._bytes(model) != self._before
        if changed != result.modified:
            raise InternalError(
                f"Pass {pass_.info.name!r} says modified = {result.modified}; the model changed: {changed}."
            )

    @staticmethod
    def _bytes(model: Model) -> bytes:
        provenance, model.provenance = model.provenance, []
        try:
            return bytes(model.proto.SerializeToString(deterministic=True))
        finally:
            model.provenance = provenance
