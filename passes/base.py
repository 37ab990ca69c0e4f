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


MOVED = (0.02, 0.006)
"""Tolerance of products of states that are moved one way, as by tables of Vitis AI, which the form before has not."""


@dataclass(frozen=True)
class Equivalent:
    """What one value before a pass is after it, column by column: `after = factor * before + offset`, roundings apart.

    Attributes:
        before: Its name, as `rnnqc.passes.verify.divergence.alias` writes it.
        after: The name of the other value, written likewise.
        factor: For each column.
        offset: For each column; None where it is not known.
        columns: How many columns in a row belong together, such as those of a gate.
        units: Of each column: what the tolerance of its offset is a share of, in terms of the second value. One
            without, where that is measured in steps itself.
        tolerance: Of the factor, as a share of it: of a column, and of the columns of a gate together.
        source: A value that both follow from. Where it is not the same before and after, as behind another cell, the
            offset is not compared, and the tolerance is at least `MOVED`: values may drift apart one way. Where it is
            far from the same, nothing is.
    """

    before: str
    after: str
    factor: tuple[float, ...]
    offset: tuple[float, ...] | None = None
    columns: int = 1
    units: tuple[float, ...] | None = None
    tolerance: tuple[float, float] = (0.003, 0.003)  # one percent is found with room on both sides
    source: str = ""


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
        equivalents: Values inside that the pass measures in other units: what a bounded loss hides shows there.
        covered: Whether the equivalents are of everything that the pass rewrote: where they are all right, and the
            constants, a loss comes of roundings.
        calibrated: Whether ranges follow from statistics. Of other data they promise nothing; the loss there is the
            recipe's own, if the constants are right and the model without its quantizers is the one before.
        clipped: Points whose ranges overrides make too small for the calibration data.
        effects: For each override that speaks of a point of this pass, by its number, why it changes nothing; "" where
            it does.
        stored: What operators outside the recurrent layers have in place of float weights, by their paths before.
    """

    modified: bool
    remarks: tuple[Remark, ...] = ()
    statistics: Mapping[str, int] = field(default_factory=dict)
    numerics: Numerics | None = None
    equivalents: tuple[Equivalent, ...] = ()
    covered: bool = False
    calibrated: bool = False
    clipped: tuple[Clipping, ...] = ()
    effects: Mapping[int, str] = field(default_factory=dict)
    stored: Mapping[str, StoredWeight] = field(default_factory=dict)


class Pass(abc.ABC):
    """Base of all passes. A contributor writes `info` and `run`."""

    info: ClassVar[PassInfo]

    @abc.abstractmethod
    def run(self, model: Model) -> PassResult:
        """Rewrites `model` in place."""

    def constant_check(self, model: Model) -> ConstantCheck | None:
        """What will compare the constants that this pass is going to write with their definitions; None for nothing.

        Called before the pass runs, by whoever verifies it; it finds the constants by other means than the pass.
        """
        return None

    @final
    def __call__(self, model: Model) -> PassResult:
        """Checks the requirements, runs, checks the structure and what the pass declares to establish."""
        for property_ in sorted(self.info.requires, key=lambda p: p.value):
            reason = violated(model, property_)
            if reason:
                raise InternalError(
                    f"Pass {self.info.name!r} requires {property_.value!r}, which does not hold: {reason}."
                )
        result = self.run(model)
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
