"""Writes a case with findings to files, reduced to the smallest case that still shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rnnqc.data.npz import npz_bytes
from rnnqc.proto.files import serialized, write_atomically
from tests.generate.cases import Case
from tests.generate.checks import KINDS, Checked
from tests.generate.layers import RecurrentCase
from tests.generate.recurrences import RecurrenceCase

MOST_TRIALS = 200
USUAL = ("Sigmoid", "Tanh")
# Values to try in place of others, simplest first.
_SIMPLER: dict[str, tuple[Any, ...]] = {
    "depth": (0,), "naming": ("plain",), "shared": (False,), "calibrated": (False,), "recipe": ("int8",),
    "T": (1, 2, 3), "B": (1, 2), "I": (1, 2, 3), "H": (1, 2, 3), "direction": ("forward", "reverse"), "bias": (False,),
    "lens": (None,), "initial_h": (False,), "initial_c": (False,), "peepholes": (False,), "clip": (None,),
    "input_forget": (False,), "layout": (0,), "activations": (None,), "outputs": (("Y",), ("Y", "Y_h"), ("y",)),
    "dynamic_time": (False,), "dynamic_batch": (False,), "opset": (17, 13), "weights": ("initializer",),
    "placement": ("main",), "linear_before_reset": (False,), "form": ("unrolled", "scan"), "products": ("fused",),
    "gemm": (False,), "cut": ("split",), "reset_after": (True,), "update": ("torch",), "initial": ("zeros",),
    "backwards": (False,), "batch_first": (False,), "lengths": ("",), "time": (1, 2, 3), "batch": (1, 2),
    "wiring": ("chain",), "source": ("initializer",), "calls": ("", "function"), "dtype": ("float32",),
    "overrides": ((),), "state_first": (False,), "tied": (False,), "leaky": (None,), "magnitude": (1.0, 3.0),
    "between": ("",), "local": (False,), "spare": (False,),
    "squeeze": (False,), "twice": (False,), "counter": ("int32",), "scales": ((1.0, 1.0),), "P": (0,),
    "states_from": ("input", "constant"),
    "function_attributes": ("own", "given"),
}  # fmt: skip

_SIMPLER_RECURRENCE: dict[str, tuple[Any, ...]] = {
    "activations": (USUAL,), "bias": ("none",), "outputs": (("y",), ("final",)),
}  # fmt: skip


def shrink(case: Case, still: Callable[[Case], bool], most: int = MOST_TRIALS) -> Case:
    """A simpler case for which `still` holds.

    Args:
        case: A case for which it holds.
        still: Whether a case shows what is looked for.
        most: How often to ask.
    """
    trials = 0
    progress = True
    while progress:
        progress = False
        for candidate in _simpler(case):
            if trials == most:
                return case
            trials += 1
            if still(candidate):
                case, progress = candidate, True
                break
    return case


def _simpler(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    if len(case.layers) > 1 and not case.shared:
        for k in range(len(case.layers)):
            yield from _valid(partial(_with_layer, case, k))
    yield from _replaced(case, lambda made: made)
    for k, layer in enumerate(case.layers):
        if len(case.layers) == 1 or not case.shared:
            yield from _replaced(layer, partial(_with_layer, case, k))
    if case.recurrence is not None:
        yield from _replaced(case.recurrence, lambda made: replace(case, recurrence=made))


def _with_layer(case: Case, k: int, *made: Any) -> Case:
    """`case` with `made` in the place of layer k."""
    return replace(case, layers=(*case.layers[:k], *made, *case.layers[k + 1 :]))


def _replaced(spec: Any, back: Callable[[Any], Case]) -> Iterator[Case]:
    for field in fields(spec):
        held = getattr(spec, field.name)
        options = _SIMPLER.get(field.name, ())
        if isinstance(spec, RecurrenceCase):
            options = _SIMPLER_RECURRENCE.get(field.name, options)
        # Not back to what is simpler already.
        for value in options[: options.index(held)] if held in options else options:
            yield from _valid(partial(_changed, spec, field.name, value, back))


def _changed(spec: Any, name: str, value: Any, back: Callable[[Any], Case]) -> Case:
    return back(_fitting(spec, name, value))


def _fitting(spec: Any, name: str, value: Any) -> Any:
    """`spec` with a field changed, and what depends on it."""
    changes = {name: value}
    if isinstance(spec, RecurrentCase):
        steps, batch = changes.get("T", spec.T), changes.get("B", spec.B)
        if spec.lens is not None and name in ("T", "B"):
            changes["lens"] = tuple(min(n, steps) for n in (*spec.lens, *spec.lens)[:batch])
        if spec.activations is not None and name == "direction" and spec.directions == 2:
            changes["activations"] = spec.activations[: len(spec.activations) // 2]
    return replace(spec, **changes)


def _valid(make: Callable[[], Case]) -> Iterator[Case]:
    try:
        made = make()
        made.model()
    except (ValueError, IndexError):
        return
    yield made


def save(checked: Checked, folder: Path) -> None:
    """Writes `model.onnx`, `feeds_0.npz`, `feeds_1.npz`, ... and `report.txt` with the case and the findings.

    Raises:
        CompileError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    case = checked.case
    write_atomically(folder / "model.onnx", serialized(case.model(), "model.onnx"))
    for k, feed in enumerate(case.feeds()):
        write_atomically(folder / f"feeds_{k}.npz", npz_bytes(feed))
    lines = [f"seed {case.seed}", str(case), "", *(f"{f.kind}: {KINDS[f.kind]}\n  {f.text}" for f in checked.findings)]
    write_atomically(folder / "report.txt", ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))
