"""Exactly the intended names can be imported: a change here is a change for users.

What these would catch: a name that disappears, changes its signature, or becomes public by accident.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
import types
from pathlib import Path

import pytest

import rnnqc
import rnnqc.passes
from rnnqc import runtime_ops

API = Path(__file__).resolve().parents[2] / "docs" / "python_api.md"
PUBLIC = {
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
    "batch": None,
    "layers": (),
    "dims": None,
    "bind": None,
}
TUNE = {
    "model": inspect.Parameter.empty,
    "data": inspect.Parameter.empty,
    "min_sqnr": None,
    "metric": None,
    "min_metric": None,
    "max_metric": None,
    "max_bytes": None,
    "max_ms": None,
    "recipe": "int8",
    "stats": None,
    "state": None,
    "rest": "float",
    "seconds": math.inf,
    "models": None,
    "dims": None,
    "bind": None,
    "progress": None,
    "notify": None,
}
REPORT = {"models": 150, "seconds": math.inf, "samples": None, "metric": None, "progress": None}
BY_POSITION = {"model", "recipe", "form", "native", "options", "kwargs"}


def test_names() -> None:
    assert set(rnnqc.__all__) == PUBLIC
    assert rnnqc.__all__ == sorted(rnnqc.__all__)
    assert [n for n in rnnqc.__all__ if not hasattr(rnnqc, n)] == []


def test_nothing_else_is_public() -> None:
    modules = {n for n, v in vars(rnnqc).items() if isinstance(v, types.ModuleType)}
    others = {n for n in vars(rnnqc) if not n.startswith("_")} - PUBLIC - modules - {"TYPE_CHECKING", "Any"}
    assert others == set(), "private names start with an underscore"


def test_passes() -> None:
    assert rnnqc.passes.__all__ == sorted(rnnqc.passes.__all__)
    public = {n for n, v in vars(rnnqc.passes).items() if not n.startswith("_") and not isinstance(v, types.ModuleType)}
    assert public == set(rnnqc.passes.__all__)
    defined = [c for c in rnnqc.passes.Pass.__subclasses__() if c.__module__.startswith("rnnqc.passes")]
    assert {c.__name__ for c in defined} <= public, "every pass is exported"


def test_bounds_of_a_report_are_plain_keywords() -> None:
    """Would catch: a class of an inner module that has to be imported to measure less."""
    parameters = inspect.signature(rnnqc.report).parameters
    assert {n: parameters[n].default for n in REPORT} == REPORT
    with pytest.raises(rnnqc.CompileError, match="models=0"):
        rnnqc.report("a.onnx", "b.onnx", models=0)


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
    assert {n: p.default for n, p in inspect.signature(rnnqc.tune).parameters.items()} == TUNE
    assert {"settings", "found"} <= set(inspect.signature(rnnqc.Tuned).parameters) and hasattr(rnnqc.Tuned, "text")


@pytest.mark.parametrize("module", ["sessions", "timing", "search.tune", "reporting.report", "verification"])
def test_modules_do_not_hide_functions(module: str) -> None:
    """A module named as a function would take its place once somebody imports the module."""
    importlib.import_module(f"rnnqc.{module}")
    assert all(inspect.isfunction(getattr(rnnqc, n)) for n in ("bench", "report", "session", "tune", "verify"))


def test_names_for_type_checkers_are_those_at_run_time() -> None:
    """The imports under TYPE_CHECKING and the table that imports at first use are two lists."""
    tree = ast.parse(Path(rnnqc.__file__ or "").read_text(encoding="utf-8"))
    (typed,) = (n for n in tree.body if isinstance(n, ast.If))
    assert isinstance(typed, ast.If)
    imports = [n for n in typed.body if isinstance(n, ast.ImportFrom) and n.module != "rnnqc"]
    assert {a.name: n.module for n in imports for a in n.names} == {k: f"rnnqc.{v}" for k, v in rnnqc._HOMES.items()}


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="quantise"):
        rnnqc.quantise  # noqa: B018
    assert set(rnnqc.__all__) <= set(dir(rnnqc))


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


def api_table() -> str:
    """A line for each name of docs/python_api.md, in its order: its signature, and a description."""
    lines = ["| name | |", "|---|---|"]
    for name in re.findall(r"^::: rnnqc\.(\w+)$", API.read_text(encoding="utf-8"), flags=re.M):
        value = getattr(rnnqc, name)
        call = f"{name}({', '.join(_called(value))})" if inspect.isfunction(value) else name
        sentence = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `rnnqc.{call}` | {sentence} |")
    return "\n".join(lines) + "\n"


def _called(function: types.FunctionType) -> list[str]:
    """Parameters as they are given: those by position with their names, all others as `...`."""
    parameters = inspect.signature(function).parameters.values()
    first = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return first + (["..."] if len(first) < len(parameters) else [])


def test_the_page_of_the_api_is_of_use_in_the_repository() -> None:
    """mkdocstrings fills it on the site alone; `python -m tests.project.test_public_api` prints the table."""
    text = API.read_text(encoding="utf-8")
    assert text.split("<!-- api:begin -->\n")[1].split("<!-- api:end -->")[0] == api_table()


def test_every_public_name_is_on_the_page() -> None:
    assert set(re.findall(r"^::: rnnqc\.(\w+)$", API.read_text(encoding="utf-8"), flags=re.M)) == PUBLIC - {
        "__version__"
    }


if __name__ == "__main__":
    print(api_table(), end="")
