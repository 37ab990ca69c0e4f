"""The contract of a pass: a rewrite of a model with declared requirements, effects and numerics."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

from rnnqc.errors import InternalError, NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Numerics
from rnnqc.ir import Model, Node
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.invariants import Property, violated
from rnnqc.recipes.clipping import Clipping
from rnnqc.recipes.resolved import ResolvedPoint


@dataclass(frozen=True)
class PassInfo:
    """The declaration of a pass; read by the pass manager, `rnnqc passes` and the documentation.

    Attributes:
        name: kebab-case, as the file's name.
        summary: Imperative, one line.
        numerics: What the pass may change.
        requires: Facts that must hold before.
        sets: Facts that hold afterwards.
        clears: Facts that may no longer hold afterwards.
    """

    name: str
    summary: str
    numerics: Numerics
    requires: frozenset[Property] = frozenset()
    sets: frozenset[Property] = frozenset()
    clears: frozenset[Property] = frozenset()


@dataclass(frozen=True)
class StoredWeight:
    """Constants that replace a float weight of an operator outside the recurrent layers.

    Attributes:
        form: Description, for example "int8 rows".
        constants: Size in bytes of each constant, by name; a constant that several operators share has one name.
    """

    form: str
    constants: Mapping[str, int]


@dataclass(frozen=True)
class PassResult:
    """The result of one run of a pass.

    Attributes:
        modified: Whether the pass changed the model; exact.
        remarks: Remarks about the sites that the pass looked at.
        statistics: Counts, e.g. of sites lowered.
        numerics: What this run may have changed, where that is less than the pass declares.
        clipped: Points whose ranges overrides make too small for the calibration data.
        effects: For each override that matches a point of this pass, by its number: why it has no effect, or "" if it
            has one.
        formats: For each point, what the recipe asks for and the resulting format.
        stored: The constants that replace float weights of operators outside the recurrent layers, by the path that the
            operator had before the pass.
    """

    modified: bool
    remarks: tuple[Remark, ...] = ()
    statistics: Mapping[str, int] = field(default_factory=dict)
    numerics: Numerics | None = None
    clipped: tuple[Clipping, ...] = ()
    effects: Mapping[int, str] = field(default_factory=dict)
    formats: Mapping[str, ResolvedPoint] = field(default_factory=dict)
    stored: Mapping[str, StoredWeight] = field(default_factory=dict)


class Pass(abc.ABC):
    """Base of all passes. A contributor writes `info` and `run`."""

    info: ClassVar[PassInfo]
    infers_shapes: ClassVar[bool] = False
    """Whether shapes are inferred after a run: later passes read those of the values that it makes."""

    @abc.abstractmethod
    def run(self, model: Model) -> PassResult:
        """Rewrites `model` in place. `__call__` then tidies and sorts it: see `keeps` and `infers_shapes`."""

    def keeps(self, node: Node) -> bool:
        """Whether a node stays after a run although nothing uses it."""
        return False

    def constant_check(self, model: Model) -> ConstantCheck | None:
        """Returns the check that compares the constants written by this pass with their definitions; None without one.

        The verifier calls it before the pass runs; the check derives the constants independently of the pass.
        """
        return None

    @final
    def __call__(self, model: Model) -> PassResult:
        """Checks the requirements, runs the pass, tidies and checks a modified model, and checks the facts it sets."""
        for property_ in sorted(self.info.requires, key=lambda p: p.value):
            reason = violated(model, property_)
            if reason:
                raise InternalError(
                    f"Pass {self.info.name!r} requires {property_.value!r}, which does not hold: {reason}."
                )
        with model.identities():
            result = self.run(model)
        if result.modified:
            model.remove_dead(self.keeps)
            model.sort()
            if self.infers_shapes:
                model.infer_shapes()
            model.check()
        for property_ in sorted(self.info.sets, key=lambda p: p.value):
            reason = violated(model, property_)
            if reason:
                raise InternalError(
                    f"Pass {self.info.name!r} declares {property_.value!r}, which does not hold: {reason}."
                )
        return result

    def remark(self, outcome: Outcome, node: str, op: str, reason: str, found: str = "", action: str = "") -> Remark:
        """Returns a remark of this pass."""
        return Remark(self.info.name, outcome, node, op, reason, found, action)

    def refused(self, outcome: Outcome, node: str, op: str, why: NotHandled) -> Remark:
        """Returns a remark with the reason why a site stays unchanged."""
        return self.remark(outcome, node, op, why.reason, why.found, why.action)
