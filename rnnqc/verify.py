"""Compares two models on the same data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.diagnostics import CompileError, located
from rnnqc.evaluate import make_session, run_session
from rnnqc.ir import Model
from rnnqc.numerics import max_abs, sqnr_db
from rnnqc.passes import PassManager
from rnnqc.passes.normal_form import normal_form

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OutputComparison:
    """How one output of two models compares over all feeds.

    Attributes:
        name: Name of the output.
        sqnr_db: Signal-to-quantization-noise ratio of the second against the first.
        max_abs: Largest absolute difference.
        cosine: Cosine similarity of all values as one vector.
        equal: Share of equal values.
    """

    name: str
    sqnr_db: float
    max_abs: float
    cosine: float
    equal: float


def compare_models(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    feeds: Iterable[Mapping[str, Array]],
    *,
    names: tuple[str, str] = ("the float model", "the lowered model"),
) -> list[OutputComparison]:
    """Runs both models on every feed and compares each output.

    Where onnxruntime refuses the float model (recurrent layers of float64 or with layout 1), its normal form stands for
    it.

    Args:
        reference: The float model.
        candidate: The lowered one; names of inputs and outputs are the same.
        feeds: Inputs by name.
        names: How messages call the two.

    Raises:
        CompileError: A model does not run, or they have different outputs.
    """
    held = list(feeds)
    try:
        return _compare(reference, candidate, held, names)
    except CompileError:
        normal = _normal_form(reference)
        if normal is None:
            raise
        with contextlib.suppress(CompileError):
            return _compare(normal, candidate, held, names)
        raise


def _normal_form(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The normal form of `model`, if that is another."""
    try:
        loaded = Model.load(model)
        results = PassManager(normal_form()).run(loaded)
    except CompileError:
        return None
    return loaded.proto if any(r.modified for r in results) else None


def _compare(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    feeds: Iterable[Mapping[str, Array]],
    names: tuple[str, str],
) -> list[OutputComparison]:
    sessions = []
    for model, what in zip((reference, candidate), names, strict=True):
        with located(what):
            sessions.append(make_session(model))
    belong = {"supported": "two forms of one model", "action": "compare a model with what it was lowered to"}
    collected: dict[str, tuple[list[Array], list[Array]]] = {}
    for feed in feeds:
        results = []
        for session, what in zip(sessions, names, strict=True):
            with located(what):
                results.append(run_session(session, feed))
        a, b = results
        if set(a) != set(b):
            raise CompileError(
                f"{names[0]} and {names[1]} have different outputs: {sorted(a)} and {sorted(b)}.", **belong
            )
        for name, values in a.items():
            if values.shape != b[name].shape:
                shapes = f"{list(values.shape)} and {list(b[name].shape)}"
                raise CompileError(f"output {name!r} has shape {shapes} in {names[0]} and {names[1]}.", **belong)
            held = collected.setdefault(name, ([], []))
            held[0].append(np.asarray(values).ravel())
            held[1].append(np.asarray(b[name]).ravel())
    result = []
    for name, (left, right) in collected.items():
        x, y = np.concatenate(left), np.concatenate(right)
        if x.dtype.kind not in "fiub":
            continue
        equal = float(np.mean(x == y)) if x.size else 1.0
        result.append(OutputComparison(name, sqnr_db(x, y), max_abs(x, y), _cosine(x, y), equal))
    return result


def _cosine(x: Array, y: Array) -> float:
    a, b = x.astype(np.float64), y.astype(np.float64)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 1.0 if not a.any() and not b.any() else 0.0
