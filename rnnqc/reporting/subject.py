"""What a report is about, and how much is to be measured for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from rnnqc.data.given_data import Data
from rnnqc.data.statistics import Statistics
from rnnqc.lowering.reports.report import Lowered, Report
from rnnqc.proto.files import load_proto_and_size
from rnnqc.search.trials import Bounds

Tell = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        float_proto: The float model.
        quant_proto: The lowered model.
        float_name: What the report calls them.
        quant_name: As `float_name`.
        float_bytes: Sizes of both, external data included.
        quant_bytes: As `float_bytes`.
        report: Of the lowering, where it has just happened.
        statistics: Of a calibration that the lowering used, where they are at hand.
        data: None to generate some.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`.
        calibrated_by: Options of `rnnqc lower` that give a calibration, as far as they are known.
    """

    float_proto: onnx.ModelProto
    quant_proto: onnx.ModelProto
    float_name: str
    quant_name: str
    float_bytes: int
    quant_bytes: int
    report: Report | None = None
    statistics: Statistics | None = None
    data: Data | None = None
    state: Mapping[str, str] | Iterable[str] | None = None
    calibrated_by: Sequence[str] = ()


@dataclass(frozen=True)
class Options:
    """How much to measure.

    Attributes:
        samples: Feeds to use; all by default.
        bounds: Of the sensitivities.
        times: Whether to measure times, which differ from run to run.
        progress: Called with a stage, how much of it is done, and how much there is.
    """

    samples: int | None = None
    bounds: Bounds = field(default_factory=Bounds)
    times: bool = False
    progress: Tell | None = None

    def tell(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """Reports progress."""
        if self.progress is not None:
            self.progress(stage, done, total)


def subject_of_lowering(
    lowered: Lowered,
    float_path: str,
    quant_name: str,
    data: str | None,
    stats: str | None,
    state: Sequence[str],
    batch: int | None = None,
) -> Subject:
    """What a report on a lowering that has just happened is about.

    Args:
        lowered: Its result.
        float_path: The file that was lowered.
        quant_name: The file that its result is written to.
        data: Where the data is that it was calibrated with, if there is any; the report is measured on it.
        stats: The statistics file that it was calibrated with instead.
        state: Texts `IN:OUT` that the calibration was given.
        batch: The batch that it was given.

    Raises:
        CompileError: The float model cannot be read.
    """
    proto, size = load_proto_and_size(Path(float_path))
    calibrated_by = ["--stats", stats] if stats else ["--calibration", data] if data else []
    if data:
        calibrated_by += [word for text in state for word in ("--state", text)]
    if calibrated_by and batch is not None:
        calibrated_by += ["--batch", str(batch)]
    report = lowered.report
    return Subject(
        proto, lowered.proto, float_path, quant_name, size, report.bytes, report, lowered.statistics, data, state,
        calibrated_by,
    )  # fmt: skip
