"""Compares the changes of one pass with what it declares: constants, outputs and inner values."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import onnx

from rnnqc.cells.base import Cell
from rnnqc.data.npz import npz_bytes
from rnnqc.errors import CompileError, NumericsError
from rnnqc.evaluation.numerics import Bitwise, Close, Float16Close, Lossy, Numerics, Verdict, max_abs, sqnr_db
from rnnqc.ir import Model
from rnnqc.passes.base import Pass, PassResult
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.verify.compare_steps import compare_steps
from rnnqc.passes.verify.divergence import Divergence, first_divergence
from rnnqc.passes.verify.model_runs import Feeds, ModelRuns, moved
from rnnqc.passes.verify.reproducer import DATA_FILES, ReproducerFolder
from rnnqc.passes.verify.row_inputs import compare_rows
from rnnqc.proto.files import serialized

FLOAT16 = int(onnx.TensorProto.FLOAT16)
NOT_COMPARED = "not compared"
OUTPUT, STEP, CONSTANT = "output", "step", "constant"
OWN_LOSS = "a loss of the recipe's own"
PERTURBATIONS, ROUNDINGS = 3, 16.0
"""Allowed rounding error, as a multiple of the largest effect of several one-ULP changes of the inputs."""
WITHOUT_LOSS = 1e-5
"""Largest difference of the model without a pass's quantizers to the one before, as a share of the largest value."""


@dataclass(frozen=True)
class Trial:
    """The settings for comparing passes.

    Attributes:
        feeds: Inputs to run with; the first `usual` of them are usual values, to which a declared loss applies.
        usual: Number of feeds with usual values.
        executable: Converts a model that onnxruntime refuses to one that it runs.
        reproducer: Folder for the reproducer, or None.
    """

    feeds: Sequence[Feeds]
    usual: int
    executable: Callable[[onnx.ModelProto], onnx.ModelProto] | None
    reproducer: ReproducerFolder | None


class PassComparison:
    """The comparison of one pass.

    Args:
        trial: The settings.
        pass_: The pass.
        model: The model after the pass.
        result: The result of the pass.
        before: Runs of the model before the pass.
        after: Runs of the model after the pass.
        constants: The check of the constants that the pass wrote, or None.
        cells: The cells before the pass.

    Attributes:
        notes: What was compared, and what was not, in order.
        is_compared: Whether outputs were compared.
    """

    def __init__(
        self,
        trial: Trial,
        pass_: Pass,
        model: Model,
        result: PassResult,
        before: ModelRuns,
        after: ModelRuns,
        constants: ConstantCheck | None,
        cells: Mapping[str, Cell],
    ) -> None:
        self._trial, self._pass, self._model = trial, pass_, model
        self._before, self._after, self._constants, self._cells = before, after, constants, cells
        self.notes: list[str] = []
        self.is_compared = False
        self._found: Findings | None = None
        self._is_same_without_loss = self._is_same_inside = False
        numerics = result.numerics or pass_.info.numerics
        if isinstance(numerics, Close) and _rounds_to_float16(model):
            numerics = Float16Close()  # one ULP of float32 may change a float16
        self._numerics: Numerics = numerics

    def run(self) -> None:
        """Compares constants, outputs and inner values; reports differences of the run before wrong constants.

        Raises:
            NumericsError: The pass changed more than it declares.
        """
        feeds, numerics = self._trial.feeds, self._numerics
        if self._constants is not None:
            self._found = self._constants.findings(self._model)
            self.notes.append(str(self._found))
        try:
            for number in range(len(feeds)):
                self._before.of(number)
        except CompileError as error:
            reason = error.message.removesuffix(".")
            self.notes.append(f"{NOT_COMPARED}: the model before it does not run: {reason}")
        else:
            count = self._trial.usual if isinstance(numerics, Lossy) else len(feeds)
            if not count:
                reason = "a loss is declared for usual values, and no data that the model is made for is given"
                self.notes.append(f"{NOT_COMPARED}: {reason}")
            self._compare_without_loss()
            if isinstance(numerics, Lossy):  # for a lossy pass, steps show more than outputs
                self._compare_steps()
            for number in range(count):
                self._compare_outputs(number)
            if not isinstance(numerics, Lossy):
                self._compare_steps()
            for number in range(count, len(feeds)):
                self._results_after(number)  # the model must run on them
            self.is_compared = count > 0
        if self._found is not None and self._found.wrong:
            wrong = self._found.wrong[0]
            others = f" ({len(self._found.wrong)} constants are wrong)" if len(self._found.wrong) > 1 else ""
            self._fail(numerics, self._after, 0, wrong.constant or wrong.what, f"{wrong}{others}", kind=CONSTANT)

    def _results_after(self, number: int) -> dict[str, Any]:
        try:
            return self._after.of(number)
        except CompileError as error:
            name = next(iter(self._before.of(number)), "")
            self._fail(self._numerics, self._after, number, name, error.message)

    def _compare_outputs(self, number: int) -> None:
        before, numerics, results = self._before.of(number), self._numerics, self._results_after(number)
        for name, reference in before.items():
            if name not in results:
                self._fail(numerics, self._after, number, name, "the output is gone")
            verdict = self._verdict(numerics, number, name, reference, results[name])
            own = None if verdict.ok else self._own_loss(reference, results[name])
            if own is not None:
                self.notes.append(f"{OWN_LOSS}: output {name!r}: {verdict.text}; {own}")
                continue
            self.notes.append(f"{name}: {verdict.text}")
            if not verdict.ok:
                self._fail(numerics, self._after, number, name, verdict.text)

    def _verdict(self, numerics: Numerics, number: int, name: str, reference: Any, result: Any) -> Verdict:
        verdict = numerics.check(np.asarray(reference), np.asarray(result))
        if not verdict.ok and isinstance(numerics, Close):
            return self._rounding(number, name, reference, result) or verdict
        return verdict

    def _own_loss(self, reference: Any, result: Any) -> str | None:
        """Returns why a loss beyond the bound comes from the recipe's formats; None if it may be an error."""
        a, b = np.asarray(reference), np.asarray(result)
        if not isinstance(self._numerics, Lossy) or (a.shape, a.dtype) != (b.shape, b.dtype):
            return None
        if a.dtype.kind == "f" and not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return None
        if self._found is not None and self._found.wrong:
            return None
        if self._is_same_without_loss:
            return "without quantizers the model is the same"
        if self._is_same_inside and sqnr_db(a, b) >= 0.0:
            return "every single step is right: roundings that a loop feeds back make it"
        return None

    def _compare_without_loss(self) -> None:
        """Checks that the model without the pass's quantizers equals the one before."""
        proto = self._constants.without_loss(self._model) if self._constants is not None else None
        if proto is None:
            return
        runs = ModelRuns(proto, self._trial.feeds, self._trial.executable)
        worst = 0.0
        for number in range(self._trial.usual):
            before = self._before.of(number)
            try:
                results = runs.of(number)
            except CompileError as error:
                self.notes.append(f"{NOT_COMPARED} without quantizers: {error.message}")
                return
            for name, reference in before.items():
                numerics = Close(WITHOUT_LOSS)
                verdict = self._verdict(numerics, number, name, reference, results[name])
                if not verdict.ok:
                    text = f"without its quantizers the model is another: {verdict.text}"
                    self._fail(numerics, runs, number, name, text)
                worst = max(worst, max_abs(np.asarray(reference), np.asarray(results[name])))
        self.notes.append(f"without quantizers: max abs difference {worst:.3g}")
        self._is_same_without_loss = self._trial.usual > 0

    def _compare_steps(self) -> None:
        """Compares one step of each cell, before and after the pass, on the same inputs."""
        cells = Model.load(self._before.proto).cells if self._before.is_converted else self._cells
        sides = (self._before.proto, cells, self._after.proto, self._model.cells)
        rows = compare_rows(*sides, self._trial.feeds[: self._trial.usual])
        if rows.wrong is not None:
            self._fail(self._numerics, self._after, rows.wrong[0], "", rows.wrong[1], kind=STEP)
        self.notes += [str(rows)] if rows.cells else []
        found = compare_steps(*sides)
        if not (found.cells or found.bodies or found.wrong):
            return
        self.notes.append(str(found))
        if found.wrong:
            text = f"{found.wrong[0]}" + (f"; {len(found.wrong)} such parts" if len(found.wrong) > 1 else "")
            self._fail(self._numerics, self._after, 0, "", text, kind=STEP)
        self._is_same_inside = found.rewritten and not found.passed_over and not rows.passed_over

    def _rounding(self, number: int, name: str, reference: Any, result: Any) -> Verdict | None:
        """Returns a passing verdict if the model amplifies roundings: one-ULP changes of its inputs do as much.

        For a model without float inputs (tokens), its constants change instead.
        """
        a, b = np.asarray(reference), np.asarray(result)
        if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind != "f":
            return None
        feeds = self._trial.feeds[number]
        what = "inputs" if any(f.dtype.kind == "f" for f in feeds.values()) else "constants"
        rng, noise = np.random.default_rng(0), 0.0
        for _ in range(PERTURBATIONS):
            other = self._before.run(moved(feeds, rng)) if what == "inputs" else self._before.moved(rng).run(feeds)
            noise = max(noise, max_abs(a, other[name]))
        worst = max_abs(a, b)
        text = f"max abs difference {worst:.3g}; other last bits of the {what} alone make {noise:.3g}"
        return Verdict(True, text) if worst <= ROUNDINGS * noise else None

    def _fail(
        self, numerics: Numerics, after: ModelRuns, number: int, value: str, text: str, *, kind: str = OUTPUT
    ) -> NoReturn:
        feeds = self._trial.feeds[number] if self._trial.feeds else {}
        name = self._pass.info.name
        first: Divergence | None = None
        if kind == CONSTANT:
            message = f"Pass {name!r} wrote a wrong constant: {text}."
        elif kind == STEP:
            message = f"Pass {name!r} changed a step of a cell: {text}."
        else:
            first = first_divergence(self._before.proto, after.proto, feeds, numerics)
            message = f"Pass {name!r} changed output {value!r} by more than it declares: {text}."
            if first is not None:
                message += f" The first value that diverges is {first}."
            if self._found is not None and self._found.wrong:
                message += f" A constant is wrong: {self._found.wrong[0]}."
        folder = self._trial.reproducer
        if folder is not None:
            wrong = self._found.wrong if self._found is not None else []
            report = {
                "pass": name,
                "declared": str(numerics),
                "output": value if kind == OUTPUT else None,
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
            message += f" Reproducer: rnnqc verify {files[0]} {files[1]} --data {files[2]}{self._thresholds(number)}"
        raise NumericsError(message)

    def _thresholds(self, number: int) -> str:
        """Returns the options of `rnnqc verify` for the declared numerics."""
        numerics = self._numerics
        if isinstance(numerics, Bitwise):
            return " --min-equal 1"
        if isinstance(numerics, Close):
            with contextlib.suppress(CompileError, IndexError):  # a model that does not run, with a wrong constant
                bounds = [numerics.bound(np.asarray(o)) for o in self._before.of(number).values()]
                return f" --max-abs {max(bounds, default=numerics.share):g}"
            return f" --max-abs {numerics.share:g}"
        return f" --min-sqnr {numerics.min_sqnr_db:g}" if isinstance(numerics, Lossy) else ""


def _rounds_to_float16(model: Model) -> bool:
    return any(n.op == "Cast" and n.attrs.get("to") == FLOAT16 for g in model.graphs() for n in g.nodes)
