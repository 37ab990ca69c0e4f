"""The differential checks of a case, which every valid model must pass."""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.calibration.calibrate import calibrate
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, RnnqcError, UsageError
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.evaluation.numerics import max_abs, sqnr_db
from rnnqc.lowering.executable import executable
from rnnqc.lowering.lower import lower
from rnnqc.lowering.reports.report import Lowered
from rnnqc.proto.files import serialized
from rnnqc.recipes.recipe import builtin_recipes
from tests.generate.cases import Case
from tests.generate.recurrences import GATES

Array = npt.NDArray[Any]
Outputs = dict[str, Array]
T = TypeVar("T")
KINDS = {
    "invalid": "onnxruntime refuses the float model",
    "error": "rnnqc failed, or refused a valid model",
    "unexplained": "a layer stays float, or has another form, without reason, finding and action",
    "signature": "inputs or outputs of the lowered model are not those of the float model",
    "bytes": "two lowerings give different files",
    "identity": "with all quantizers off the lowered model is not the float model",
    "session": "onnxruntime refuses or fails to run a lowered model",
    "shape": "an output has another shape or type than that of the float model",
    "finite": "an output is not finite where that of the float model is",
    "bits": "two ways of execution give different bits",
    "accuracy": "the quantized model is too far from the float model",
}
"""The kinds of findings."""
IDENTITY = {"float32": 1e-5, "float64": 1e-5, "float16": 2.0**-7}
"""By the type of the model: what is computed in float32 is rounded to it."""
STOCK = "stock"
# Least SQNR in dB over all outputs of layers whose gates are bounded: random layers of one to twenty units.
FLOORS = {"int8": 12.0, "int16": 12.0}
FAINTEST = 2.0**-6
"""Values below a few steps of the quantized gates do not reach such an SQNR."""


@dataclass(frozen=True)
class Finding:
    """A violated property.

    Attributes:
        kind: One of KINDS.
        text: What was found, and where.
    """

    kind: str
    text: str


@dataclass
class Checked:
    """A case and what was found.

    Attributes:
        case: The case.
        findings: What does not hold; empty if all is well.
        forms: The forms of the lowered layers, "float" for those that stay float, with the reason.
        sqnr_db: SQNR over all outputs, of the fused model against the float model; NaN if it was not reached.
    """

    case: Case
    findings: list[Finding] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    sqnr_db: float = math.nan


class _StoppedError(Exception):
    """A finding after which nothing more can be checked."""


def check(case: Case, *, native: bool = True) -> list[Finding]:
    """Lowers a case in every form and compares: see KINDS.

    Args:
        case: The case.
        native: Whether the native library takes part.

    Returns:
        What does not hold; empty if all is well.
    """
    return examine(case, native=native).findings


def examine(case: Case, *, native: bool = True) -> Checked:
    """Does the same as `check`, and returns more information about the case."""
    checked = Checked(case)
    try:
        _Examination(checked, native).run()
    except _StoppedError:
        pass
    except Exception:
        checked.findings.append(Finding("error", traceback.format_exc()))
    return checked


class _RefusedError(Exception):
    """A refusal that is explained and allowed."""


class _Examination:
    def __init__(self, checked: Checked, native: bool) -> None:
        self.checked = checked
        self.case = checked.case
        self.native = native
        self.model = self.case.model()
        self.feeds = self.case.feeds()
        self.kind = {r.name: r.kind for r in builtin_recipes()}[self.case.recipe]

    def run(self) -> None:
        case = self.case
        self.expected = self.attempt("invalid", "the float model", lambda: self.outputs(executable(self.model)))
        statistics = self.statistics() if case.calibrated else None
        if self.kind != "cells":
            lowered = self.lowered(statistics)
            self.compare_float(self.outputs_of("stock", lowered), case.recipe)
            return
        self.identity()
        fused = self.lowered(statistics)
        integer = self.lowered(statistics, form="integer")
        qcdq = self.lowered(statistics, form="qcdq")
        ways = {STOCK: self.outputs_of(STOCK, fused), "integer": self.outputs_of("integer", integer)}
        unrolled = self.unrolled(statistics)
        if unrolled is not None:
            ways["unrolled"] = self.outputs_of("unrolled", unrolled)
        ways["stock, not optimized"] = self.outputs_of(STOCK, fused, optimize=False)
        if self.native:
            ways["native"] = self.outputs_of("native", fused, native=True)
        # What is float around the cells is computed as onnxruntime optimizes it.
        if all(form == "fused" for form in self.checked.forms) and not _is_mixed(case):
            self.compare_bits(ways)
        elif self.native:
            plain = "native, not optimized"
            ways[plain] = self.outputs_of("native", fused, native=True, optimize=False)
            self.compare_bits({STOCK: ways["stock, not optimized"], plain: ways[plain]})
        self.compare_float(ways[STOCK], "fused")
        self.compare_float(self.outputs_of("qcdq", qcdq), "qcdq")

    def statistics(self) -> Statistics | None:
        """Of the case's feeds; None if nothing can be measured, as in a recurrence that is no LSTM, GRU or RNN."""
        if self.case.recurrence is not None:
            with contextlib.suppress(CompileError):
                return calibrate(self.model, self.feeds)
            return None
        return self.attempt("error", "calibrate", lambda: calibrate(self.model, self.feeds))

    def unrolled(self, statistics: Statistics | None) -> Lowered | None:
        """Returns the unrolled model; None if a loop cannot be unrolled and the message says which and why."""
        try:
            return self.lowered(
                statistics, form="integer", unroll=True, dims=self.case.dims, refusal="cannot be unrolled"
            )
        except _RefusedError:
            return None

    # ---- steps ------------------------------------------------------------------------------------------------------

    def found(self, kind: str, text: str) -> None:
        self.checked.findings.append(Finding(kind, text))

    def attempt(self, kind: str, what: str, action: Callable[[], T], refusal: str = "") -> T:
        try:
            return action()
        except RnnqcError as error:
            if kind == "error" and self.case.overrides and isinstance(error, CompileError | UsageError):
                raise _StoppedError from error
            if refusal and refusal in str(error):
                raise _RefusedError from error
            self.found(kind, f"{what}: {error}")
        except Exception:
            self.found(kind, f"{what}: {traceback.format_exc()}")
        raise _StoppedError

    def outputs(self, model: onnx.ModelProto, *, native: bool = False, optimize: bool = True) -> list[Outputs]:
        session = make_session(model, native=native, optimize=optimize)
        return [run_session(session, feed) for feed in self.feeds]

    def outputs_of(self, what: str, lowered: Lowered, **how: bool) -> list[Outputs]:
        return self.attempt("session", what, lambda: self.outputs(lowered.proto, **how))

    def lowered(
        self, statistics: Statistics | None, recipe: str | None = None, refusal: str = "", **arguments: Any
    ) -> Lowered:
        """Lowers, and checks the report; `refusal` is part of the message of an allowed error."""
        what = ", ".join(f"{k}={v!r}" for k, v in {"recipe": recipe or self.case.recipe, **arguments}.items())

        def once() -> Lowered:
            given = {"overrides": self.case.overrides, **arguments}
            return lower(self.model, recipe or self.case.recipe, stats=statistics, **given)

        made = self.attempt("error", what, once, refusal)
        if not arguments and serialized(made.proto, "first") != serialized(once().proto, "second"):
            self.found("bytes", what)
        for entry in made.report.entries:
            if not arguments:
                self.checked.forms.append(f"float: {entry.reason}" if entry.status == "float" else entry.form)
            wanted = arguments.get("form", "fused") if self.kind == "cells" else entry.form
            as_asked = entry.status == "lowered" and entry.form in (wanted, "products")
            if not as_asked and not (entry.reason.strip() and entry.found.strip() and entry.action.strip()):
                self.found("unexplained", f"{what}: {entry.node} is {entry.status} {entry.form}: {entry.explanation}")
        if not made.report.entries and self.case.layers:
            self.found("unexplained", f"{what}: the report has no entry")
        self.signature(made.proto, what, arguments.get("dims", {}))
        return made

    def signature(self, made: onnx.ModelProto, what: str, dims: Mapping[str, int]) -> None:
        """Names, order, types and dimensions of inputs and outputs."""
        stored = {t.name for t in self.model.graph.initializer}
        for side in ("input", "output"):
            wanted = [_signature(v, dims) for v in getattr(self.model.graph, side) if v.name not in stored]
            got = [_signature(v, dims) for v in getattr(made.graph, side) if v.name not in stored]
            if wanted != got:
                self.found("signature", f"{what}: {side}s {got} instead of {wanted}")

    def identity(self) -> None:
        """Checks the lowering with all quantizers off; a custom cell may have none."""
        nothing = "No quantization point" if self.case.recurrence is not None else ""
        try:
            lowered = self.lowered(None, "int8", form="qcdq", overrides=["*.bits=none"], refusal=nothing)
        except _RefusedError:
            return
        for k, (wanted, got) in enumerate(zip(self.expected, self.outputs_of("identity", lowered), strict=True)):
            self.same_shapes(wanted, got, f"quantizers off, feed {k}")
            for name, value in wanted.items():
                allowed = IDENTITY[self.case.dtype] * max(1.0, float(np.abs(value).max(initial=0.0)))
                if (worst := max_abs(value, got[name])) > allowed:
                    self.found("identity", f"feed {k}: {name!r} is off by {worst:.3g}, {allowed:.3g} allowed")

    def compare_bits(self, ways: Mapping[str, Sequence[Outputs]]) -> None:
        for way, outputs in ways.items():
            for k, (wanted, got) in enumerate(zip(ways[STOCK], outputs, strict=True)):
                for name, value in wanted.items():
                    if (value.dtype, value.shape) != (got[name].dtype, got[name].shape):
                        self.found("shape", f"{way}, feed {k}: {name!r} {got[name].dtype}{got[name].shape}")
                    elif value.tobytes() != got[name].tobytes():
                        differing = np.count_nonzero(value != got[name])
                        text = (
                            f"{way} against {STOCK}, feed {k}: {name!r} differs at {differing} of {value.size} places"
                        )
                        self.found("bits", f"{text}, by at most {max_abs(value, got[name]):.3g}")

    def compare_float(self, outputs: Sequence[Outputs], what: str) -> None:
        for k, (wanted, got) in enumerate(zip(self.expected, outputs, strict=True)):
            self.same_shapes(wanted, got, f"{what}, feed {k}")
            for name, value in wanted.items():
                if np.isfinite(value).all() and not np.isfinite(got[name]).all():
                    self.found("finite", f"{what}, feed {k}: {name!r}")
        reached = sqnr_db(_joined(self.expected), _joined(outputs))
        if what != "qcdq":
            self.checked.sqnr_db = reached
        floor = FLOORS.get(self.case.recipe)
        loudest = max(float(np.abs(v).max(initial=0.0)) for outputs in self.expected for v in outputs.values())
        if floor is not None and self.case.bounded and loudest > FAINTEST and reached < floor:
            self.found("accuracy", f"{what}: {reached:.1f} dB, {floor:g} dB are the least for {self.case.recipe}")

    def same_shapes(self, wanted: Outputs, got: Outputs, what: str) -> None:
        for name, value in wanted.items():
            if (value.dtype, value.shape) != (got[name].dtype, got[name].shape):
                text = f"{what}: {name!r} is {got[name].dtype}{got[name].shape} instead of {value.dtype}{value.shape}"
                self.found("shape", text)
                raise _StoppedError


def _is_mixed(case: Case) -> bool:
    """Whether some operators around the cells are float."""
    made = case.recurrence
    if made is not None:
        joined_gru = made.op == "GRU" and made.products == "joined"  # the candidate has a product of its own
        others = made.op not in GATES or joined_gru
        return others or bool(made.between) or made.local or made.initial == "computed"
    return case.wiring == "dense" or any(layer.states and layer.states_from == "computed" for layer in case.layers)


def _joined(outputs: Sequence[Outputs]) -> Array:
    return np.concatenate([v.astype(np.float64).ravel() for output in outputs for v in output.values()])


def _signature(value: onnx.ValueInfoProto, dims: Mapping[str, int]) -> tuple[Any, ...]:
    tensor = value.type.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else dims.get(d.dim_param, d.dim_param) for d in tensor.shape.dim]
    return value.name, tensor.elem_type, tuple(shape) if tensor.HasField("shape") else None
