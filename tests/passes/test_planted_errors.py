"""Errors planted in passes: `lower --verify` has to name the pass, and the first value that is wrong.

What these would catch: a check of numerics that the errors of real compilers pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from lstm_models import LstmCase, RecurrentCase

from rnnqc.diagnostics import NumericsError
from rnnqc.feeds import generate_feeds
from rnnqc.ir import Constant, Model, Node
from rnnqc.passes import Pass, PassManager, PassResult, VerifyNumerics
from rnnqc.passes.divergence import alias
from rnnqc.pipeline import default_passes, executable
from rnnqc.properties import Property
from rnnqc.recipe import load_recipe

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
    def change(node: Node) -> None:
        node.op = op

    return change


def one_step(op: str, ending: str, other: str) -> Edit:
    def edit(model: Model) -> bool:
        found = [n for n in model.graph.nodes if n.op == op and n.outputs[0].name.startswith(ending)]
        for node in found[:1]:
            node.op = other
        return bool(found)

    return edit


def passes_through(node: Node) -> None:
    """Where(c, x, y) becomes x."""
    node.op, kept = "Identity", node.inputs[1]
    node.inputs.clear()
    node.inputs.append(kept)


def passes_through_else(node: Node) -> None:
    """Where(c, x, y) becomes y."""
    node.op, kept = "Identity", node.inputs[2]
    node.inputs.clear()
    node.inputs.append(kept)


def swapped_outputs(node: Node) -> None:
    first, second, *rest = node.outputs
    node.outputs.clear()
    node.outputs.extend([second, first, *rest])


def first_gate(array: np.ndarray) -> np.ndarray:
    array[..., : array.shape[-1] // 4] *= np.float32(1.01)
    return array


class Spoilt(Pass):
    """A pass that makes a mistake afterwards, and says nothing of it."""

    def __init__(self, right: Pass, edit: Edit) -> None:
        self.info = right.info  # type: ignore[misc]
        self._right, self._edit = right, edit

    def run(self, model: Model) -> PassResult:
        result = self._right.run(model)
        if result.modified:
            assert self._edit(model), "the error was not planted"
        return result


LSTM = LstmCase(T=12, B=3, I=6, H=16, dynamic_time=True, dynamic_batch=True)
LENGTHS = LstmCase(T=12, B=3, I=6, H=16, lens=(12, 7, 3))
GRU = RecurrentCase(op="GRU", T=12, B=3, I=6, H=16, dynamic_time=True, dynamic_batch=True)


@dataclass(frozen=True)
class Planted:
    """An error, and what has to be said of it."""

    pass_name: str
    edit: Edit
    said: str
    case: RecurrentCase = LSTM
    unroll: bool = False


PLANTED = {
    "decompose: gates swapped": Planted(
        "decompose-lstm", nodes("Split", "input_gate.product", swapped_outputs), r"diverges is 'Y'"
    ),
    "decompose: bias lost": Planted("decompose-lstm", constants("/B.float", np.zeros_like), r"diverges is 'Y'"),
    "decompose: a scale of 1 %": Planted(
        "decompose-lstm", constants("/R.float", lambda a: a * np.float32(1.01)), r"diverges is 'Y'"
    ),
    "decompose: lengths ignored": Planted(
        "decompose-lstm", nodes("Where", "hidden.masked.signed", passes_through), "diverges is 'Y'", LENGTHS
    ),
    "decompose: lengths off by one": Planted(
        "decompose-lstm", nodes("Less", "time.valid", becomes("LessOrEqual")), "diverges is 'Y'", LENGTHS
    ),
    "decompose: length zero has a last step": Planted(
        "decompose-lstm", nodes("Where", "hidden.picked.signed", passes_through_else), "diverges is 'Y_h'", LENGTHS
    ),
    "insert: gates swapped": Planted(
        "insert-qcdq", nodes("Split", "input_gate.product", swapped_outputs),
        r"diverges is 'the_lstm.forward/(input|output)_gate.product' in Scan .* at step 0",
    ),
    "insert: a wrong activation": Planted(
        "insert-qcdq", nodes("Tanh", "cell_gate.value", becomes("Sigmoid")),
        r"diverges is 'the_lstm.forward/cell_gate.value' in Scan .* at step 0",
    ),
    "insert: the sign of a state": Planted(
        "insert-qcdq", nodes("Add", "cell_state.sum", becomes("Sub")),
        r"diverges is 'the_lstm.forward/cell_state.sum' in Scan .* at step 0",
    ),
    "fold: bias lost": Planted(
        "fold-scales", constants("/B", np.zeros_like), r"'the_lstm.forward/x.projection.steps' .* column \d+ is"
    ),
    "fold: rounding lost": Planted(
        "fold-scales", constants("/B", lambda a: a - np.float32(0.5)),
        r"'the_lstm.forward/x.projection.steps' .* 4096 more, not 4096.5",
    ),
    "fold: gates swapped": Planted(
        "fold-scales", constants("/B", lambda a: np.roll(a, 16, -1)), r"'the_lstm.forward/x.projection.steps'"
    ),
    "fold: the scale of x, 1 %": Planted(
        "fold-scales", constants("/x_multiplier", lambda a: a * np.float32(1.01)),
        r"'the_lstm.forward/x.projection.steps' .* 1\.0(1|09\d+|10\d+) times",
    ),
    "fold: the scale of h, 1 %": Planted(
        "fold-scales", constants("/h_multiplier", lambda a: a * np.float32(1.01)),
        r"'the_lstm.forward/hidden.units' .* 1\.0\d+ times",
    ),
    "fold: the scale of one gate, 1 %": Planted(
        "fold-scales", constants("/h_multiplier", first_gate), r"'the_lstm.forward/hidden.units' .* 1\.0\d+ times"
    ),
    "fold: the scale of h of a GRU, 1 %": Planted(
        "fold-scales", constants("/h_multiplier", lambda a: a * np.float32(1.01)),
        r"'the_lstm.forward/(reset.)?hidden.units' .* 1\.0\d+ times", GRU,
    ),
    "cleanup: a value in the loop": Planted(
        "cleanup", nodes("Round", "cell_state.rounded", becomes("Floor")),
        r"diverges is 'the_lstm.forward/int8/cell_state.rounded' in Scan .* in If .* at step 0",
    ),
    "unroll: one of the steps": Planted(
        "unroll", one_step("Round", "the_lstm.forward/step_3/cell_state.rounded", "Ceil"),
        r"diverges is 'the_lstm.forward/cell_state.rounded\w*' in Scan .* at step 3",
        LstmCase(T=5, B=3, I=6, H=16), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_pass_and_value_are_named(name: str) -> None:
    planted = PLANTED[name]
    proto = planted.case.model()
    passes = default_passes(load_recipe("int8"), "integer", planted.unroll)
    last = max(k for k, p in enumerate(passes) if p.info.name == planted.pass_name)
    passes[last] = Spoilt(passes[last], planted.edit)
    usual = [generate_feeds(proto, seed=s) for s in (0, 1)]
    verifier = VerifyNumerics(usual, executable=executable, extreme=[generate_feeds(proto, extreme=True)])
    with pytest.raises(NumericsError, match=rf"(?s)Pass '{planted.pass_name}' changed .*{planted.said}"):
        PassManager(passes, [verifier], given=frozenset({Property.CANONICAL})).run(Model.load(proto))
