"""The quantization methods that the accuracy tables compare: onnxruntime's quantize_dynamic and recipes."""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import QuantType, quantize_dynamic

import rnnqc
from rnnqc.recipes.recipe import builtin_recipes
from rnnqc.timing import session_options
from support.layers import Array

FLOAT, PER_TENSOR, PER_CHANNEL = "float", "ort per tensor", "ort per channel"
NOTHING = "quantize_dynamic finds no LSTM"
Outputs = dict[str, Array]


@dataclass(frozen=True)
class Variant:
    """One row of a table.

    Attributes:
        label: Its name.
        recipe: The recipe of rnnqc; "" for the float model and for quantize_dynamic.
        overrides: Overrides of the recipe's rules.
        calibrated: Whether it is lowered with statistics of the calibration data.
        rest: The storage of the weights outside the recurrent layers: "float" or "int8".
    """

    label: str
    recipe: str = ""
    overrides: tuple[str, ...] = ()
    calibrated: bool = False
    rest: str = "float"


INT4 = "*.weight.bits=4"
PLAIN = "*.weight.compensation=false"
"""Disables the default with statistics: rounding weights so that errors cancel."""
_LISTED = (
    Variant(FLOAT),
    Variant(PER_TENSOR),
    Variant(PER_CHANNEL),
    Variant("int8", "int8"),
    Variant("int8, rest int8", "int8", rest="int8"),
    Variant("int8 calibrated, plain rounding", "int8", (PLAIN,), calibrated=True),
    Variant("int8 calibrated", "int8", calibrated=True),
    Variant("int8 calibrated, rest int8", "int8", calibrated=True, rest="int8"),
    Variant("int8-static, plain rounding", "int8-static", (PLAIN,), calibrated=True),
    Variant("int8-static", "int8-static", calibrated=True),
    Variant("w6a8", "w6a8"),
    Variant("w6a8 calibrated", "w6a8", calibrated=True),
    Variant("w5a8", "w5a8"),
    Variant("w5a8 calibrated", "w5a8", calibrated=True),
    Variant("w4a8", "w4a8"),
    Variant("w4a8, rest int8", "w4a8", rest="int8"),
    Variant("w4a8 calibrated", "w4a8", calibrated=True),
    Variant("w4a8-uneven", "w4a8-uneven"),
    Variant("w4a8-uneven calibrated", "w4a8-uneven", calibrated=True),
    Variant("w4a8 calibrated, rest int8", "w4a8", calibrated=True, rest="int8"),
    Variant("int4 per channel", "int8", (INT4,)),
    Variant("int4 per channel calibrated", "int8", (INT4,), calibrated=True),
    Variant("int5 per channel calibrated", "int8", ("*.weight.bits=5",), calibrated=True),
    Variant("int6 per channel calibrated", "int8", ("*.weight.bits=6",), calibrated=True),
    Variant("int16", "int16"),
    Variant("int16 calibrated", "int16", calibrated=True),
    Variant("pow2-int16", "pow2-int16", calibrated=True),
    Variant("pow2-w8a16", "pow2-w8a16", calibrated=True),
    Variant("pow2-int8", "pow2-int8", calibrated=True),
    Variant("pow2-int8-floor", "pow2-int8-floor", calibrated=True),
    Variant("brevitas-int8", "brevitas-int8", calibrated=True),
    Variant("distiller-sym", "distiller-sym", calibrated=True),
    Variant("distiller-asym", "distiller-asym", calibrated=True),
    Variant("distiller-avg", "distiller-avg", calibrated=True),
    Variant("weight-only-int8", "weight-only-int8"),
    Variant("weight-only-int8 calibrated", "weight-only-int8", calibrated=True),
    Variant("weight-only-int4", "weight-only-int4"),
    Variant("weight-only-int4 calibrated", "weight-only-int4", calibrated=True),
    Variant("fp16", "fp16"),
)
VARIANTS: tuple[Variant, ...] = (
    *_LISTED,
    *(Variant(r.name, r.name, calibrated=True) for r in builtin_recipes() if r.name not in {v.recipe for v in _LISTED}),
)
"""The listed variants in this order, then all other recipes."""


@dataclass
class Built:
    """A quantized model.

    Attributes:
        session: Its session.
        form: The form of its cells.
        file_kilobytes: Size of the model.
        kilobytes: Size of the parameters of its recurrent layers; None if unknown.
        note: A note for the table.
    """

    session: ort.InferenceSession
    file_kilobytes: float
    form: str = ""
    kilobytes: float | None = None
    note: str = ""


def chosen(patterns: Sequence[str], variants: Sequence[Variant] = VARIANTS) -> list[Variant]:
    """Returns the variants whose labels match one of the globs (all without globs), always including the float model.

    Prints and omits recipes that this version of rnnqc does not have.
    """
    recipes = {r.name for r in builtin_recipes()}
    result = []
    for variant in variants:
        named = variant.label == FLOAT or not patterns or any(fnmatch.fnmatchcase(variant.label, p) for p in patterns)
        if named and variant.recipe and not variant.recipe.endswith(".toml") and variant.recipe not in recipes:
            print(f"left out: {variant.label}: there is no recipe {variant.recipe!r}")
        elif named:
            result.append(variant)
    return result


def build(variant: Variant, model: onnx.ModelProto, statistics: Callable[[], Any], threads: int) -> Built:
    """Quantizes `model` and creates a session; `statistics` is called for a calibrated variant."""
    options = session_options(threads)
    if variant.recipe:
        calibration = {"stats": statistics()} if variant.calibrated else {}
        lowered = rnnqc.lower(model, variant.recipe, overrides=variant.overrides, rest=variant.rest, **calibration)
        entries = lowered.report.entries
        form = "+".join(sorted({e.form or e.status for e in entries}))
        session = rnnqc.session(lowered.proto, options=options)
        return Built(session, lowered.proto.ByteSize() / 1e3, form, sum(e.bytes for e in entries) / 1e3)
    if variant.label == FLOAT:
        return Built(plain_session(model, options), model.ByteSize() / 1e3, FLOAT)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "dynamic.onnx")
        onnx.save(model, source)
        quantize_dynamic(
            source, target,
            op_types_to_quantize=["LSTM"], per_channel=variant.label == PER_CHANNEL, weight_type=QuantType.QInt8,
        )  # fmt: skip
        quantized = onnx.load(target)
    count = sum(n.op_type == "DynamicQuantizeLSTM" for n in quantized.graph.node)
    size, session = quantized.ByteSize() / 1e3, plain_session(quantized, options)
    return Built(session, size, "dynamic" if count else FLOAT, note="" if count else NOTHING)


def plain_session(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    """Creates a session without any custom library."""
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> Outputs:
    """Returns all outputs by name."""
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def stream(
    session: ort.InferenceSession,
    feeds: Sequence[Mapping[str, Array]],
    state: Mapping[str, Array],
    carried: Mapping[str, str],
) -> Outputs:
    """Stacks the outputs of consecutive calls; `carried` maps inputs to the outputs that feed them in the next call."""
    steps, current = [], dict(state)
    for feed in feeds:
        got = run(session, {**feed, **current})
        current = {name: got[source] for name, source in carried.items()}
        steps.append(got)
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}
