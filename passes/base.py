"""What a pass is: one rewrite of a model that declares what it needs, establishes and may change numerically."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, final

from rnnqc.errors import InternalError, Outcome, Remark
from rnnqc.evaluation.numerics import Numerics
from rnnqc.ir import Model
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
    """What an operator outside the recurrent layers has in place of a float weight.

    Attributes:
        form: In words, such as "int8 rows".
        constants: Bytes of the constants by name; those that operators share have one name.
    """

    form: str
    constants: Mapping[str, int]


@dataclass(frozen=True)
class PassResult:
    """What a pass did.

    Attributes:
        modified: Whether the model is different from before; exact.
        remarks: What the pass has to say about each site.
        statistics: Counts, e.g. of sites lowered.
        numerics: What this run may have changed, where that is less than the pass declares.
        clipped: Points whose ranges overrides make too small for the calibration data.
        effects: For each override that speaks of a point of this pass, by its number, why it changes nothing; "" where
            it does.
        formats: By point what the recipe says and the format it comes to.
        stored: What operators outside the recurrent layers have in place of float weights, by their paths before.
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

    @abc.abstractmethod
    def run(self, model: Model) -> PassResult:
        """Rewrites `model` in place."""

    def constant_check(self, model: Model) -> ConstantCheck | None:
        """What will compare the constants that this pass is going to write with their definitions; None for nothing.

        The verifier calls it before the pass runs; it finds the constants by other means than the pass.
        """
        return None

    @final
    def __call__(self, model: Model) -> PassResult:
        """Checks the requirements, runs, checks a structure that changed, and what the pass declares to establish."""
        for property_ in sorted(self.info.requires, key=lambda p: p.value):
            reason = violated(model, property_)
            if reason:
                raise InternalError(
                    f"Pass {self.info.name!r} requires {property_.value!r}, which does not hold: {reason}."
                )
        with model.identities():
            result = self.run(model)
        if result.modified:
            model.check()
        for property_ in sorted(self.info.sets, key=lambda p: p.value):
            reason = violated(model, property_)
            if reason:
                raise InternalError(
                    f"Pass {self.info.name!r} declares {property_.value!r}, which does not hold: {reason}."
                )
        return result

    def remark(self, outcome: Outcome, node: str, op: str, reason: str, found: str = "", action: str = "") -> Remark:
        """A remark in this pass's name."""
        return Remark(self.info.name, outcome, node, op, reason, found, action)
