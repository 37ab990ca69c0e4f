"""The numerics and the constants of every pass, compared with what it declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import onnx

from rnnqc.cells.base import Cell
from rnnqc.ir import Model
from rnnqc.passes.base import Pass, PassResult
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.manager import Instrument
from rnnqc.passes.verify.model_runs import Feeds, ModelRuns
from rnnqc.passes.verify.pass_comparison import PassComparison, Trial
from rnnqc.passes.verify.reproducer import ReproducerFolder


class VerifyNumerics(Instrument):
    """Runs the model before and after every pass, applies the pass's own comparator, and has its constants checked.

    On failure the values that exist on both sides are compared in order, and the first that diverges is named; with a
    folder, `before.onnx`, `after.onnx`, `feeds.npz` and `report.json` are written there.

    Args:
        feeds: Inputs to run with.
        reproducer: Folder for the reproducer, or None.
        executable: From a model that onnxruntime refuses to one that it runs; of operators that it does not have, say.
        extreme: More inputs, for passes that do not declare a loss: such a bound is for usual values.

    Attributes:
        checks: What was compared (pass, result), and what was not, with the reason.

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
        folder = ReproducerFolder(reproducer) if reproducer is not None else None
        self._trial = Trial([*feeds, *extreme], len(feeds), executable, folder)
        self.checks: list[tuple[str, str]] = []
        self._outcomes: dict[str, bool] = {}
        self._runs: ModelRuns | None = None
        self._constants: ConstantCheck | None = None
        self._cells: dict[str, Cell] = {}

    @property
    def verified(self) -> list[str]:
        """Passes of which outputs were compared, each time that they changed the model."""
        return [name for name, compared in self._outcomes.items() if compared]

    @property
    def unverified(self) -> list[str]:
        """Passes that changed the model at a time when its outputs were not compared."""
        return [name for name, compared in self._outcomes.items() if not compared]

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Keeps the model as it is: its runs are those after the pass before, unless something else has changed it."""
        proto = model.proto
        if self._runs is None or not self._runs.is_of(proto):
            self._runs = self._runs_of(proto)
        self._constants = pass_.constant_check(model)
        self._cells = dict(model.cells)

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Runs both models and compares every output; then the constants."""
        if not result.modified:
            return
        assert self._runs is not None
        after = self._runs_of(model.proto)
        comparison = PassComparison(self._trial, pass_, model, result, self._runs, after, self._constants, self._cells)
        name = pass_.info.name
        try:
            comparison.run()
        finally:
            self.checks += [(name, note) for note in comparison.notes]
        self._outcomes[name] = self._outcomes.get(name, True) and comparison.is_compared
        self._runs = after.released()

    def _runs_of(self, proto: onnx.ModelProto) -> ModelRuns:
        return ModelRuns(proto, self._trial.feeds, self._trial.executable)
