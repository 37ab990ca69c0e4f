"""Compares the numerics and the constants of every pass with what it declares."""

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
    """Runs the model before and after every pass, applies the pass's own comparator, and checks its constants.

    On failure, it compares the values that exist on both sides in order and names the first that diverges; with a
    folder, it writes `before.onnx`, `after.onnx`, `feeds.npz` and `report.json` there.

    Args:
        feeds: Inputs to run with.
        reproducer: Folder for the reproducer, or None.
        executable: Converts a model that onnxruntime refuses, for example for unknown operators, to one that it runs.
        extreme: More inputs, for passes that declare no loss: the bound of a loss applies to usual values.

    Attributes:
        checks: Pairs of a pass and what was compared, or was not, with the reason.

    Raises:
        UsageError: The folder has files that would be replaced but are not from an earlier run.
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
        """The passes whose outputs were compared, once for each change of the model."""
        return [name for name, compared in self._outcomes.items() if compared]

    @property
    def unverified(self) -> list[str]:
        """The passes that changed the model while its outputs were not compared."""
        return [name for name, compared in self._outcomes.items() if not compared]

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Keeps the model, and reuses the runs after the previous pass unless something else changed the model."""
        proto = model.proto
        if self._runs is None or not self._runs.is_of(proto):
            self._runs = self._runs_of(proto)
        self._constants = pass_.constant_check(model)
        self._cells = dict(model.cells)

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Runs both models and compares every output, then the constants."""
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
