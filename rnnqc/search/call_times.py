"""Times calls of lowered models in turns, and keeps the models that a search may have to time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx

from rnnqc.data.feeds import Feeds
from rnnqc.lowering.reports.report import Lowered
from rnnqc.measure.runs import has_native
from rnnqc.recipes.rules import Rule
from rnnqc.search.greedy import Assignment, Measured
from rnnqc.sessions import session
from rnnqc.timing import bound_run, session_options, take_turns

ROUNDS = 8
"""The number of rounds in which the models take turns."""


def call_seconds(models: Sequence[onnx.ModelProto], feed: Feeds) -> list[float]:
    """Returns the shortest time of the first call for each model, over several rounds in turns."""
    native = has_native()
    runs = {str(k): bound_run(session(m, native, session_options()), feed) for k, m in enumerate(models)}
    return [min(times) for times in take_turns(runs, ROUNDS, seconds=0.005).values()]


class Kept:
    """Lowers models for a search and keeps those that may be timed at its end: lowering takes longer than timing.

    Args:
        lower: Lowers the model with rules.
        rules_of: The rules of an assignment.
        start: The assignment whose model is always kept.
    """

    def __init__(
        self,
        lower: Callable[[Sequence[Rule]], Lowered],
        rules_of: Callable[[Assignment], Sequence[Rule]],
        start: Assignment,
    ) -> None:
        self._lower, self._rules_of, self._start = lower, rules_of, start
        self._last: tuple[Sequence[Rule], onnx.ModelProto] | None = None
        self._models: dict[Assignment, tuple[Measured, onnx.ModelProto]] = {}

    def lowered(self, rules: Sequence[Rule]) -> Lowered:
        """Lowers the model with rules.

        Raises:
            CompileError: It cannot be lowered with them.
        """
        made = self._lower(rules)
        self._last = rules, made.proto
        return made

    def note(self, assignment: Assignment, measured: Measured) -> None:
        """Keeps the model that was lowered last if it belongs to this assignment and no other kept model beats it."""
        if self._last is None or self._last[0] != self._rules_of(assignment):
            return
        others = [(a, m) for a, (m, _) in self._models.items()]
        if assignment != self._start and any(_beats(m, measured) for _, m in others):
            return
        for other, m in others:
            if other != self._start and _beats(measured, m):
                del self._models[other]
        self._models[assignment] = measured, self._last[1]

    def has(self, assignment: Assignment) -> bool:
        """Whether the model of an assignment was kept."""
        return assignment in self._models

    def of(self, assignment: Assignment) -> onnx.ModelProto:
        """Returns the model of an assignment; lowers it again if it was not kept."""
        if assignment in self._models:
            return self._models[assignment][1]
        return self._lower(self._rules_of(assignment)).proto


def _beats(one: Measured, other: Measured) -> bool:
    """Whether `one` costs no more and is at least as good."""
    return one.cost <= other.cost and one.quality >= other.quality
