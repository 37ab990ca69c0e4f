"""rnnqc: quantizes recurrent layers of ONNX models and runs them in onnxruntime.

Names are imported at their first use: `rnnqc --help` needs neither onnx nor onnxruntime.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnnqc import passes as passes
    from rnnqc import runtime_ops
    from rnnqc.calibration.calibrate import calibrate
    from rnnqc.data.statistics import PointStatistics, Statistics
    from rnnqc.dumps.dump import dump
    from rnnqc.errors import CompileError, NumericsError, PipelineError, RnnqcError, UsageError
    from rnnqc.ir import Model
    from rnnqc.ir.joining import name_functions
    from rnnqc.layers.layer import layer
    from rnnqc.layers.stack import stack
    from rnnqc.lowering.inspection import Inspection, inspect
    from rnnqc.lowering.lower import lower
    from rnnqc.lowering.options import LowerOptions
    from rnnqc.lowering.reports.report import Lowered
    from rnnqc.measure.compare import compare_models
    from rnnqc.measure.differences import OutputComparison, StepComparison
    from rnnqc.passes.manager import PassManager
    from rnnqc.reporting.report import ErrorReport, report
    from rnnqc.scores import Evaluation, evaluate
    from rnnqc.search.tune import tune
    from rnnqc.search.tuned import Tuned
    from rnnqc.sessions import session
    from rnnqc.timing import Measurement, bench
    from rnnqc.tracing.trace import Tracer
    from rnnqc.verification import Verification, verify

    __version__: str

_NAMES = {
    "calibration.calibrate": ("calibrate",),
    "data.statistics": ("PointStatistics", "Statistics"),
    "dumps.dump": ("dump",),
    "errors": ("CompileError", "NumericsError", "PipelineError", "RnnqcError", "UsageError"),
    "ir": ("Model",),
    "ir.joining": ("name_functions",),
    "layers.layer": ("layer",),
    "layers.stack": ("stack",),
    "lowering.inspection": ("Inspection", "inspect"),
    "lowering.lower": ("lower",),
    "lowering.options": ("LowerOptions",),
    "lowering.reports.report": ("Lowered",),
    "measure.compare": ("compare_models",),
    "measure.differences": ("OutputComparison", "StepComparison"),
    "passes.manager": ("PassManager",),
    "reporting.report": ("ErrorReport", "report"),
    "scores": ("Evaluation", "evaluate"),
    "search.tune": ("tune",),
    "search.tuned": ("Tuned",),
    "sessions": ("session",),
    "timing": ("Measurement", "bench"),
    "tracing.trace": ("Tracer",),
    "verification": ("Verification", "verify"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "CompileError",
    "ErrorReport",
    "Evaluation",
    "Inspection",
    "LowerOptions",
    "Lowered",
    "Measurement",
    "Model",
    "NumericsError",
    "OutputComparison",
    "PassManager",
    "PipelineError",
    "PointStatistics",
    "RnnqcError",
    "Statistics",
    "StepComparison",
    "Tracer",
    "Tuned",
    "UsageError",
    "Verification",
    "__version__",
    "bench",
    "calibrate",
    "compare_models",
    "dump",
    "evaluate",
    "inspect",
    "layer",
    "lower",
    "name_functions",
    "report",
    "runtime_ops",
    "session",
    "stack",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in ("passes", "runtime_ops"):
        return _import_module(f"rnnqc.{name}")
    if name == "__version__":
        value: Any = _version()
    elif name in _HOMES:
        value = getattr(_import_module(f"rnnqc.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'rnnqc' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("rnnqc")
    except PackageNotFoundError:
        return "0+unknown"
