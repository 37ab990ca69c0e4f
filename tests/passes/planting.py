"""Errors planted in passes, and the check that has to find them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest

from rnnqc.calibration.calibrate import calibrate
from rnnqc.data.generated_feeds import generate_feeds
from rnnqc.data.statistics import Statistics
from rnnqc.errors import NumericsError
from rnnqc.ir import Constant, Model, Node
from rnnqc.lowering.executable import executable
from rnnqc.passes import Instrument, Pass, PassManager, PassResult, VerifyNumerics
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.graph.point_names import alias
from rnnqc.passes.invariants import Property
from rnnqc.passes.pipeline import default_passes
from rnnqc.recipes.recipe import load_recipe
from tests.generate.layers import RecurrentCase

Edit = Callable[[Model], bool]


def constants(ending: str, change: Callable[[np.ndarray], np.ndarray]) -> Edit:
    """Changes the constants with such names."""

    def edit(model: Model) -> bool:
        held = {
            id(v): v for g in model.graphs() for n in g.nodes for v in n.inputs
            if isinstance(v, Constant) and v.name.endswith(ending)
        }  # fmt: skip
        for constant in held.values():
            array = np.asarray(constant.values)
            constant.values = change(array.copy()).astype(array.dtype)
        return bool(held)

    return edit


def nodes(op: str, ending: str, change: Callable[[Node], None]) -> Edit:
    """Changes the nodes of an operator that make such values."""

    def edit(model: Model) -> bool:
        found = [
            n for g in model.graphs() for n in g.nodes
            if n.op == op and n.outputs and alias(n.outputs[0].name)[0].endswith(ending)
        ]  # fmt: skip
        for node in found:
            change(node)
        return bool(found)

    return edit


def becomes(op: str) -> Callable[[Node], None]:
    """Gives the node another operator."""

    def change(node: Node) -> None:
        node.op = op

    return change


def becomes_input(position: int) -> Callable[[Node], None]:
    """Makes the node return one of its inputs."""

    def change(node: Node) -> None:
        node.op, kept = "Identity", node.inputs[position]
        node.inputs.clear()
        node.inputs.append(kept)

    return change


class Spoilt(Pass):
    """A pass that silently makes an error after its work."""

    def __init__(self, right: Pass, edit: Edit) -> None:
        self.info = right.info  # type: ignore[misc]
        self._right, self._edit = right, edit

    def constant_check(self, model: Model) -> ConstantCheck | None:
        return self._right.constant_check(model)

    def run(self, model: Model) -> PassResult:
        result = self._right.run(model)
        if result.modified:
            assert self._edit(model), "the error was not planted"
        return result


class VerifiedAlone(Instrument):
    """Verifies one pass only; other tests cover the others."""

    def __init__(self, pass_: Pass, verifier: VerifyNumerics) -> None:
        self._pass, self._verifier = pass_, verifier

    def before_pass(self, pass_: Pass, model: Model) -> None:
        if pass_ is self._pass:
            self._verifier.before_pass(pass_, model)

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        if pass_ is self._pass:
            self._verifier.after_pass(pass_, model, result)


def run(passes: Sequence[Pass], proto: onnx.ModelProto, instrument: Instrument) -> list[PassResult]:
    """Runs passes on a model."""
    return PassManager(passes, [instrument], given=frozenset({Property.CANONICAL})).run(Model.load(proto))


def run_spoilt(
    proto: onnx.ModelProto,
    passes: list[Pass],
    pass_name: str,
    edit: Edit,
    said: str,
    verifier: VerifyNumerics | None = None,
) -> None:
    """Runs the passes, the last `name` with the error; expects a message with `said` after its name."""
    last = max(k for k, p in enumerate(passes) if p.info.name == pass_name)
    spoilt = Spoilt(passes[last], edit)
    with pytest.raises(NumericsError, match=rf"(?s)Pass '{pass_name}' {said}"):
        run(
            [*passes[:last], spoilt, *passes[last + 1 :]],
            proto,
            VerifiedAlone(spoilt, verifier_of(proto) if verifier is None else verifier),
        )


def verifier_of(proto: onnx.ModelProto) -> VerifyNumerics:
    """On the data that `lower --verify` generates."""
    known = executable(proto)
    usual = [generate_feeds(known, seed=s) for s in (0, 1)]
    return VerifyNumerics(usual, executable=executable, extreme=[generate_feeds(known, extreme=True)])


def calibrated_passes(case: RecurrentCase, recipe: str) -> list[Pass]:
    """The passes of a lowering to form integer, calibrated on data like that of the case."""
    return default_passes(load_recipe(recipe), "integer", False, statistics_of(case))


@functools.cache
def statistics_of(case: RecurrentCase) -> Statistics:
    """Returns the statistics of a calibration on data like that of the case."""
    return calibrate(case.model(), [case.replace(seed=s).feeds(padding=0.0) for s in (1, 2, 3)])
