"""rnnqc: quantizes recurrent layers of ONNX models and runs them in onnxruntime."""

from importlib.metadata import PackageNotFoundError as _PackageNotFoundError
from importlib.metadata import version as _version

from rnnqc import runtime_ops
from rnnqc.calibration.calibrate import calibrate
from rnnqc.data.statistics import PointStatistics, Statistics
from rnnqc.dumps.dump import dump
from rnnqc.errors import CompileError, NumericsError, PipelineError, RnnqcError, UsageError
from rnnqc.ir import Model
from rnnqc.ir.joining import name_functions
from rnnqc.layers.layer import layer
from rnnqc.layers.stack import stack
from rnnqc.lowering.lower import lower
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.report import Lowered
from rnnqc.measure.compare import compare_models
from rnnqc.measure.differences import OutputComparison, StepComparison
from rnnqc.passes.manager import PassManager
from rnnqc.scores import Evaluation, evaluate
from rnnqc.session import session
from rnnqc.tracing.trace import Tracer

try:
    __version__ = _version("rnnqc")
except _PackageNotFoundError:
    __version__ = "0+unknown"

__all__ = [
    "CompileError",
    "Evaluation",
    "LowerOptions",
    "Lowered",
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
    "UsageError",
    "__version__",
    "calibrate",
    "compare_models",
    "dump",
    "evaluate",
    "layer",
    "lower",
    "name_functions",
    "runtime_ops",
    "session",
    "stack",
]
