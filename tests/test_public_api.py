"""What can be imported is what is meant to be: a change here is a change for users.

What these would catch: a name that disappears, changes its signature, or becomes public by accident.
"""

from __future__ import annotations

import importlib
import inspect
import types

import pytest

import rnnqc
import rnnqc.passes
from rnnqc import runtime_ops

PUBLIC = {
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
}
LOWER = {
    "model": inspect.Parameter.empty,
    "recipe": None,
    "form": None,
    "unroll": False,
    "dims": None,
    "overrides": (),
    "strict": False,
    "verify": False,
    "reproducer": None,
    "measure": False,
    "instruments": (),
    "progress": None,
}
CALIBRATE = {
    "model": inspect.Parameter.empty,
    "feeds": inspect.Parameter.empty,
    "state": None,
    "limit": None,
    "seed": None,
    "processes": 1,
    "scheduler": None,
    "progress": None,
    "moments": True,
}
TUNE = {
    "model": inspect.Parameter.empty,
    "data": inspect.Parameter.empty,
    "min_sqnr": None,
    "metric": None,
    "min_metric": None,
    "recipe": "int8",
    "stats": None,
    "state": None,
    "rest": "float",
    "progress": None,
}
BY_POSITION = {"model", "recipe", "form", "native", "options", "kwargs"}


def test_names() -> None:
    assert set(rnnqc.__all__) == PUBLIC
    assert rnnqc.__all__ == sorted(rnnqc.__all__)
    assert [n for n in rnnqc.__all__ if not hasattr(rnnqc, n)] == []


def test_nothing_else_is_public() -> None:
    modules = {n for n, v in vars(rnnqc).items() if isinstance(v, types.ModuleType)}
    others = {n for n in vars(rnnqc) if not n.startswith("_")} - PUBLIC - modules
    assert others == set(), "private names start with an underscore"


def test_passes() -> None:
    assert rnnqc.passes.__all__ == sorted(rnnqc.passes.__all__)
    public = {n for n, v in vars(rnnqc.passes).items() if not n.startswith("_") and not isinstance(v, types.ModuleType)}
    assert public == set(rnnqc.passes.__all__)
    defined = [c for c in rnnqc.passes.Pass.__subclasses__() if c.__module__.startswith("rnnqc.passes")]
    assert {c.__name__ for c in defined} <= public, "every pass is exported"


def test_signature_of_lower() -> None:
    parameters = inspect.signature(rnnqc.lower).parameters
    assert {n: p.default for n, p in parameters.items() if n in LOWER} == LOWER
    for name, parameter in parameters.items():
        expected = parameter.POSITIONAL_OR_KEYWORD if name in BY_POSITION else parameter.KEYWORD_ONLY
        assert parameter.kind is expected, name


def test_signature_of_calibrate() -> None:
    parameters = inspect.signature(rnnqc.calibrate).parameters
    assert {n: p.default for n, p in parameters.items()} == CALIBRATE
    kinds = {n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert kinds == {"model", "feeds"}


def test_signature_of_session() -> None:
    parameters = inspect.signature(rnnqc.session).parameters
    assert [(n, p.default) for n, p in parameters.items()][:3] == [
        ("model", inspect.Parameter.empty),
        ("native", True),
        ("options", None),
    ]


def test_tune() -> None:
    """A module of its own: what is rarely used takes no time to import."""
    module = importlib.import_module("rnnqc.tune")
    assert {n: p.default for n, p in inspect.signature(module.tune).parameters.items()} == TUNE
    assert {"settings", "found"} <= set(inspect.signature(module.Tuned).parameters) and hasattr(module.Tuned, "text")


def test_runtime_ops() -> None:
    assert callable(runtime_ops.register)
    assert runtime_ops.library_path().name.startswith("librnnqc_ops")
    assert runtime_ops is importlib.import_module("rnnqc.runtime_ops")


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__"}))
def test_documented(name: str) -> None:
    assert inspect.getdoc(getattr(rnnqc, name))


def test_version() -> None:
    assert rnnqc.__version__[0].isdigit()


def test_attributes_of_a_result() -> None:
    assert {"proto", "save"} <= set(vars(rnnqc.Lowered))
    assert {"model", "report"} <= set(inspect.signature(rnnqc.Lowered).parameters)
