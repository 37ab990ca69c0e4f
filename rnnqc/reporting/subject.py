"""The subject of a report, and the bounds of its measurements."""

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
    """The subject of a report.

    Attributes:
        float_proto: The float model.
        quant_proto: The lowered model.
        float_name: Name of the float model in the report.
        quant_name: Name of the lowered model in the report.
        float_bytes: Size of the float model, external data included.
        quant_bytes: Size of the lowered model, external data included.
        report: The report of the lowering, if it has just happened.
        statistics: The statistics that the lowering used, if available.
        data: The data; None to generate some.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`.
        calibrated_by: The options of `rnnqc lower` that supplied a calibration, as far as they are known.
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
    """The bounds of the measurements.

    Attributes:
        samples: The number of feeds to use; all by default.
        bounds: The bounds of the sensitivity measurements.
        times: Whether to measure times, which differ from run to run.
        progress: Called with a stage, how much of it is done, and how much there is.
        notify: Called with what should be known before long work begins.
    """

    samples: int | None = None
    bounds: Bounds = field(default_factory=Bounds)
    times: bool = False
    progress: Tell | None = None
    notify: Callable[[str], None] | None = None

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
    """Makes the subject of a report on a lowering that has just happened.

    Args:
        lowered: Its result.
        float_path: The file that was lowered.
        quant_name: The file that its result is written to.
        data: Path of the calibration data, if any; the report measures on it.
        stats: The statistics file of the calibration, if one was given instead.
        state: Texts `IN:OUT` that the calibration was given.
        batch: The batch size that the calibration was given.

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
