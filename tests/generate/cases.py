"""Random valid models with recurrent layers, their inputs, and how to lower them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.recipes.recipe import builtin_recipes
from tests.generate.draws import Draws, SeededDraws
from tests.generate.layers import WIRINGS, RecurrentCase, stacked_model, width_after
from tests.generate.nesting import condition, nested
from tests.generate.outer_forms import CALLS, DTYPES, SOURCES, called, retyped, stored_otherwise
from tests.generate.random_layers import draw_layer, is_unbounded
from tests.generate.recurrences import FORMS, GATES, RecurrenceCase
from tests.generate.renaming import STYLES, rename
from tests.generate.variants import vary_layer, vary_recurrence

Array = npt.NDArray[Any]
NEED_DATA = frozenset(r.name for r in builtin_recipes() if r.summary.endswith("; needs calibration data"))
"""Recipes that say so; `tests/end_to_end/recipes/test_every_recipe.py` checks it."""
# (name, whether statistics of the case's own feeds are given): the default more often than the others, and both ways.
RECIPES = (
    *(("int8", False), ("int8", True)),
    *((r.name, r.name in NEED_DATA) for r in builtin_recipes()),
)
# What users change with --set; a combination that a recipe or the model does not allow is refused.
OVERRIDES: tuple[tuple[str, ...], ...] = (
    ("*.weight.bits=5",), ("*.weight.bits=4",), ("*.weight.bits=2",), ("*.weight.granularity=per-tensor",),
    ("*.weight.granularity=per-gate",), ("*.weight.range=mse",), ("*.weight.narrow=true",),
    ("*.weight.symmetric=false",),
    ("*.weight.group_size=32", "*.weight.bits=4"), ("*.weight.pow2=true",), ("*.weight.bits=none",),
    ("*.weight.wide_channels=0.25", "*.weight.bits=4"), ("*.weight.bits=12",), ("*.weight.signed=false",),
    ("*.hidden.bits=6",), ("*.hidden.bits=16",), ("*.hidden.rounding=floor",), ("*.hidden.rounded_output=true",),
    ("*.hidden.mode=dynamic-row",), ("*.hidden.bits=none",), ("*.hidden.pow2=true",), ("*.hidden.signed=true",),
    ("*.input.bits=5",), ("*.input.mode=static", "*.input.scale=0.03125"), ("*.input.chain=true",),
    ("*.input.bits=none",),
    ("*.input.bits=16",), ("*.input.equalize=true",), ("*.input.mode=dynamic-row",),
    ("*.cell_state.bits=none",), ("*.cell_state.bits=8", "*.cell_state.scale=0.0625"), ("*.cell_state.bits=12",),
    ("*.activation.table=exact",), ("*.activation.bits=none",), ("*.activation.bits=6",), ("*.activation.bits=10",),
    ("*.activation.table=vitis",), ("*.accumulator.bits=16",), ("*.bias.bits=16",), ("*.bias.bits=none",),
    ("*.input_product.bits=8", "*.input_product.mode=static", "*.input_product.scale=0.125"),
    ("*.acc.bits=8", "*.acc.mode=static", "*.acc.scale=0.0625"), ("forward.*.bits=none",), ("reverse.*.bits=8",),
    ("*.value.bits=8", "*.value.scale=0.0625", "*.value.mode=static"), ("re:.*(kept|added).bits=9",),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One model with recurrent layers; everything about it is a function of the fields.

    Attributes:
        layers: LSTM, GRU or RNN nodes: one, wherever it stands, or several in a row.
        recurrence: Instead, a recurrence written with Scan, Loop, or step by step.
        shared: Layers in a row use the same initializers.
        wiring: One of `layers.WIRINGS`: what is between layers in a row.
        source: One of `outer_forms.SOURCES`: where weights come from.
        calls: One of `outer_forms.CALLS`: functions around everything.
        dtype: One of `outer_forms.DTYPES`.
        overrides: Settings in front of those of the recipe; lowering may be refused then.
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
    wiring: str = "chain"
    source: str = "initializer"
    calls: str = ""
    dtype: str = "float32"
    overrides: tuple[str, ...] = ()

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
            made = stacked_model(self.layers, self.shared, self.wiring)
        stored_otherwise(made, self.source)
        made = retyped(called(nested(made, self.depth), self.calls), self.dtype)
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
            typed = {k: v.astype(self.dtype) if v.dtype == np.float32 else v for k, v in feed.items()}
            made.append({STYLES[self.naming](name): value for name, value in typed.items()})
        return made

    @property
    def dims(self) -> dict[str, int]:
        """The dimensions to set before loops can be unrolled."""
        found = self.layers[0].dims if self.layers else {}
        if self.recurrence is not None and self.recurrence.dynamic_time:
            found = {"T": self.recurrence.time}
        return {STYLES[self.naming](name): size for name, size in found.items()}

    @property
    def bounded(self) -> bool:
        """Whether gates and states stay in the usual range, so that the accuracy is predictable."""
        if self.overrides:
            return False
        if self.recurrence is not None:
            return self.recurrence.op != "random" and set(self.recurrence.activations) <= {"Sigmoid", "Tanh"}
        return not any(is_unbounded(layer.activations) for layer in self.layers)

    def __str__(self) -> str:
        """The fields with other than default values, as an expression that recreates the case."""
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
    case = Case(
        **fields_,
        depth=draws.choice((0, 0, 0, 0, 1, 2)),
        naming=draws.choice(("plain", "plain", *STYLES)),
        recipe=recipe,
        calibrated=calibrated,
        seed=seed,
    )
    layers, recurrence = case.layers, case.recurrence
    # Types without kernels of onnxruntime: float16 is cast by it, float64 by rnnqc, for nodes alone.
    opset = layers[0].opset if layers else 17
    dtypes = DTYPES[: 2 + (recurrence is None)] if opset >= 14 else DTYPES[:1]
    source = draws.choice((*SOURCES[:1] * len(SOURCES), *(SOURCES if opset >= 10 else SOURCES[:1])))
    if source == "codes" and case.wiring == "dense":
        source = "initializer"  # onnxruntime 1.31 fails on some DequantizeLinear in front of MatMul
    dtypes = DTYPES[:1] if source == "codes" else dtypes  # DequantizeLinear makes others from opset 19 on, or never
    # onnx takes elements of a sequence to have one axis more than they have, and functions are checked strictly.
    may_be_called = opset >= 15 and not (recurrence is not None and recurrence.form == "script")
    usual = replace(
        case,
        source=source,
        calls=draws.choice((*("",) * 6, *(CALLS if may_be_called else ("",)))),
        dtype=draws.choice((*DTYPES[:1] * 6, *dtypes)),
        overrides=draws.choice(((), (), draws.choice(OVERRIDES))),
    )
    return _varied(draws, usual) if draws.boolean() else usual


LEAKY_RELU_OF_FLOAT32 = 16
"""From this operator set on onnxruntime's CPU has LeakyRelu of float32 alone."""


def _varied(draws: Draws, case: Case) -> Case:
    """Adds the variations that are drawn last; stacked layers have none."""
    if case.recurrence is not None:
        return replace(case, recurrence=vary_recurrence(draws, case.recurrence))
    if len(case.layers) == 1:
        # Other types, sources and calls than the usual ones were drawn for the operator set.
        any_opset = (case.dtype, case.source, case.calls) == (DTYPES[0], SOURCES[0], CALLS[0])
        layer = vary_layer(draws, case.layers[0], any_opset)
        if case.dtype != DTYPES[0] and layer.opset >= LEAKY_RELU_OF_FLOAT32:
            layer = layer.replace(leaky=None)
        return replace(case, layers=(layer,))
    return case


def _one_layer(draws: Draws) -> dict[str, Any]:
    op = draws.choice(("LSTM", "LSTM", "GRU", "RNN"))
    return {"layers": (draw_layer(draws, op=op, layouts=(0, 0, 0, 1)),)}


def _rows(draws: Draws) -> dict[str, Any]:
    """Two or three layers, the outputs of one the inputs of the next; of one kind if they share weights."""
    shared = draws.choice((False, False, True))
    wiring = "chain" if shared else draws.choice(WIRINGS)
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
        same = {"H": before.H, "direction": before.direction} if wiring == "handed" and draws.boolean() else {}
        with_same = _with_direction(layer, **same)
        layers.append(replace(with_same, I=width_after(before, wiring)))
    if wiring == "residual":
        layers[0] = replace(layers[0], I=layers[0].directions * layers[0].H)
    return {"layers": tuple(layers), "shared": shared, "wiring": wiring}


def _with_direction(layer: RecurrentCase, **changes: Any) -> RecurrentCase:
    """The layer with another direction, and activations for it."""
    made = replace(layer, **changes)
    if made.directions != layer.directions and layer.activations is not None:
        half = layer.activations[: len(layer.activations) // layer.directions]
        made = replace(made, activations=half * made.directions)
    return made


def _written(draws: Draws) -> dict[str, Any]:
    op = draws.choice((*GATES, "highway", "projection", "random"))
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
        dynamic_time=draws.boolean() and form != "unrolled",
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
    # Whether Keras' loop over a turned sequence is a layer in reverse is known where its length is: cells have other
    # names, and statistics of the one do not fit the other.
    turned = case.form == "keras" and case.backwards
    return {"recurrence": replace(case, order="".join(order), dynamic_time=case.dynamic_time and not turned)}
