"""Instruments: timing, dumps after change, exactness of `modified`, numerics of every pass, reproducers."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.diagnostics import CompileError, InternalError, NumericsError
from rnnqc.evaluate import run_model
from rnnqc.feeds import npz_bytes
from rnnqc.files import serialized
from rnnqc.ir import Model
from rnnqc.numerics import Bitwise, Close, Float16Close, Lossy, Numerics, Verdict, max_abs
from rnnqc.passes.base import Equivalent, Pass, PassResult
from rnnqc.passes.divergence import first_divergence
from rnnqc.passes.equivalents import compare_equivalents
from rnnqc.passes.manager import Instrument
from rnnqc.passes.reproducer import DATA_FILES, ReproducerFolder

FLOAT16 = int(onnx.TensorProto.FLOAT16)
NOT_COMPARED = "not compared"
PERTURBATIONS, ROUNDINGS = 3, 16.0
"""A rounding may do as much as so many times the worst of some changes of the inputs by a unit in the last place."""

Feeds = Mapping[str, npt.NDArray[Any]]


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
    """Compares the serialized model with what the pass says of having changed it."""

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


class VerifyNumerics(Instrument):
    """Runs the model before and after every pass and applies the pass's own comparator.

    On failure the values that exist on both sides are compared in order, and the first that diverges is named; with a
    folder, `before.onnx`, `after.onnx`, `feeds.npz` and `report.json` are written there.

    Args:
        feeds: Inputs to run with.
        reproducer: Folder for the reproducer, or None.
        executable: From a model to one that onnxruntime runs; of operators that it does not have, say.
        extreme: More inputs, for passes that do not declare a loss: such a bound is for usual values.

    Raises:
        UsageError: The folder holds files that would be replaced, and are not of an earlier run.
    """

    def __init__(
        self,
        feeds: Sequence[Feeds],
        reproducer: Path | None = None,
        executable: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None,
        extreme: Sequence[Feeds] = (),
    ) -> None:
        self._usual = len(feeds)
        self.feeds = [*feeds, *extreme]
        self._reproducer = ReproducerFolder(reproducer) if reproducer is not None else None
        self._executable = executable or (lambda proto: proto)
        self.checks: list[tuple[str, str]] = []
        self._before: onnx.ModelProto | None = None
        self._results: list[dict[str, npt.NDArray[Any]]] | None = None

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Runs the model as it is; a model onnxruntime refuses (of layout 1, say) is not compared."""
        self._before = self._executable(model.proto)
        try:
            self._results = [run_model(self._before, f) for f in self.feeds]
        except CompileError:
            self._results = None

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Runs the model again and compares every output."""
        if not result.modified:
            return
        if self._results is None:
            self.checks.append((pass_.info.name, f"{NOT_COMPARED}: onnxruntime does not run the model before it"))
            return
        after = self._executable(model.proto)
        numerics = result.numerics or pass_.info.numerics
        if isinstance(numerics, Close) and _rounds_to_float16(model):
            numerics = Float16Close()  # another last bit of a float32 may be another float16
        if result.equivalents:
            self._check_equivalents(pass_, numerics, after, result.equivalents)
        count = self._usual if isinstance(numerics, Lossy) else len(self.feeds)
        if not count:
            reason = "a loss is declared for usual values, and no data that the model is made for is given"
            self.checks.append((pass_.info.name, f"{NOT_COMPARED}: {reason}"))
        for feeds, before in zip(self.feeds[:count], self._results, strict=False):
            try:
                results = run_model(after, feeds)
            except CompileError as error:
                self._fail(pass_, numerics, after, feeds, next(iter(before), ""), error.message)
            for name, reference in before.items():
                if name not in results:
                    self._fail(pass_, numerics, after, feeds, name, "the output is gone")
                verdict = numerics.check(np.asarray(reference), np.asarray(results[name]))
                if not verdict.ok and isinstance(numerics, Close):
                    verdict = self._rounding(feeds, name, reference, results[name]) or verdict
                self.checks.append((pass_.info.name, f"{name}: {verdict.text}"))
                if not verdict.ok:
                    self._fail(pass_, numerics, after, feeds, name, verdict.text)

    def _check_equivalents(
        self, pass_: Pass, numerics: Numerics, after: onnx.ModelProto, equivalents: Sequence[Equivalent]
    ) -> None:
        assert self._before is not None
        comparison = compare_equivalents(self._before, after, self.feeds, equivalents)
        self.checks.append((pass_.info.name, str(comparison)))
        if comparison.wrong is not None:
            pair, difference = comparison.wrong
            text = f"{pair.after!r} is not {pair.before!r} in its units: {difference}"
            self._fail(pass_, numerics, after, self.feeds[0], pair.after, text)

    def _rounding(
        self, feeds: Feeds, name: str, reference: npt.NDArray[Any], result: npt.NDArray[Any]
    ) -> Verdict | None:
        """The verdict on a model that amplifies roundings: other last bits of its inputs change as much."""
        assert self._before is not None
        if reference.shape != result.shape or reference.dtype != result.dtype or reference.dtype.kind != "f":
            return None
        rng, noise = np.random.default_rng(0), 0.0
        for _ in range(PERTURBATIONS):
            moved = {
                k: (a * (1 + np.finfo(a.dtype).eps * rng.choice((-1, 1), a.shape))).astype(a.dtype)
                if a.dtype.kind == "f"
                else a
                for k, a in feeds.items()
            }
            noise = max(noise, max_abs(reference, run_model(self._before, moved)[name]))
        worst = max_abs(reference, result)
        text = f"max |difference| {worst:.3g}; other last bits of the inputs alone make {noise:.3g}"
        return Verdict(True, text) if worst <= ROUNDINGS * noise else None

    def _fail(
        self, pass_: Pass, numerics: Numerics, after: onnx.ModelProto, feeds: Feeds, output: str, text: str
    ) -> NoReturn:
        assert self._before is not None
        first = first_divergence(self._before, after, feeds, numerics)
        message = f"Pass {pass_.info.name!r} changed output {output!r} by more than it declares: {text}."
        if first is not None:
            message += f" The first value that diverges is {first}."
        if self._reproducer is not None:
            report = {
                "pass": pass_.info.name,
                "declared": str(numerics),
                "output": output,
                "difference": text,
                "first_divergence": None if first is None else first.as_dict(),
            }
            data = (
                serialized(self._before, "The model before the pass"),
                serialized(after, "The model after the pass"),
                npz_bytes(feeds),
            )
            self._reproducer.write(dict(zip(DATA_FILES, data, strict=True)), report)
            files = [shlex.quote(str(self._reproducer.path / name)) for name in DATA_FILES]
            message += f" Reproducer: rnnqc verify {files[0]} {files[1]} --data {files[2]}{_thresholds(numerics)}"
        raise NumericsError(message)


def _thresholds(numerics: Numerics) -> str:
    """Options of `rnnqc verify` that ask for what was declared."""
    if isinstance(numerics, Bitwise):
        return " --min-equal 1"
    if isinstance(numerics, Close):
        return f" --max-abs {numerics.atol:g}"
    return f" --min-sqnr {numerics.min_sqnr_db:g}" if isinstance(numerics, Lossy) else ""


def _rounds_to_float16(model: Model) -> bool:
    return any(n.op == "Cast" and n.attrs.get("to") == FLOAT16 for g in model.graphs() for n in g.nodes)
