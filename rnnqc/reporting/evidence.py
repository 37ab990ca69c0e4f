"""The numbers of a report. The page and its JSON are both made of these and of nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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
    """

    name: str
    sqnr_db: float
    max_abs: float
    cosine: float
    equal: float
    curve: Curve | None = None
    unlike: int = 0
    first_unlike: str = ""


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
class Bars:
    """A histogram for looking at.

    Attributes:
        width: Of a bar.
        first: Bar k has the values from `(first + k) * width` on.
        counts: Of each bar.
    """

    width: float
    first: int
    counts: list[int]


@dataclass(frozen=True)
class PointEvidence:
    """The values of the float model at one quantization point, and what its number format makes of them.

    Attributes:
        point: `<cell>.<point>`.
        format: The number format for people, such as "int8 per channel".
        bits: Width of the codes.
        scale: Of formats with one scale; else None.
        zero_point: Of formats with one scale; else None.
        low: Lowest number that the format can represent; None where scales follow from rows or channels.
        high: Highest number.
        count: How many values.
        min: Smallest value.
        max: Largest value.
        clipped: Share of the values beyond the representable range.
        codes_used: How many codes occur; None where that is not counted.
        codes: How many there are.
        range_used: Share of the representable range between the smallest and the largest value; None without one.
        sqnr_db: Of this quantization alone.
        bars: The values.
    """

    point: str
    format: str
    bits: int
    scale: float | None
    zero_point: int | None
    low: float | None
    high: float | None
    count: int
    min: float
    max: float
    clipped: float
    codes_used: int | None
    codes: int
    range_used: float | None
    sqnr_db: float
    bars: Bars


@dataclass(frozen=True)
class Sensitivity:
    """What would be gained if some points, and they alone, were float.

    Attributes:
        points: Their glob, as overrides take it.
        members: How many points that are.
        also: Points that had to be float with them, because their formats follow from these.
        level: "cell", "kind" (points of all cells), "group" (points of one) or "point".
        sqnr_db: Of the outputs, with these points in float.
        gain_db: More than without.
        noise_share: Share of the noise of the outputs that goes away.
    """

    points: str
    members: int
    level: str
    sqnr_db: float
    gain_db: float
    noise_share: float
    also: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Repair:
    """An override that was tried on the model, in its own form.

    Attributes:
        points: What it is about.
        overrides: As `--set` takes them.
        reason: Why it was tried.
        sqnr_before: Of the outputs as the model is.
        sqnr_after: With the override, measured.
        worst_before: Of the worst output.
        worst_after: With the override.
        bytes_before: Of the recurrent weights.
        bytes_after: With the override.
        forms: Forms without integers that cells change to with it, such as "qcdq".
        members: How many points that quantize something it is about.
    """

    points: str
    overrides: list[str]
    reason: str
    sqnr_before: float
    sqnr_after: float
    worst_before: float
    worst_after: float
    bytes_before: int
    bytes_after: int
    forms: list[str] = field(default_factory=list)
    members: int = 1

    @property
    def gain_db(self) -> float:
        """SQNR won."""
        return self.sqnr_after - self.sqnr_before


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


@dataclass
class Evidence:
    """Everything a report says.

    Attributes:
        float_model: The float model.
        quantized_model: The lowered one.
        data: Where the data comes from, how many calls, which states were carried.
        versions: Of rnnqc and of what it ran with.
        recipe: How the model was lowered.
        entries: What became of every recurrent node, as `rnnqc.lowering.report.Entry`.
        warnings: What a lowering warns of.
        sizes: Bytes: of the files and of the recurrent weights, before and after.
        sqnr_db: Of all outputs: their noise-to-signal ratios averaged.
        outputs: Each output.
        layers: Each direction of each recurrent layer.
        points: Each quantization point, the worst first.
        base_sqnr_db: What sensitivities are measured against: form qcdq.
        sensitivities: Worst first.
        unmeasured: Globs that were left out to bound the work.
        untried: Overrides of groups that were left out to bound the work.
        repairs: Overrides that gain something, best first, those that keep the form of cells before others.
        together: All in one that keep it and can be combined.
        times: Of single layers, where they were asked for.
        remade: How well the model could be made again from what it says about itself.
        missing: Sections that are left out, and why.
        mismatch: That the lowered model was not made of this float model; empty where nothing speaks against it.
    """

    float_model: str
    quantized_model: str
    data: dict[str, Any]
    versions: dict[str, str]
    recipe: dict[str, Any]
    entries: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
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

    @property
    def tried(self) -> tuple[int, int]:
        """Of how many points and groups the sensitivity was measured, and of how many it was meant to be."""
        measured = sum(s.level != "cell" for s in self.sensitivities)
        return measured, measured + sum(not u.endswith(".*") for u in self.unmeasured)  # that is the glob of a cell

    def as_dict(self) -> Mapping[str, Any]:
        """JSON-ready values."""
        return asdict(self)
