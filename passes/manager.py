"""Runs passes in order and notifies instruments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from rnnqc.errors import PipelineError
from rnnqc.ir import Model
from rnnqc.passes.base import Pass, PassResult
from rnnqc.passes.invariants import Property


class Instrument:
    """Observes passes and never edits the model."""

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Called before `pass_` runs."""

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        """Called when `pass_` has run and its checks have passed."""

    def pass_failed(self, pass_: Pass, model: Model, error: Exception) -> None:
        """Called when `pass_` or one of its checks raised."""


@final
class PassManager:
    """A sequence of passes.

    Args:
        passes: In the order they run.
        instruments: Observers; called in order before a pass and in reverse after it.
        given: Facts that hold for every model passed to `run`.

    Raises:
        PipelineError: A pass requires a fact that no earlier pass establishes, or a pass in between destroys one.
    """

    def __init__(
        self, passes: Sequence[Pass], instruments: Sequence[Instrument] = (), given: frozenset[Property] = frozenset()
    ) -> None:
        self.passes = tuple(passes)
        self.instruments = tuple(instruments)
        holds: dict[Property, str] = dict.fromkeys(given, "the input")
        lost: dict[Property, str] = {}
        for pass_ in self.passes:
            for needed in sorted(pass_.info.requires, key=lambda p: p.value):
                if needed not in holds:
                    cause = (
                        f"pass {lost[needed]!r} before it destroys that"
                        if needed in lost
                        else "no pass before it establishes that"
                    )
                    raise PipelineError(f"Pass {pass_.info.name!r} requires {needed.value!r}, but {cause}.")
            for destroyed in pass_.info.clears:
                if holds.pop(destroyed, None) is not None:
                    lost[destroyed] = pass_.info.name
            holds.update(dict.fromkeys(pass_.info.sets, pass_.info.name))

    def run(self, model: Model) -> list[PassResult]:
        """Runs all passes on `model`, in place; returns their results."""
        results = []
        for pass_ in self.passes:
            for instrument in self.instruments:
                instrument.before_pass(pass_, model)
            try:
                result = pass_(model)
            except Exception as error:
                for instrument in reversed(self.instruments):
                    instrument.pass_failed(pass_, model, error)
                raise
            if result.modified:
                model.provenance.append(pass_.info.name)
            for instrument in reversed(self.instruments):
                instrument.after_pass(pass_, model, result)
            results.append(result)
        return results
