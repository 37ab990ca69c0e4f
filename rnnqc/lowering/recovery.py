"""Compares layers that were recovered from loops and unrolled steps with the original before they are quantized."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from rnnqc.data.feeds import Feeds
from rnnqc.errors import CompileError
from rnnqc.evaluation.numerics import Array, Bitwise, max_abs
from rnnqc.ir import Model
from rnnqc.lowering.executable import executable
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.plan import Plan, make_plan
from rnnqc.measure.feeds import FeedGenerator, generated_levels
from rnnqc.passes import Instrument, Pass, PassManager
from rnnqc.passes.base import PassResult
from rnnqc.passes.custom_cells.read_dynamic_products import ReadDynamicProducts
from rnnqc.passes.normalize.canonicalize import MINIMUM_OPSET
from rnnqc.passes.normalize.fold_constants import FoldConstants
from rnnqc.passes.normalize.fold_product_weights import FoldProductWeights
from rnnqc.passes.normalize.read_ort_lstm import ReadOrtLstm
from rnnqc.passes.normalize.simplify_sequences import SimplifySequences
from rnnqc.passes.recover.recovery_sites import RecoverySites
from rnnqc.passes.verify.model_runs import ModelRuns, moved
from rnnqc.passes.verify.pass_comparison import PERTURBATIONS, ROUNDINGS
from rnnqc.proto.given import Given

SHARE = 1e-4
"""The error that rounding may cause, as a share of the largest value of an output."""
_NOTHING = 1e-6  # likewise over all feeds: smaller values count as zero
_MOST_SITES = 12
_BRANCHES = {True: "then_branch", False: "else_branch"}
_REWRITING = (RecoverySites, FoldConstants, SimplifySequences, FoldProductWeights)


class Recovered(NamedTuple):
    """A model in normal form.

    Attributes:
        model: The model.
        results: The results of the passes.
        warnings: Recoveries that were undone, or could not be compared.
        generator: The generator of inputs for the original and the model, if the comparison has one.
    """

    model: Model
    results: list[PassResult]
    warnings: list[str]
    generator: FeedGenerator | None = None


def in_normal_form(plan: Plan, instruments: Sequence[Instrument], generator: FeedGenerator | None = None) -> Recovered:
    """Runs the passes of the normal form; after recoveries, compares the model before and after on generated data.

    Recoveries that change the results are undone: their loops and steps stay as they are. A model of an old operator
    set is compared, too, because onnx's converter may change it.

    Args:
        plan: The plan; its model is changed.
        instruments: Observers of the passes.
        generator: Generator of inputs for the original, if there is one already.
    """
    model, passes = plan.model, plan.normal_form
    opset = model.opset
    results = PassManager(passes, instruments).run(model)
    changed = [
        p
        for p, r in zip(passes, results, strict=True)
        if r.modified and isinstance(p, _REWRITING) and not isinstance(r.numerics, Bitwise)
    ]
    if not changed and model.opset == opset:
        return Recovered(model, results, [])
    trial = _Trial(plan, model.proto, generator)
    try:
        found = trial.difference(trial.after)
        kept = trial.wrong_sites(changed, found) if found is not None else {}
    except CompileError as error:
        if not changed:
            return Recovered(model, results, [])
        names = ", ".join(repr(p.info.name) for p in changed)
        text = f"the recovered layers (passes {names}) could not be compared with the original because {error.message}"
        return Recovered(model, results, [text])
    other = [] if trial.base is None or model.opset == opset else [_of_conversion(opset, model.opset, trial.base)]
    if not kept:  # then other passes differ, which --verify compares with what they declare
        return Recovered(model, results, other + trial.unreached(changed), trial.generator_of_original)
    model = plan.read()
    results = PassManager(_without(passes, kept), instruments).run(model)
    warnings = [
        f"{name}: {site + ': ' if site else ''}what was recovered here does not compute the same as the original "
        f"({text}); it stays as it was. Please report this model."
        for (name, site), text in kept.items()
    ]
    return Recovered(model, results, other + warnings + trial.unreached(changed))


def normal_form_of(model: Given, options: LowerOptions) -> onnx.ModelProto:
    """Returns a model in the normal form of a lowering, for callers that lower it again and again.

    Lowering the normal form gives the same layers as lowering the model, and takes a fraction of the time where layers
    have to be recovered.

    Raises:
        CompileError: The model or the options cannot be handled.
    """
    return in_normal_form(make_plan(model, options), ()).model.proto


def _of_conversion(old: int, new: int, difference: str) -> str:
    return (
        f"the model in operator set {new}, as onnx converts it from {old}, does not compute the same as the original "
        f"({difference}). Please report this model, and export it again with operator set {MINIMUM_OPSET} or later."
    )


Sites = Mapping[tuple[str, str], str]
"""Describes the difference by pass and site; the site "" is the whole pass."""


def _without(passes: Sequence[Pass], kept: Sites) -> list[Pass]:
    """Returns the passes, changed to leave some sites alone."""
    made: list[Pass] = []
    for pass_ in passes:
        name = pass_.info.name
        if (name, "") in kept:
            continue
        if isinstance(pass_, RecoverySites):
            pass_ = pass_.keeping({site: text for (owner, site), text in kept.items() if owner == name})
        made.append(pass_)
    return made


class _Trial:
    """Runs the original and converted models on the same feeds."""

    def __init__(self, plan: Plan, after: onnx.ModelProto, generator: FeedGenerator | None) -> None:
        self.plan, self.after, self.generator = plan, after, generator
        self.reference: ModelRuns | None = None
        self.feeds: list[Feeds] = []
        self._fallback: onnx.ModelProto | None = None
        self._taken: set[str] = set()
        self._noises: list[dict[str, float]] = []
        self.base: str | None = None
        """How the model without recoveries differs from the original; None if only by rounding, or if unknown."""

    @property
    def generator_of_original(self) -> FeedGenerator | None:
        """The generator, unless another model stands in for the original and gave it its sizes."""
        return self.generator if self._fallback is None else None

    def difference(self, proto: onnx.ModelProto) -> str | None:
        """Describes how the results of a model differ from those of the original; None if only by rounding.

        Raises:
            CompileError: onnxruntime does not run the original on generated inputs.
        """
        if self.reference is None:
            self.reference = self._reference()
        runs = ModelRuns(proto, self.feeds, executable)
        largest: dict[str, float] = {}
        for outputs in map(self._expected, range(len(self.feeds))):
            for name, value in outputs.items():
                largest[name] = max(largest.get(name, 0.0), _magnitude(value))
        for number in range(len(self.feeds)):
            try:
                results = runs.of(number)
            except CompileError as error:
                return f"it does not run: {error.message}"
            for name, a in self._expected(number).items():
                b = np.asarray(results[name])
                if (a.shape, a.dtype) != (b.shape, b.dtype):
                    return f"output {name!r}: {a.dtype} {list(a.shape)} became {b.dtype} {list(b.shape)}"
                bound = max(SHARE * _magnitude(a), _NOTHING * largest[name])
                worst = _apart(a, b)
                if worst > bound and worst > ROUNDINGS * self._noise(number, name):
                    share = worst / (_magnitude(a) or 1.0)
                    return f"output {name!r}: max abs difference {worst:.3g}, {100 * share:.3g} % of its largest value"
        return None

    def _expected(self, number: int) -> dict[str, Array]:
        """Returns the outputs of the original."""
        assert self.reference is not None
        outputs = self.reference.of(number)
        return {v.name: np.asarray(outputs[v.name]) for v in self.after.graph.output}

    def unreached(self, changed: Sequence[Pass]) -> list[str]:
        """Returns warnings for branches of If nodes that no generated input reached, so that they were not compared."""
        sites = [s for p in changed if isinstance(p, RecoverySites) for s in p.sites]
        branches = sorted({"/".join(s.split("/")[: k + 1]) for s in sites for k, part in enumerate(s.split("/"))
                           if part in _BRANCHES.values()} - self._taken)  # fmt: skip
        return [
            f"the layers recovered in {branch} could not be compared with the original because no generated input "
            "is known to lead there"
            for branch in branches
        ]

    def wrong_sites(self, changed: Sequence[Pass], found: str) -> Sites:
        """Returns the sites to leave alone so that the outputs match the original; all if no smaller set suffices."""
        sites = [(p.info.name, s) for p in changed for s in ((isinstance(p, RecoverySites) and p.sites) or [""])]
        if len(sites) > _MOST_SITES:
            sites = [(p.info.name, "") for p in changed]
        kept = dict.fromkeys(sites, found)
        base = self._made(kept)
        self.base = self.difference(base)
        if self.base is not None:
            self.reference, self.feeds, self._noises = None, [], []
            self._fallback = base
            again = self.difference(self.after)
            if again is None:
                return {}
            kept = dict.fromkeys(sites, again)
        for site in sites if len(sites) > 1 else ():
            fewer = {s: text for s, text in kept.items() if s != site}
            text = self.difference(self._made(fewer))
            if text is None:
                kept = fewer
            else:
                kept[site] = text
        return kept

    def _made(self, kept: Sites) -> onnx.ModelProto:
        model = self.plan.read()
        PassManager(_without(self.plan.normal_form, kept)).run(model)
        return model.proto

    def _reference(self) -> ModelRuns:
        """Runs the original; if onnxruntime refuses it, the model after the passes that recover nothing."""
        refusal: CompileError | None = None
        if self._fallback is None:
            try:
                return self._runs(self._original())
            except CompileError as error:
                refusal = error
            rewriting = (p.info.name for p in self.plan.normal_form if isinstance(p, _REWRITING))
            self._fallback = self._made({(name, ""): "" for name in rewriting})
        try:
            return self._runs(self._fallback)
        except CompileError as error:
            refusal = refusal or error
        with contextlib.suppress(CompileError):
            return self._runs(executable(self._fallback))
        raise refusal

    def _original(self) -> onnx.ModelProto:
        """The model as it was given, but for what onnxruntime's tool has quantized: that is no recovery."""
        model = self.plan.read()
        PassManager([p for p in self.plan.normal_form if isinstance(p, ReadDynamicProducts | ReadOrtLstm)]).run(model)
        return model.proto

    def _runs(self, proto: onnx.ModelProto) -> ModelRuns:
        """Runs a model on generated feeds of all magnitudes.

        Raises:
            CompileError: The model runs on none of the generated data.
        """
        if self.generator is None or self.generator.refusal is not None:
            self.generator = FeedGenerator(proto, self.after)
        generator = self.generator.checked()
        proto, conditions = _with_conditions(proto)
        feeds = [feed for level in generated_levels(generator) for feed in level.feeds]
        runs = ModelRuns(proto, feeds)
        for number in range(len(feeds)):
            runs.of(number)
        self.feeds = feeds
        _add_other_choices(runs, feeds)
        for number in range(len(feeds)):
            outputs = runs.of(number)
            self._taken |= {f"{node}/{_BRANCHES[bool(np.all(outputs[c]))]}" for node, c in conditions.items()}
        return runs

    def _noise(self, number: int, name: str) -> float:
        """Returns the change of an output of the original when inputs and constants change in the last bit."""
        assert self.reference is not None
        if not self._noises:
            self._noises = [dict.fromkeys(self._expected(k), 0.0) for k in range(len(self.feeds))]
            rng = np.random.default_rng(0)
            for _ in range(PERTURBATIONS):
                other = self.reference.moved(rng)
                for k, worst in enumerate(self._noises):
                    outputs = other.run(moved(self.feeds[k], rng))
                    for n, expected in self._expected(k).items():
                        worst[n] = max(worst[n], _apart(expected, np.asarray(outputs[n])))
        return self._noises[number][name]


def _with_conditions(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Returns the model with the conditions of its If nodes as outputs, and their names by node."""
    conditions = {n.name or n.output[0]: n.input[0] for n in proto.graph.node if n.op_type == "If"}
    if not conditions:
        return proto, {}
    held = {v.name for v in (*proto.graph.output, *proto.graph.input, *proto.graph.initializer)}
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for name in sorted(set(conditions.values()) - held):
        made.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, None))
    shown = {v.name for v in made.graph.output}
    return made, {node: name for node, name in conditions.items() if name in shown}


def _add_other_choices(runs: ModelRuns, feeds: list[Feeds]) -> None:
    """Adds feeds that may reach other branches: with flags inverted and scalar integers incremented."""
    for feed in feeds[:2]:
        other = {n: _other_choice(a) for n, a in feed.items()}
        if any(other[n] is not a for n, a in feed.items()):
            with contextlib.suppress(CompileError):
                runs.run(other)
                feeds.append(other)


def _other_choice(array: Array) -> Array:
    """Returns an inverted flag or an incremented scalar integer; otherwise the array itself."""
    if array.dtype.kind == "b":
        return np.asarray(~array)  # numpy returns a scalar for rank 0, which onnxruntime does not accept
    return np.asarray(array + 1, array.dtype) if array.dtype.kind in "iu" and array.size == 1 else array


def _magnitude(value: Array) -> float:
    if value.dtype.kind not in "fiu":
        return 1.0
    sizes = np.abs(value.astype(np.float64))
    return float(sizes.max(initial=0.0, where=np.isfinite(sizes)))


def _apart(a: Any, b: Any) -> float:
    return max_abs(a, b) if a.dtype.kind in "fiub" else float(not np.array_equal(a, b))
