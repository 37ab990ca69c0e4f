"""Random valid models with recurrent layers, their inputs, and how to lower them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.testing.draws import Draws, SeededDraws
from rnnqc.testing.layers import RecurrentCase, stacked_model
from rnnqc.testing.nesting import condition, nested
from rnnqc.testing.random_layers import draw_layer, is_unbounded
from rnnqc.testing.recurrences import FORMS, GATES, RecurrenceCase
from rnnqc.testing.renaming import STYLES, rename

Array = npt.NDArray[Any]
# (name, whether statistics of the case's own feeds are given): recipes that need none, with and without, and the rest.
RECIPES = (
    ("int8", False), ("int8", False), ("int8", True), ("int16", False), ("w4a8", False),
    ("int8-static", True), ("pow2-int8", True), ("pow2-int8-floor", True), ("pow2-int16", True), ("pow2-w8a16", True),
    ("brevitas-int8", True), ("distiller-sym", True), ("distiller-asym", True), ("distiller-avg", True),
    ("weight-only-int8", False), ("weight-only-int4", False), ("fp16", False),
)  # fmt: skip
NEED_DATA = {name for name, _ in RECIPES} - {name for name, calibrated in RECIPES if not calibrated}


@dataclass(frozen=True)
class Case:
    """One model with recurrent layers; everything about it is a function of the fields.

    Attributes:
        layers: LSTM, GRU or RNN nodes: one, wherever it stands, or several in a row.
        recurrence: Instead, a recurrence written with Scan, Loop, or step by step.
        shared: Layers in a row use the same initializers.
        depth: How many If nodes are around everything.
        naming: One of `renaming.STYLES`.
        recipe: The recipe to lower it with.
        calibrated: Whether statistics of its feeds are used; some recipes need them.
        seed: What it was made of; of nothing else.
    """

    layers: tuple[RecurrentCase, ...] = ()
    recurrence: RecurrenceCase | None = None
    shared: bool = False
    depth: int = 0
    naming: str = "plain"
    recipe: str = "int8"
    calibrated: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.recipe in NEED_DATA and not self.calibrated:
            raise ValueError(f"recipe {self.recipe!r} needs statistics: calibrated=True")

    def model(self) -> onnx.ModelProto:
        """The model."""
        if self.recurrence is not None:
            made = self.recurrence.model()
        elif len(self.layers) == 1:
            made = self.layers[0].model()
        else:
            made = stacked_model(self.layers, self.shared)
        made = nested(made, self.depth)
        if self.naming != "plain":
            rename(made, STYLES[self.naming])
        return made

    def feeds(self) -> list[dict[str, Array]]:
        """Seeded inputs by name, at least two, taking every branch; shorter sequences end in zeros."""
        ways = self.depth + (len(self.layers) == 1 and self.layers[0].placement == "if")
        made = []
        for k in range(max(2, 2**ways)):
            feed: dict[str, Array]
            if self.recurrence is not None:
                feed = self.recurrence.feeds(seed=k)
            else:
                layer = self.layers[0]
                drawn = replace(layer, seed=layer.seed + k).feeds(padding=0.0, condition=not k >> self.depth & 1)
                feed = drawn if len(self.layers) == 1 else {"X": drawn["X"]}
            for level in range(self.depth):
                feed[condition(level)] = np.array(not k >> level & 1)
            made.append({STYLES[self.naming](name): value for name, value in feed.items()})
        return made

    @property
    def dims(self) -> dict[str, int]:
        """What has to be bound before loops can be written out."""
        found = self.layers[0].dims if self.layers else {}
        return {STYLES[self.naming](name): size for name, size in found.items()}

    @property
    def bounded(self) -> bool:
        """Whether gates and states stay in the usual range, so that the accuracy can be foretold."""
        if self.recurrence is not None:
            return set(self.recurrence.activations) <= {"Sigmoid", "Tanh"}
        return not any(is_unbounded(layer.activations) for layer in self.layers)

    def __str__(self) -> str:
        """The fields that are not as usual, as an expression that makes the case again."""
        return _expression(self)


def _expression(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + "".join(f"{_expression(v)}, " for v in value) + ")"
    if not hasattr(value, "__dataclass_fields__"):
        return repr(value)
    shown = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
    return f"{type(value).__name__}({', '.join(f'{k}={_expression(v)}' for k, v in shown.items())})"


def generate(seed: int) -> Case:
    """The case of a seed."""
    return draw_case(SeededDraws(seed), seed)


def draw_case(draws: Draws, seed: int = 0) -> Case:
    """Any case."""
    make = draws.choice((_one_layer, _one_layer, _one_layer, _one_layer, _rows, _rows, _written, _written))
    recipe, calibrated = draws.choice(RECIPES)
    fields_: Mapping[str, Any] = make(draws)
    return Case(
        **fields_,
        depth=draws.choice((0, 0, 0, 0, 1, 2)),
        naming=draws.choice(("plain", "plain", *STYLES)),
        recipe=recipe,
        calibrated=calibrated,
        seed=seed,
    )


def _one_layer(draws: Draws) -> dict[str, Any]:
    op = draws.choice(("LSTM", "LSTM", "GRU", "RNN"))
    return {"layers": (draw_layer(draws, op=op, layouts=(0, 0, 0, 1)),)}


def _rows(draws: Draws) -> dict[str, Any]:
    """Two or three layers, the outputs of one the inputs of the next; of one kind if they share weights."""
    shared = draws.choice((False, False, True))
    without: dict[str, Any] = {"lens": None, "initial_h": False, "initial_c": False, "peepholes": False}
    draw = partial(draw_layer, opsets=(13, 22), placements=("main",), weights="initializer", **without)
    outputs = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}
    op = draws.choice(("LSTM", "GRU", "RNN"))
    layers = [draw(draws, op=op, outputs=outputs[op])]
    for _ in range(draws.integer(1, 2)):
        before = layers[-1]
        if shared:
            layers[0] = before = replace(before, I=before.directions * before.H)
            layers.append(before)
            continue
        op = draws.choice(("LSTM", "GRU", "RNN"))
        layer = draw(draws, op=op, outputs=outputs[op], T=before.T, B=before.B, opset=before.opset)
        layers.append(replace(layer, I=before.directions * before.H))
    return {"layers": tuple(layers), "shared": shared}


def _written(draws: Draws) -> dict[str, Any]:
    op = draws.choice((*GATES, "highway", "projection"))
    form = draws.choice(FORMS)
    sizes: tuple[int | str, ...] = (1, 2, 3, "B")
    batch = draws.choice(sizes)
    lengths = draws.choice(("", "zeros", "held")) if form == "loop" else ""
    case = RecurrenceCase(
        op=op,
        form=form,
        products=draws.choice(("fused", "separate", "joined")),
        gemm=draws.boolean(),
        bias=draws.choice(("none", "x", "h", "both")),
        cut=draws.choice(("split", "slice")),
        reset_after=draws.boolean(),
        update=draws.choice(("torch", "keras", "paper")),
        activations=draws.choice(
            (("Sigmoid", "Tanh"), ("Sigmoid", "Tanh"), ("HardSigmoid", "Tanh"), ("Sigmoid", "Relu"))
        ),
        initial=draws.choice(("zeros", "constant", "input", "dynamic")),
        backwards=draws.boolean() and not lengths,
        batch_first=draws.boolean(),
        outputs=draws.choice((("y", "final"), ("y",), ("final",))),
        lengths=lengths,
        time=draws.integer(1, 7),
        batch=batch,
        I=draws.integer(1, 9),
        H=draws.integer(3, 9),
        seed=draws.integer(0, 2**16),
    )
    order = list(case.gates)
    if draws.boolean():
        for k in range(len(order) - 1, 0, -1):
            other = draws.integer(0, k)
            order[k], order[other] = order[other], order[k]
    return {"recurrence": replace(case, order="".join(order))}
