"""The layers that the laws are tried with: fields of a `RecurrentCase`, recipe and session, drawn pairwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rnnqc.calibration.calibrate import calibrate
from rnnqc.data.statistics import Statistics
from rnnqc.recipes.recipe import builtin_recipes
from tests.generate.cases import NEED_DATA
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase
from tests.laws.formats import STATIC, TABLES, overrides
from tests.laws.law import ALL_SETTINGS, Setting
from tests.laws.pairwise import Row, pairwise
from tests.runs.lowered import INTEGER, UNROLLED

CELLS: dict[str, dict[str, Any]] = {
    "LSTM": {"op": "LSTM"},
    "GRU": {"op": "GRU"},
    "GRU, linear before reset": {"op": "GRU", "linear_before_reset": True},
    "RNN": {"op": "RNN"},
}
RECIPES = tuple(r.name for r in builtin_recipes() if r.kind == "cells")
WITHOUT_DATA = tuple(r for r in RECIPES if r not in NEED_DATA)
SIZES = ((1, 1, 1, 1), (5, 3, 3, 4), (4, 2, 20, 17), (3, 3, 40, 35), (2, 4, 70, 65))
"""T, B, I, H: smaller than a vector, no multiple of one, larger than one."""
SHORT = 4
"""Steps at most of activations without bounds: states grow from step to step."""
LENGTHS = ("none", "ragged", "full")
STATES = ("none", "input", "far", "learned", "computed")
FAR = 5.0
"""The magnitude of states beyond the bound of tanh."""
ACTIVATIONS: dict[str, tuple[Activation, Activation, Activation] | None] = {
    "left out": None,
    "written": (Activation("Sigmoid"), Activation("Tanh"), Activation("Tanh")),
    "hard": (Activation("HardSigmoid", 0.25, 0.5), Activation("Softsign"), Activation("ScaledTanh", 0.75, 1.25)),
    "rectified": (Activation("Sigmoid"), Activation("LeakyRelu", 0.125), Activation("ThresholdedRelu", 0.125)),
    "exponential": (Activation("Softplus"), Activation("Elu", 0.5), Activation("Relu")),
    "linear": (Activation("Affine", 0.25, 0.5), Activation("ScaledTanh", 0.75, 1.25), Activation("Affine", 0.5)),
}
"""Of gates, of the values that they let pass, and of the cell's output; a RNN has one of the latter two."""
BOUNDED = ("left out", "written", "hard")
USUAL = ("left out", "written")
OUTPUTS = {"all": ("Y", "Y_h", "Y_c"), "Y": ("Y",), "Y_h": ("Y_h",), "states": ("Y_h", "Y_c")}

FIELDS: dict[str, Sequence[Any]] = {
    "format": (*RECIPES, *TABLES, *STATIC),
    "activations": tuple(ACTIVATIONS),
    "cell": tuple(CELLS),
    "size": SIZES,
    "states": STATES,
    "placement": ("main", "if", "loop", "scan", "function"),
    "opset": (17, 7, 13, 20, 22),
    "direction": ("forward", "reverse", "bidirectional"),
    "lengths": LENGTHS,
    "clip": (None, 0.25, 2.0),
    "outputs": tuple(OUTPUTS),
    "weights": ("initializer", "constant", "computed"),
    "dynamic": ("nothing", "time", "batch", "both"),
    "layout": (0, 1),
    "bias": (True, False),
    "peepholes": (False, True),
    "input_forget": (False, True),
    "scale_bits": (None, 8),
    "setting": ALL_SETTINGS,
    "form": (INTEGER, UNROLLED),
}
_OPSETS = {"main": 7, "if": 7, "scan": 9, "loop": 11, "function": 15}
"""The first operator sets that have them."""


def sized_case(row: Row, **more: Any) -> RecurrentCase:
    """The layer of a row with a size, a direction, an opset, and whether there are lengths, states, dynamic axes."""
    time, batch, width, hidden = row["size"]
    return RecurrentCase(
        T=time,
        B=batch,
        I=width,
        H=hidden,
        direction=row["direction"],
        lens=tuple((time, 0, max(time - 2, 0))[k % 3] for k in range(batch)) if row["lengths"] else None,
        initial_h=row["states"],
        initial_c=row["states"] and row["cell"] == "LSTM",
        magnitude=3.0 if row["states"] else 1.0,
        opset=row["opset"],
        dynamic_time=row["dynamic"],
        dynamic_batch=row["dynamic"],
        **CELLS[row["cell"]],
        **more,
    )


def repaired(row: Row) -> Row:
    """Makes a row valid: changes values that ONNX does not have or a recipe does not quantize."""
    row = dict(row)
    if row["cell"] != "LSTM":
        row |= {"peepholes": False, "input_forget": False}
    least = max(_OPSETS[row["placement"]], 14 if row["layout"] else 7, 8 if row["states"] == "learned" else 7)
    if row["opset"] < least:
        row["opset"] = min(o for o in FIELDS["opset"] if o >= least)
    if row["format"] in STATIC and row["activations"] not in USUAL:
        row["activations"] = "left out"  # other activations in these formats have points of their own to be said
    return row


@dataclass(frozen=True)
class LawCase:
    """A layer, its number formats, and how else than by default it is run."""

    layer: RecurrentCase
    recipe: str
    overrides: tuple[str, ...]
    setting: Setting
    form: str
    """Besides the fused one."""
    format: str
    name: str
    static: bool
    """Whether every point has a static format."""

    @property
    def statistics(self) -> Statistics | None:
        """Of the layer's own inputs, where the recipe needs data; both branches, and steps beyond the lengths, too."""
        if self.recipe in WITHOUT_DATA:
            return None
        whole = self.layer if self.layer.lens is None else self.layer.replace(lens=(self.layer.T,) * self.layer.B)
        seen = [self.layer.feeds(padding=0.0), *(whole.feeds(condition=c) for c in (True, False))]
        return calibrate(self.layer.model(), seen)


def _layer(row: Row, seed: int) -> RecurrentCase:
    cell = CELLS[row["cell"]]
    lstm = cell["op"] == "LSTM"
    t, b, i, h = row["size"]
    given = ACTIVATIONS[row["activations"]]
    directions = 2 if row["direction"] == "bidirectional" else 1
    activations = None
    if given is not None:
        first = {"LSTM": given, "GRU": given[:2], "RNN": given[1 + seed % 2 :][:1]}[cell["op"]]
        activations = first * directions
    unbounded = row["activations"] not in BOUNDED
    t = min(t, SHORT) if unbounded else t
    lens = {"none": None, "full": (t,) * b, "ragged": tuple((t, 0, max(t - 2, 0), 1)[k % 4] for k in range(b))}
    states = row["states"]
    return RecurrentCase(
        T=t,
        B=b,
        I=i,
        H=h,
        direction=row["direction"],
        bias=row["bias"],
        lens=lens[row["lengths"]],
        initial_h=states != "none",
        initial_c=lstm and states != "none",
        peepholes=row["peepholes"],
        clip=row["clip"],
        input_forget=row["input_forget"],
        layout=row["layout"],
        activations=activations,
        outputs=OUTPUTS[row["outputs"]],
        dynamic_time=row["dynamic"] in ("time", "both"),
        dynamic_batch=row["dynamic"] in ("batch", "both"),
        opset=row["opset"],
        weights=row["weights"],
        placement=row["placement"],
        gain=0.125 if unbounded or row["input_forget"] else 1.0,
        seed=seed,
        states_from=states if states in ("learned", "constant", "computed") else "input",
        magnitude=FAR if states == "far" and not unbounded else 1.0,
        **cell,
    )


@cache
def float_layers() -> tuple[RecurrentCase, ...]:
    """Float layers in which every two properties meet; formats do not matter."""
    fields = {k: v for k, v in FIELDS.items() if k not in ("format", "scale_bits", "setting", "form")}
    first = {"format": FIELDS["format"][0]}
    rows = pairwise(fields, lambda row: {k: v for k, v in repaired({**row, **first}).items() if k in fields})
    return tuple(_layer(row, k) for k, row in enumerate(rows))


@cache
def law_cases() -> tuple[LawCase, ...]:
    """Every two values of two fields meet, as far as ONNX and the recipes let them."""
    return tuple(_case(row, k) for k, row in enumerate(pairwise(FIELDS, repaired)))


def _case(row: Row, seed: int) -> LawCase:
    layer = _layer(row, seed)
    own = row["format"] in RECIPES
    given = [] if own else overrides(row["format"], layer.op)
    given = [*given, *([f"*.scale_bits={row['scale_bits']}"] if row["scale_bits"] else [])]
    name = f"{seed} {row['cell']}, {row['format']}"
    return LawCase(
        layer,
        row["format"] if own else "int8",
        tuple(given),
        row["setting"],
        row["form"],
        row["format"],
        name,
        row["format"] in STATIC,
    )
