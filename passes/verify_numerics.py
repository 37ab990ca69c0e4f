"""The numerics and the constants of every pass, compared with what it declares."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx

from rnnqc.diagnostics import CompileError, NumericsError
from rnnqc.feeds import npz_bytes
from rnnqc.files import serialized
from rnnqc.ir import Model
from rnnqc.numerics import Bitwise, Close, Float16Close, Lossy, Numerics, Verdict, max_abs
from rnnqc.passes.base import Pass, PassResult
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.divergence import Divergence, first_divergence
from rnnqc.passes.equivalents import compare_equivalents
from rnnqc.passes.manager import Instrument
from rnnqc.passes.model_runs import Feeds, ModelRuns, moved
from rnnqc.passes.reproducer import DATA_FILES, ReproducerFolder

FLOAT16 = int(onnx.TensorProto.FLOAT16)
NOT_COMPARED = "not compared"
OWN_LOSS = "a loss of the recipe's own"
PERTURBATIONS, ROUNDINGS = 3, 16.0
"""A rounding may do as much as so many times the worst of some changes of the inputs by a unit in the last place."""
WITHOUT_LOSS = 1e-5
"""How far the model without what a pass loses may be from the one before, as a share of the largest value."""


class VerifyNumerics(Instrument):
    """Runs the model before and after every pass, applies the pass's own comparator, and has its constants checked.

    On failure the values that exist on both sides are compared in order, and the first that diverges is named; with a
    folder, `before.onnx`, `after.onnx`, `feeds.npz` and `report.json` are written there.

    Args:
        feeds: Inputs to run with.
        reproducer: Folder for the reproducer, or None.
        executable: From a model that onnxruntime refuses to one that it runs; of operators that it does not have, say.
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
        self._executable = executable
        self.checks: list[tuple[str, str]] = []
        self._runs: ModelRuns | None = None
        self._constants: ConstantCheck | None = None

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Keeps the model as it is: its runs are those after the pass before, unless something else has changed it."""
        proto = model.proto
        if self._runs is None or not self._runs.is_of(proto):
            self._runs = ModelRuns(proto, self.feeds, self._executable)
        self._constants = pass_.constant_check(model)

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Runs both models and compares every output; then the constants."""
        if not result.modified:
            return
        assert self._runs is not None
        after = ModelRuns(model.proto, self.feeds, self._executable)
        comparison = _Comparison(self, pass_, model, result, self._runs, after)
        comparison.constants = self._constants
        comparison.run()
        self._runs = after.released()


class _Comparison:
    """What is compared of one pass."""

    def __init__(
        self, owner: VerifyNumerics, pass_: Pass, model: Model, result: PassResult, before: ModelRuns, after: ModelRuns
    ) -> None:
        self._owner, self._pass, self._model, self._result = owner, pass_, model, result
        self._before, self._after = before, after
        self.constants: ConstantCheck | None = None
        self._found: Findings | None = None
        self._is_complete = False
        numerics = result.numerics or pass_.info.numerics
        if isinstance(numerics, Close) and _rounds_to_float16(model):
            numerics = Float16Close()  # another last bit of a float32 may be another float16
        self._numerics: Numerics = numerics

    def run(self) -> None:
        """Compares constants, outputs and values inside; fails with what the run shows, or else with a constant."""
        owner, numerics = self._owner, self._numerics
        if self.constants is not None:
            self._found = self.constants.findings(self._model)
            self._note(str(self._found))
        try:
            for number in range(len(owner.feeds)):
                self._before.of(number)
        except CompileError:
            self._note(f"{NOT_COMPARED}: onnxruntime does not run the model before it")
        else:
            count = owner._usual if isinstance(numerics, Lossy) else len(owner.feeds)
            if not count:
                reason = "a loss is declared for usual values, and no data that the model is made for is given"
                self._note(f"{NOT_COMPARED}: {reason}")
            self._compare_without_loss()
            self._compare_equivalents()
            for number in range(count):
                self._compare_outputs(number)
        if self._found is not None and self._found.wrong:
            wrong = self._found.wrong[0]
            others = f" ({len(self._found.wrong)} constants are wrong)" if len(self._found.wrong) > 1 else ""
            self._fail(numerics, self._after, 0, wrong.constant or wrong.what, f"{wrong}{others}", constant=True)

    def _note(self, text: str) -> None:
        self._owner.checks.append((self._pass.info.name, text))

    def _compare_outputs(self, number: int) -> None:
        before, numerics = self._before.of(number), self._numerics
        try:
            results = self._after.of(number)
        except CompileError as error:
            self._fail(numerics, self._after, number, next(iter(before), ""), error.message)
        for name, reference in before.items():
            if name not in results:
                self._fail(numerics, self._after, number, name, "the output is gone")
            verdict = self._verdict(numerics, number, name, reference, results[name])
            if not verdict.ok and self._is_own_loss(reference, results[name]):
                self._note(f"{OWN_LOSS}: output {name!r}: {verdict.text}; without quantizers the model is the same")
                continue
            self._note(f"{name}: {verdict.text}")
            if not verdict.ok:
                self._fail(numerics, self._after, number, name, verdict.text)

    def _verdict(self, numerics: Numerics, number: int, name: str, reference: Any, result: Any) -> Verdict:
        verdict = numerics.check(np.asarray(reference), np.asarray(result))
        if not verdict.ok and isinstance(numerics, Close):
            return self._rounding(number, name, reference, result) or verdict
        return verdict

    def _is_own_loss(self, reference: Any, result: Any) -> bool:
        """Whether a loss beyond the bound is what ranges cost of data that they were not made for."""
        a, b = np.asarray(reference), np.asarray(result)
        right = self._is_complete and self._found is not None and not self._found.wrong
        return bool(
            right
            and self._result.calibrated
            and isinstance(self._numerics, Lossy)
            and (a.shape, a.dtype) == (b.shape, b.dtype)
            and (a.dtype.kind != "f" or np.array_equal(np.isfinite(a), np.isfinite(b)))
        )

    def _compare_without_loss(self) -> None:
        """The model without what the pass loses has to be the one before."""
        proto = self.constants.without_loss(self._model) if self.constants is not None else None
        if proto is None:
            return
        runs = ModelRuns(proto, self._owner.feeds, self._owner._executable)
        worst = 0.0
        for number in range(self._owner._usual):
            before = self._before.of(number)
            try:
                results = runs.of(number)
            except CompileError as error:
                self._note(f"{NOT_COMPARED}: without quantizers: {error.message}")
                return
            for name, reference in before.items():
                largest = max(1.0, max_abs(np.nan_to_num(np.asarray(reference)), 0.0) if _is_float(reference) else 1.0)
                numerics = Close(WITHOUT_LOSS * largest)
                verdict = self._verdict(numerics, number, name, reference, results[name])
                if not verdict.ok:
                    text = f"without its quantizers the model is another: {verdict.text}"
                    self._fail(numerics, runs, number, name, text)
                worst = max(worst, max_abs(np.asarray(reference), np.asarray(results[name])))
        self._note(f"without quantizers: max |difference| {worst:.3g}")
        self._is_complete = self._owner._usual > 0

    def _compare_equivalents(self) -> None:
        if not self._result.equivalents:
            return
        feeds = self._owner.feeds
        comparison = compare_equivalents(self._before.proto, self._after.proto, feeds, self._result.equivalents)
        self._note(str(comparison))
        if comparison.wrong is not None:
            pair, difference = comparison.wrong
            text = f"{pair.after!r} is not {pair.before!r} in its units: {difference}"
            self._fail(self._numerics, self._after, 0, pair.after, text)

    def _rounding(self, number: int, name: str, reference: Any, result: Any) -> Verdict | None:
        """The verdict on a model that amplifies roundings: other last bits of its inputs change as much."""
        a, b = np.asarray(reference), np.asarray(result)
        if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind != "f":
            return None
        rng, noise = np.random.default_rng(0), 0.0
        for _ in range(PERTURBATIONS):
            other = self._before.run(moved(self._owner.feeds[number], rng))
            noise = max(noise, max_abs(a, other[name]))
        worst = max_abs(a, b)
        text = f"max |difference| {worst:.3g}; other last bits of the inputs alone make {noise:.3g}"
        return Verdict(True, text) if worst <= ROUNDINGS * noise else None

    def _fail(
        self, numerics: Numerics, after: ModelRuns, number: int, value: str, text: str, *, constant: bool = False
    ) -> NoReturn:
        feeds = self._owner.feeds[number] if self._owner.feeds else {}
        name = self._pass.info.name
        first: Divergence | None = None
        if constant:
            message = f"Pass {name!r} wrote a wrong constant: {text}."
        else:
            first = first_divergence(self._before.proto, after.proto, feeds, numerics)
            message = f"Pass {name!r} changed output {value!r} by more than it declares: {text}."
            if first is not None:
                message += f" The first value that diverges is {first}."
            if self._found is not None and self._found.wrong:
                message += f" A constant is wrong: {self._found.wrong[0]}."
        folder = self._owner._reproducer
        if folder is not None:
            wrong = self._found.wrong if self._found is not None else []
            report = {
                "pass": name,
                "declared": str(numerics),
                "output": None if constant else value,
                "difference": text,
                "first_divergence": None if first is None else first.as_dict(),
                "wrong_constants": [w.as_dict() for w in wrong],
            }
            data = (
                serialized(self._before.proto, "The model before the pass"),
                serialized(after.proto, "The model after the pass"),
                npz_bytes(feeds),
            )
            folder.write(dict(zip(DATA_FILES, data, strict=True)), report)
            files = [shlex.quote(str(folder.path / file)) for file in DATA_FILES]
            message += f" Reproducer: rnnqc verify {files[0]} {files[1]} --data {files[2]}{_thresholds(numerics)}"
        raise NumericsError(message)


def _thresholds(numerics: Numerics) -> str:
    """Options of `rnnqc verify` that ask for what was declared."""
    if isinstance(numerics, Bitwise):
        return " --min-equal 1"
    if isinstance(numerics, Close):
        return f" --max-abs {numerics.atol:g}"
    return f" --min-sqnr {numerics.min_sqnr_db:g}" if isinstance(numerics, Lossy) else ""


def _is_float(value: Any) -> bool:
    return np.asarray(value).dtype.kind == "f"


def _rounds_to_float16(model: Model) -> bool:
    return any(n.op == "Cast" and n.attrs.get("to") == FLOAT16 for g in model.graphs() for n in g.nodes)
