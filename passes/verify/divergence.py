"""Finds the first value that differs between two forms of a model, including loops, branches and functions.

All inner values become outputs: those of a Scan or Loop for each step, those of a branch when it is taken; functions
are inlined first. A value is compared with the one of the same name, or else with one whose name differs only by
additions of passes: a number that makes it unique, the step of an unrolled loop, the kind of the integer operands.
Values inside a cell that a pass turns into an integer cell have other units: compare_steps.py compares single steps of
it instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from rnnqc.cells.stages import IntegerCell
from rnnqc.evaluation.numerics import Lossy, Numerics
from rnnqc.ir import Model
from rnnqc.passes.graph.point_names import alias
from rnnqc.passes.verify.inner_values import LOOPS, Array, InnerValues, Place, Series, Steps, places
from rnnqc.proto.inlining import inlined


@dataclass(frozen=True)
class Divergence:
    """The first value that differs too much.

    Attributes:
        value: Its name in the model before the pass.
        inside: The nodes whose subgraphs contain it, from outside to inside: operator and first output.
        step: The first step of the innermost loop at which it differs; None outside of loops.
        text: The difference.
    """

    value: str
    inside: tuple[str, ...]
    step: int | None
    text: str

    def __str__(self) -> str:
        where = "".join(f" in {node}" for node in reversed(self.inside))
        return f"{self.value!r}{where}{'' if self.step is None else f' at step {self.step}'}: {self.text}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return {"value": self.value, "inside": list(self.inside), "step": self.step, "difference": self.text}


def first_divergence(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array], numerics: Numerics
) -> Divergence | None:
    """Returns the first value that both models compute and that differs by more than `numerics` allows.

    The order is that of `before`; values inside a loop come before its results, step by step.

    Returns:
        None if there is no such value, or the values cannot be exposed.
    """
    sides = [inlined(model) for model in (before, after)]
    made = [names_by_alias(model) for model in sides]
    rewritten = _integer_cells(before, after) if isinstance(numerics, Lossy) else ()
    comparable = (place for place in places(sides[0].graph) if not place.name.startswith(rewritten))
    pairs = [(place, _matching(place, *made)) for place in comparable]
    common = [(place, names) for place, names in pairs if names]
    values = InnerValues(sides[0], [p.name for p, _ in common]).of(feeds)
    other = InnerValues(sides[1], [n for _, names in common for n in names]).of(feeds)
    failing: list[tuple[Place, Steps, str]] = []
    for place, names in common:
        if place.name not in values or any(n not in other for n in names):
            continue
        exact = names == [place.name]
        steps = values[place.name]
        others = other[names[0]] if exact or len(names) == 1 else [o for n in names for o in other[n]]
        found = _difference(steps, others, numerics, exact)
        if found is not None:
            failing.append((place, *found))
            if not place.looped:
                break
    if not failing:
        return None
    # The first iteration of a loop at which any value differs, then the same for loops inside it.
    first = failing[0][0].inside[:1]
    there = [f for f in failing if f[0].inside[:1] == first]
    if first and first[0].startswith(LOOPS):
        least = min(f[1][:1] for f in there)
        there = [f for f in there if f[1][:1] == least]
    same = [f for f in there if f[0].inside == there[0][0].inside]
    place, steps_there, text = min(same, key=lambda f: f[1])
    return Divergence(place.name, place.inside, steps_there[-1] if steps_there else None, text)


def _difference(before: Series, after: Series, numerics: Numerics, exact: bool) -> tuple[Steps, str] | None:
    """Returns the first step at which two values differ, and how; None if they agree or cannot be compared."""
    if len(before) != len(after) and not exact:
        return None
    both = min(len(before), len(after))
    pairs = [(a, b) for (_, a), (_, b) in zip(before[:both], after[:both], strict=True)]
    other = any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs)
    if other and not exact:
        return None
    for (steps, _), (a, b) in zip(before[:both], pairs, strict=True):
        verdict = numerics.check(a, b)
        if not verdict.ok:
            return steps, verdict.text
    rest = [*before[both:], *after[both:]]
    return (rest[0][0], f"{len(before)} steps became {len(after)}") if rest else None


def _integer_cells(before: onnx.ModelProto, after: onnx.ModelProto) -> tuple[str, ...]:
    """Returns name prefixes of values in cells that became integer cells, where they have other units."""
    was, is_now = (
        {name for name, cell in Model.load(model).cells.items() if isinstance(cell, IntegerCell)}
        for model in (before, after)
    )
    return tuple(f"{name}/" for name in is_now - was)


def names_by_alias(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Returns the names of values by alias, in the order of steps."""
    found: dict[str, list[tuple[int, str]]] = {}
    for place in places(model.graph):
        short, step = alias(place.name)
        found.setdefault(short, []).append((step, place.name))
    return {short: [n for _, n in sorted(names, key=lambda p: p[0])] for short, names in found.items()}


def _matching(place: Place, before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> list[str]:
    """Returns the other model's names of a value: the same name, the only one with its alias, or one for each step."""
    short = alias(place.name)[0]
    names = after.get(short, [])
    if place.name in names:
        return [place.name]
    steps = [alias(n)[1] for n in names]
    if len(before[short]) > 1 or len(set(steps)) < len(steps):
        return []
    return names if len(names) == 1 or steps == list(range(len(names))) else []
