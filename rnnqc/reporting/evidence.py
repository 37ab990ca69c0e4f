"""The numbers of a report. The HTML page and its JSON are made from these alone."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

from rnnqc.codes import Code, Told, all_told
from rnnqc.errors import byte_count
from rnnqc.measure.verdict import Judged, Task, Verdict, verdict_of
from rnnqc.search.findings import WORTH_DB, PointEvidence, Repair, Sensitivity, change_of_levels


@dataclass(frozen=True)
class Curve:
    """SQNR over time.

    Attributes:
        unit: "time step" of a sequence (or "time step, from the end"), or "call" of a stream.
        stops: Piece k covers the steps from `stops[k - 1]` (0 at first) up to `stops[k]`.
        sqnr_db: SQNR of each piece over all data; None where there is no signal.
        quarters_db: SQNR of the four quarters of time.
        worst: The step with the lowest SQNR.
        growing: Whether the last quarter is the worst, and clearly worse than the first.
    """

    unit: str
    stops: list[int]
    sqnr_db: list[float | None]
    quarters_db: list[float]
    worst: int
    growing: bool


@dataclass(frozen=True)
class Values:
    """Values of one output of the float and of the lowered model, for display.

    Attributes:
        unit: The unit of the steps: that of a curve, or "entry" for an output without time.
        where: Which values they are, in words.
        first: The number of the first step.
        float_values: Values of the float model; None where a value is not finite.
        quantized_values: Values of the lowered model; None where a value is not finite.
    """

    unit: str
    where: str
    first: int
    float_values: list[float | None]
    quantized_values: list[float | None]


@dataclass(frozen=True)
class OutputEvidence:
    """The comparison of one output with the float model's, over all data.

    Attributes:
        name: Name of the output.
        sqnr_db: Signal-to-quantization-noise ratio.
        max_abs: Largest absolute difference.
        cosine: Cosine similarity of all values as one vector.
        equal: Share of equal values.
        curve: SQNR over time; None where the output has neither a known time axis nor calls of a stream.
        unlike: How many values are NaN or infinite in only one of the models; the ratios leave them out.
        first_unlike: Where the first of these is, in words.
        values: The values with the largest error, over time; None for integer outputs.
        varying_db: SQNR of the deviation from the mean, where the mean is nearly all of the output; else infinite.
        constant: Whether it does not vary at all on the data.
        near_zero: Whether it has values from 0 to 1 that are all but zero on the data.
    """

    name: str
    sqnr_db: float
    max_abs: float
    cosine: float
    equal: float
    curve: Curve | None = None
    unlike: int = 0
    first_unlike: str = ""
    values: Values | None = None
    varying_db: float = math.inf
    constant: bool = False
    near_zero: bool = False


@dataclass(frozen=True)
class LayerEvidence:
    """The hidden states of one direction of a recurrent layer, compared with the float model's.

    Attributes:
        cell: Name of the cell.
        reverse: Whether the direction runs backwards in time.
        sqnr_db: SQNR over all data.
        curve: SQNR over time; None if there is only one step.
    """

    cell: str
    reverse: bool
    sqnr_db: float
    curve: Curve | None


@dataclass(frozen=True)
class LayerTime:
    """The run time of one recurrent layer alone, on the shape it has in the data.

    Attributes:
        node: Name of the recurrent node.
        op: Its operator.
        shape: `[T, B, I]` of its input.
        float_us: Microseconds of the float layer: the shortest of many runs.
        stock_us: Microseconds of the lowered layer without the native library.
        native_us: Microseconds of the lowered layer with the native library; None without the library.
    """

    node: str
    op: str
    shape: list[int]
    float_us: float
    stock_us: float
    native_us: float | None


@dataclass(frozen=True)
class RestCost:
    """The cost of `--rest int8`.

    Attributes:
        sqnr_without: SQNR of the outputs if the weights around the recurrent layers stay float.
        sqnr_with: SQNR of the outputs of the model as it is.
        worst_without: SQNR of the worst output if they stay float.
        worst_with: SQNR of the worst output of the model as it is.
        bytes_without: Bytes of these weights in float.
        bytes_with: Bytes of these weights in the model.
    """

    sqnr_without: float
    sqnr_with: float
    worst_without: float
    worst_with: float
    bytes_without: int
    bytes_with: int

    @property
    def text(self) -> str:
        """The costs as a sentence."""
        sizes = f"{byte_count(self.bytes_without)} -> {byte_count(self.bytes_with)}"
        return (
            f"--rest int8 stores the weights around the recurrent layers in {sizes}; with them in float the outputs "
            f"have {self.sqnr_without:.1f} instead of {self.sqnr_with:.1f} dB, the worst one {self.worst_without:.1f} "
            f"instead of {self.worst_with:.1f} dB."
        )


@dataclass(frozen=True)
class CalibrationGain:
    """The gain of calibrating on the data of the report, for a model that was lowered without calibration.

    Attributes:
        sqnr_before: SQNR of the outputs of the model as it is.
        sqnr_after: SQNR after calibration, on the data it was calibrated with.
        worst_before: SQNR of the worst output of the model as it is.
        worst_after: SQNR of the worst output after calibration.
    """

    sqnr_before: float
    sqnr_after: float
    worst_before: float
    worst_after: float

    @property
    def is_worth_it(self) -> bool:
        """Whether the average or the worst SQNR gains enough."""
        return max(self.sqnr_after - self.sqnr_before, self.worst_after - self.worst_before) >= WORTH_DB

    @property
    def text(self) -> str:
        """The gain as a sentence."""
        levels = change_of_levels((self.worst_before, self.worst_after), (self.sqnr_before, self.sqnr_after))
        return f"{levels} with --calibration DATA, at the same size and speed (calibrated and measured on this data)"


@dataclass
class Evidence:
    """All contents of a report.

    Attributes:
        float_model: Name of the float model.
        quantized_model: Name of the lowered model.
        data: Source of the data, number of calls, and the states that are carried over.
        versions: Versions of rnnqc and of its dependencies.
        recipe: How the model was lowered.
        entries: The outcome of every recurrent node, as `rnnqc.report.Entry`.
        warnings: The warnings of the lowering.
        sizes: Bytes of the files and of the recurrent weights, before and after.
        sqnr_db: SQNR of all outputs: the average of their noise-to-signal ratios.
        outputs: Each output.
        layers: Each direction of each recurrent layer.
        points: Each quantization point, the worst first.
        base_sqnr_db: The SQNR that sensitivities are measured against: that of form qcdq.
        sensitivities: Worst first.
        unmeasured: Globs that were skipped to bound the work.
        untried: Overrides that were skipped to bound the work.
        repairs: Overrides that improve SQNR: those that keep the form of cells first, then by gain per byte.
        together: All overrides that keep the form and can be combined, as one.
        times: Times of single layers, if they were requested.
        remade: How closely a second lowering from the recorded metadata reproduces the model.
        missing: Sections that are left out, and why.
        mismatch: Message that the lowered model was not made from this float model; empty if nothing suggests so.
        rest: The cost of int8 weights around the recurrent layers; None where there are none.
        calibration: The gain of a calibration; None where the model is calibrated or no data was given.
        task: The values of a metric for the two models, if one was requested.
    """

    float_model: str
    quantized_model: str
    data: dict[str, Any]
    versions: dict[str, str]
    recipe: dict[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[Told] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    sqnr_db: float | None = None
    outputs: list[OutputEvidence] = field(default_factory=list)
    layers: list[LayerEvidence] = field(default_factory=list)
    points: list[PointEvidence] = field(default_factory=list)
    base_sqnr_db: float | None = None
    sensitivities: list[Sensitivity] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    untried: list[str] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    together: Repair | None = None
    times: list[LayerTime] = field(default_factory=list)
    remade: str = ""
    missing: dict[str, str] = field(default_factory=dict)
    mismatch: str = ""
    rest: RestCost | None = None
    calibration: CalibrationGain | None = None
    task: Task | None = None

    @property
    def tried(self) -> tuple[int, int]:
        """The number of points and groups whose sensitivity was measured, and the number that was planned."""
        measured = sum(s.level != "cell" for s in self.sensitivities)
        return measured, measured + sum(not u.endswith(".*") for u in self.unmeasured)  # `<cell>.*` is a whole cell

    @property
    def left_out(self) -> list[Told]:
        """A sentence for each kind of measurement that the work bounds cut short."""
        what = {"points or groups were not measured": self.unmeasured}
        what["overrides were not tried"] = self.untried
        texts = (f"{len(names)} {text} (--models, --seconds)." for text, names in what.items() if names)
        return all_told(Code.NOT_MEASURED, texts)

    @property
    def best_repair(self) -> Repair | None:
        """The override with the largest gain; those that keep the form of cells have priority."""
        return max(self.repairs, key=lambda r: (not r.forms, r.gain_db), default=None)

    @property
    def suggestions(self) -> list[str]:
        """Sentences for the gain of a calibration, the override with most gain per byte, and the one with most gain."""
        first = [self.calibration.text] if self.calibration is not None and self.calibration.is_worth_it else []
        best = self.best_repair
        if best is None:
            return first
        cheapest = self.repairs[0]
        shown = [cheapest] if cheapest.overrides == best.overrides else [cheapest, best]
        return [*first, *(f"{r.outcome} with --set {' '.join(map(shlex.quote, r.overrides))}" for r in shown)]

    @property
    def verdict(self) -> Verdict | None:
        """Whether the lowered model is close enough to the float model; None without outputs."""
        judged = [
            Judged(
                o.name, o.sqnr_db, o.equal, o.unlike, o.curve is not None and o.curve.growing, o.varying_db, o.constant,
                o.near_zero, o.max_abs,
            )
            for o in self.outputs
        ]  # fmt: skip
        return verdict_of(judged, self.task)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        return {**asdict(self), "verdict": None if self.verdict is None else asdict(self.verdict)}
