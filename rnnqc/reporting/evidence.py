"""The numbers of a report. The page and its JSON are both made of these and of nothing else."""

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
    """How SQNR develops over time.

    Attributes:
        unit: "time step" of a sequence (or "time step, from the end"), or "call" of a stream.
        stops: Piece k has the steps from `stops[k - 1]` (0 at first) up to `stops[k]`.
        sqnr_db: SQNR of each piece over all data; None where there is no signal.
        quarters_db: SQNR of the four quarters of time.
        worst: The step with the least SQNR.
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
    """Some values of an output, of the float and of the lowered model, to look at.

    Attributes:
        unit: What the steps are: that of a curve, or "entry" of an output without time.
        where: Which values they are, in words.
        first: The number of the first step.
        float_values: Of the float model; None where a value is no finite number.
        quantized_values: Of the lowered one.
    """

    unit: str
    where: str
    first: int
    float_values: list[float | None]
    quantized_values: list[float | None]


@dataclass(frozen=True)
class OutputEvidence:
    """How an output compares with the float model's, over all data.

    Attributes:
        name: Name of the output.
        sqnr_db: Signal-to-quantization-noise ratio.
        max_abs: Largest absolute difference.
        cosine: Cosine similarity of all values as one vector.
        equal: Share of equal values.
        curve: Over time; None where the output has no time axis that is known, and no calls of a stream.
        unlike: How many values are NaN or infinite in one of the models only; the ratios are of the others.
        first_unlike: Where the first of these is, in words.
        values: The values that are furthest from those of the float model, over time; None of whole numbers.
        varying_db: The SQNR of what varies, where nearly all of the output is its mean; else infinite.
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


@dataclass(frozen=True)
class LayerEvidence:
    """The hidden states of one direction of a recurrent layer against the float model's.

    Attributes:
        cell: Name of the cell.
        reverse: Whether time runs backwards.
        sqnr_db: Over all data.
        curve: Over time; None of a single step.
    """

    cell: str
    reverse: bool
    sqnr_db: float
    curve: Curve | None


@dataclass(frozen=True)
class LayerTime:
    """What one recurrent layer takes alone, on the shape it has in the data.

    Attributes:
        node: Name of the recurrent node.
        op: Its operator.
        shape: `[T, B, I]` of its input.
        float_us: Of the float layer, in microseconds: the shortest of many runs.
        stock_us: Lowered, without the native library.
        native_us: Lowered, with it; None if there is none.
    """

    node: str
    op: str
    shape: list[int]
    float_us: float
    stock_us: float
    native_us: float | None


@dataclass(frozen=True)
class RestCost:
    """What `--rest int8` costs.

    Attributes:
        sqnr_without: SQNR of the outputs where the weights around the recurrent layers stay float.
        sqnr_with: As the model is.
        worst_without: Of the worst output, where they stay float.
        worst_with: As the model is.
        bytes_without: Of these weights in float.
        bytes_with: As the model has them.
    """

    sqnr_without: float
    sqnr_with: float
    worst_without: float
    worst_with: float
    bytes_without: int
    bytes_with: int

    @property
    def text(self) -> str:
        """The costs, as a sentence."""
        sizes = f"{byte_count(self.bytes_without)} -> {byte_count(self.bytes_with)}"
        return (
            f"--rest int8 stores the weights around the recurrent layers in {sizes}; with them in float the outputs "
            f"have {self.sqnr_without:.1f} instead of {self.sqnr_with:.1f} dB, the worst one {self.worst_without:.1f} "
            f"instead of {self.worst_with:.1f} dB."
        )


@dataclass(frozen=True)
class CalibrationGain:
    """What a calibration with the data of the report makes of a model that was lowered without one.

    Attributes:
        sqnr_before: SQNR of the outputs as the model is.
        sqnr_after: On the same data, with which it was calibrated.
        worst_before: Of the worst output as the model is.
        worst_after: Calibrated.
    """

    sqnr_before: float
    sqnr_after: float
    worst_before: float
    worst_after: float

    @property
    def is_worth_it(self) -> bool:
        """Whether the outputs, or the worst of them, gain from it."""
        return max(self.sqnr_after - self.sqnr_before, self.worst_after - self.worst_before) >= WORTH_DB

    @property
    def text(self) -> str:
        """The gain, as a sentence."""
        levels = change_of_levels((self.worst_before, self.worst_after), (self.sqnr_before, self.sqnr_after))
        return f"{levels} with --calibration DATA, at the same size and speed (calibrated and measured on this data)"


@dataclass
class Evidence:
    """Everything a report says.

    Attributes:
        float_model: The float model.
        quantized_model: The lowered one.
        data: Where the data comes from, how many calls, which states were carried.
        versions: Of rnnqc and of what it ran with.
        recipe: How the model was lowered.
        entries: What became of every recurrent node, as `rnnqc.report.Entry`.
        warnings: What a lowering warns of.
        sizes: Bytes: of the files and of the recurrent weights, before and after.
        sqnr_db: Of all outputs: their noise-to-signal ratios averaged.
        outputs: Each output.
        layers: Each direction of each recurrent layer.
        points: Each quantization point, the worst first.
        base_sqnr_db: What sensitivities are measured against: form qcdq.
        sensitivities: Worst first.
        unmeasured: Globs that were left out to bound the work.
        untried: Overrides that were left out to bound the work.
        repairs: Overrides that gain something, those that gain most for each byte first, and those that keep the form
            of cells before others.
        together: All in one that keep it and can be combined.
        times: Of single layers, where they were asked for.
        remade: How well the model could be made again from what it says about itself.
        missing: Sections that are left out, and why.
        mismatch: That the lowered model was not made of this float model; empty where nothing speaks against it.
        rest: What int8 weights around the recurrent layers cost; None where there are none.
        calibration: What a calibration would do; None where the model has one, or no data was given.
        task: What a metric makes of the two models, if one was asked for.
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
        """Of how many points and groups the sensitivity was measured, and of how many it was meant to be."""
        measured = sum(s.level != "cell" for s in self.sensitivities)
        return measured, measured + sum(not u.endswith(".*") for u in self.unmeasured)  # that is the glob of a cell

    @property
    def left_out(self) -> list[Told]:
        """A sentence for everything that the bounds of the work left out."""
        what = {"points or groups were not measured": self.unmeasured}
        what["overrides were not tried"] = self.untried
        texts = (f"{len(names)} {text} (--models, --seconds)." for text, names in what.items() if names)
        return all_told(Code.NOT_MEASURED, texts)

    @property
    def best_repair(self) -> Repair | None:
        """The override that gains most, of those that keep the form of cells if there is one."""
        return max(self.repairs, key=lambda r: (not r.forms, r.gain_db), default=None)

    @property
    def suggestions(self) -> list[str]:
        """What a calibration does, the override that gains most for each byte, and the one that gains most of all."""
        first = [self.calibration.text] if self.calibration is not None and self.calibration.is_worth_it else []
        best = self.best_repair
        if best is None:
            return first
        cheapest = self.repairs[0]
        shown = [cheapest] if cheapest.overrides == best.overrides else [cheapest, best]
        return [*first, *(f"{r.outcome} with --set {' '.join(map(shlex.quote, r.overrides))}" for r in shown)]

    @property
    def verdict(self) -> Verdict | None:
        """Whether the lowered model is near enough to the float one; None without outputs."""
        judged = [
            Judged(
                o.name, o.sqnr_db, o.equal, o.unlike, o.curve is not None and o.curve.growing, o.varying_db
            )
            for o in self.outputs
        ]  # fmt: skip
        return verdict_of(judged, self.task)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "verdict": None if self.verdict is None else asdict(self.verdict)}
