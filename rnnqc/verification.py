"""Checks whether a quantized model is close enough to the float one: `rnnqc.verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx

from rnnqc.codes import Code, Told, all_told
from rnnqc.data.binding import bound_like
from rnnqc.data.feeds import with_dimensions_of
from rnnqc.data.given_data import Data, open_feeds
from rnnqc.data.large_inputs import LargeInputs
from rnnqc.data.not_finite import not_finite_texts
from rnnqc.data.state_hints import state_warnings, states_of
from rnnqc.data.state_pairs import state_pairs
from rnnqc.data.streaming import checked
from rnnqc.errors import FLOAT_MODEL, LOWERED_MODEL, CompileError, located
from rnnqc.lowering.executable import executable
from rnnqc.lowering.lowered_before import check_order
from rnnqc.measure.compare import LevelComparison, compare_levels, compare_models, compare_native, worst_level
from rnnqc.measure.differences import OutputComparison, unlike_texts
from rnnqc.measure.feeds import STREAM, FeedGenerator, Level, generated_levels
from rnnqc.measure.padding import padding_notes
from rnnqc.measure.runs import State
from rnnqc.measure.thresholds import Thresholds
from rnnqc.measure.verdict import Judged, Verdict, verdict_of
from rnnqc.proto.given import Given, as_given, name_of, proto_of
from rnnqc.proto.random_values import random_values
from rnnqc.results import Result

FEEDS = 1
"""The number of generated feeds of each kind, as many as `lower` measures on."""
Threshold = float | Mapping[str, float] | None
"""A threshold for every output, or thresholds by name of the output; "" means all others."""


@dataclass(frozen=True, repr=False)
class Verification(Result):
    """The comparison of a quantized model with the float one.

    Attributes:
        float_model: The name of the float model.
        quantized_model: The name of the quantized one.
        feeds: The number of feeds, or of calls of a stream.
        generated: Whether they were generated.
        states: States that were carried, `IN:OUT`.
        levels: Comparisons of the two models on each kind of data.
        native: Comparisons of the quantized model without and with the native library; empty if not requested.
        optimized: The same with onnxruntime's graph optimizations.
        thresholds: The requested thresholds.
        failures: A sentence for everything that is not as requested.
        warnings: A sentence for each state that is carried oddly or not at all, for each input beyond the range of
            quantized layers, and for inputs with NaN or infinities if the outputs do not show it; otherwise
            `failures` mentions them.
        notes: For given data: that the figures include padding, if an input of lengths shows it.
    """

    float_model: str
    quantized_model: str
    feeds: int
    generated: bool
    states: Sequence[str]
    levels: Sequence[LevelComparison]
    native: Sequence[OutputComparison]
    optimized: Sequence[OutputComparison]
    thresholds: Thresholds
    failures: Sequence[str] = field(default_factory=list)
    warnings: Sequence[Told] = field(default_factory=list)
    notes: Sequence[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything is as requested."""
        return not self.failures

    def __bool__(self) -> bool:
        """Returns `ok`."""
        return self.ok

    @property
    def verdict(self) -> Verdict | None:
        """Whether the outputs are close enough, in the words of `rnnqc.report`; None without outputs.

        With generated data the first level, of usual magnitude, counts: models often turn noise into near-constants.
        """
        made = verdict_of(Judged.of(c, varying=not self.generated) for c in self.levels[0].outputs)
        if made is None or not self.generated:
            return made
        return replace(
            made, text=f"{made.text} That is on generated data, {self.levels[0].name}: --data says it of yours."
        )

    @property
    def worst(self) -> dict[str, tuple[str, OutputComparison]]:
        """The comparison with the lowest SQNR of each output, with the name of its level."""
        return worst_level(self.levels)

    @property
    def headline(self) -> str:
        """The compared models, and the verdict."""
        kind = "generated" if self.generated else "given"
        found = self.verdict
        verdict = "; ".join(self.failures) or (found.line if found is not None else "ok")
        return f"{self.quantized_model} against {self.float_model} on {self.feeds} {kind} feed(s): {verdict}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The figures of each output, on the data on which it has the lowest SQNR."""
        return [
            {
                "output": c.name, "level": level, "sqnr_db": c.sqnr_db, "max_abs": c.max_abs, "cosine": c.cosine,
                "equal": c.equal,
            }
            for level, c in self.worst.values()
        ]  # fmt: skip

    @property
    def messages(self) -> list[Told]:
        """The warnings."""
        return list(self.warnings)

    @property
    def hints(self) -> list[str]:
        """Notes on padding in the given data."""
        return list(self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Returns every figure, of every step."""
        native = [{"name": c.name, "same_bits": c.same_bits, "equal": c.equal} for c in self.native]
        optimized = [{"name": c.name, "same_bits": c.same_bits, "max_abs": c.max_abs} for c in self.optimized]
        return {
            "feeds": self.feeds,
            "generated": self.generated,
            "states": list(self.states),
            "outputs": [{**_described(c), "level": level} for level, c in self.worst.values()],
            "levels": {level.name: {o.name: o.sqnr_db for o in level.outputs} for level in self.levels},
            "native": native or None,
            "native_optimized": optimized or None,
            "min_sqnr_db": self.thresholds.everywhere("--min-sqnr"),
            "thresholds": {k: {n or "*": t for n, t in v.items()} for k, v in self.thresholds.asked.items()},
            "failures": list(self.failures),
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "ok": self.ok,
        }


def verify(
    float_model: Given,
    quantized_model: Given,
    data: Data | None = None,
    *,
    state: State = None,
    min_sqnr: Threshold = None,
    max_abs: Threshold = None,
    min_cosine: Threshold = None,
    min_equal: Threshold = None,
    native: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """Runs a float model and the quantized one on the same data, and compares every output.

    Examples:
        >>> import rnnqc
        >>> quantized = rnnqc.lower("models/digits_lstm.onnx")
        >>> found = rnnqc.verify("models/digits_lstm.onnx", quantized, "models/digits_calibration.npz", min_sqnr=20)
        >>> found.ok, [row["output"] for row in found.rows]
        (True, ['logits'])

    Args:
        float_model: A path, a ModelProto, or a `torch.onnx.ONNXProgram`.
        quantized_model: The same, or what `rnnqc.lower` returns.
        data: Data as `rnnqc.lower` takes it; by default generated, of several magnitudes.
        state: The data is the calls of a stream: outputs by the input they become in the next call, or texts `IN:OUT`;
            each model carries its own states.
        min_sqnr: The least SQNR of an output in dB. Thresholds are for every output, or by name of the output.
        max_abs: The largest absolute difference.
        min_cosine: The least cosine similarity.
        min_equal: The least share of equal values, or of equal quantized values where an output has these.
        native: Whether to also compare the quantized model without and with the native library: it must be bit-exact.
        progress: Called with what is being done, in words; on given data with the number of calls, too.

    Returns:
        The comparison; each violated threshold is one of its `failures`.

    Raises:
        UsageError: The models are in the wrong order, or a threshold names an unknown output.
        CompileError: A model does not run, they have different outputs, or the data does not fit.
    """
    float_model, quantized_model = as_given(float_model), as_given(quantized_model)
    tell = progress or _nothing
    names = (name_of(float_model, FLOAT_MODEL), name_of(quantized_model, LOWERED_MODEL))
    thresholds = Thresholds.of(
        {"--min-sqnr": min_sqnr, "--max-abs": max_abs, "--min-cosine": min_cosine, "--min-equal": min_equal}
    )
    reference, candidate = _runnable(float_model, quantized_model, names)
    thresholds.check([o.name for o in reference.graph.output])
    with located(names[0]):
        carried = state_pairs(state, reference)
        likely = states_of(reference, candidate)
        levels = _levels(data, reference, candidate, carried, likely)
    tell("running both models")

    def told(done: int, total: int) -> None:
        tell(f"running both models, {done} of {total} calls done")

    try:
        compared = _compared(reference, candidate, levels, names, carried, None if data is None else told)
    except CompileError as error:
        if data is None:
            error.action = "check that the models run in onnxruntime; give data that fits them with --data"
        raise
    tell("comparing stock and native" if native else "comparing")
    feeds = [feed for level in levels for feed in level.feeds]
    bits, optimized = (
        compare_native(candidate, feeds, name=names[1], state=carried, optimize=o) if native else []
        for o in (False, True)
    )
    not_finite = [] if data is None else not_finite_texts(feeds, "call" if carried else "sample")
    unlike = dict.fromkeys(" ".join([t, *not_finite]) for level in compared for t in unlike_texts(level.outputs))
    odd = [] if data is None and not carried else state_warnings((reference, candidate), carried, len(feeds))
    return Verification(
        *names, len(feeds), data is None, [f"{i}:{o}" for i, o in carried.items()], compared, bits, optimized,
        thresholds, [*unlike, *thresholds.violations(compared), *_other_bits(bits)],
        [
            *all_told(Code.STATES, odd), *all_told(Code.DATA_NOT_FINITE, [] if unlike else not_finite),
            *all_told(Code.LARGE_INPUT, _large_inputs(levels)), *all_told(Code.RANDOM_VALUES, random_values(reference)),
        ],
        [] if data is None else padding_notes(reference, feeds, compared[0].outputs),
    )  # fmt: skip


def _nothing(stage: str) -> None:
    """Ignores progress."""


def _runnable(
    float_model: Given, quantized_model: Given, names: tuple[str, str]
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Returns the two models in a form that onnxruntime can run."""
    loaded = []
    for name, model in zip(names, (float_model, quantized_model), strict=True):
        with located(name):
            loaded.append(proto_of(model))
    check_order(names, loaded, "rnnqc verify FLOAT.onnx QUANT.onnx")
    with located(names[0]):
        reference = executable(bound_like(*loaded))
    with located(names[1]):
        return reference, executable(loaded[1])


def _levels(
    data: Data | None,
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    carried: Mapping[str, str],
    likely: Mapping[str, str],
) -> list[Level]:
    """Returns the data to run on: feeds, or the calls of a stream; generated data in several magnitudes."""
    if data is not None:
        opened = open_feeds(data, reference, carried)
        calls = list(checked(opened, reference, None, carried, True, filled=True, states=likely))
        return [Level("given data", calls, is_given=True)]
    generator = FeedGenerator(with_dimensions_of(reference, candidate)).checked()
    return list(generated_levels(generator, STREAM if carried else FEEDS, carried))


def _compared(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    levels: Sequence[Level],
    names: tuple[str, str],
    carried: Mapping[str, str],
    told: Callable[[int, int], None] | None,
) -> list[LevelComparison]:
    """Returns the comparison on each level; `told` counts the calls of the user's data, all of whose values count."""
    if told is None:
        return list(compare_levels(reference, candidate, levels, names=names, state=carried))
    (level,) = levels
    outputs = compare_models(reference, candidate, level.feeds, names=names, state=carried, progress=told)
    return [LevelComparison(level.name, outputs)]


def _large_inputs(levels: Sequence[Level]) -> list[str]:
    large = LargeInputs()
    for feed in (f for level in levels for f in level.feeds):
        large.look(feed)
    return large.texts


def _other_bits(native: Sequence[OutputComparison]) -> list[str]:
    texts = []
    for c in native:
        if not c.same_bits:
            step = next((t for t, share in enumerate(c.steps.equal) if share < 1.0), None) if c.steps else None
            where = f", first at {c.steps.unit} {step}" if c.steps and step is not None else ""
            share = f"{1 - c.equal:.2%} of values differ{where}"
            texts.append(f"output {c.name!r}: the native library is not bit-exact ({share}).")
    return texts


def _described(c: OutputComparison) -> dict[str, Any]:
    data = asdict(c)
    if c.steps is not None:
        data["steps"] |= {"count": len(c.steps.sqnr_db), "worst": c.steps.worst, "growing": c.steps.growing}
    return data
