"""Other versions of onnxruntime: lowered models open, run, and give the bits of the installed one; all commands run.

The environment variable RNNQC_ONNXRUNTIMES names a folder with one folder for each version
(scripts/onnxruntime_versions.sh fetches them). What this would catch: an operator or a construct of the function bodies
that some version does not open or computes differently, a node whose outputs or inputs some version does not accept, a
native library that writes to outputs which a node does not have; a graph of rnnqc's own, for calibration say, that some
version refuses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from rnnqc import runtime_ops
from tests.runs.sessions import Outputs
from tests.runs.version_cases import version_cases
from tests.runs.version_process import LEVELS

RUNS = Path(__file__).resolve().parents[2] / "runs"
MODELS = RUNS.parents[1] / "models"
INSTALLED = "installed_results.npz"
FOLDER = os.environ.get("RNNQC_ONNXRUNTIMES", "")
VERSIONS = sorted(p.name for p in Path(FOLDER).iterdir() if (p / "onnxruntime").is_dir()) if FOLDER else []


def _process(script: str, packages: Path | None, *arguments: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    command = [sys.executable, str(RUNS / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"the process ended with {done.returncode} in {last}: {done.stderr[-800:]}"
    return done.stdout


def _run(models: Path, results: Path, packages: Path | None) -> Outputs:
    _process("version_process.py", packages, models, results, runtime_ops.library_path())
    with np.load(results) as found:
        return dict(found)


@pytest.fixture(scope="module")
def models(made_once: Callable[[str, Callable[[Path], None]], Path], request: pytest.FixtureRequest) -> Path:
    """A folder with the lowered models, their feeds, and what the installed version makes of them."""

    def fill(folder: Path) -> None:
        for case in version_cases(every=request.config.getoption("--slow")):
            onnx.save(case.lowered(), folder / f"{case.name}.onnx")
            np.savez(folder / f"{case.name}.npz", **case.feeds)  # type: ignore[arg-type]
        _run(folder, folder / INSTALLED, None)

    return made_once("version_models", fill)


@pytest.fixture(scope="module")
def installed(models: Path) -> Outputs:
    """The results of the installed version: the same bits in every way of execution."""
    with np.load(models / INSTALLED) as results:
        found = dict(results)
    assert not [k for k in found if k.endswith("|error")]
    _assert_same(found, found)
    return found


def _assert_same(expected: Outputs, found: Outputs) -> None:
    errors = {k: str(v) for k, v in found.items() if k.endswith("|error")}
    assert not errors, "\n".join(f"{k}: {v}" for k, v in list(errors.items())[:5]) + f"\n({len(errors)} in all)"
    assert found.keys() == expected.keys()
    wrong = []
    for key, value in found.items():
        if key == "version":
            continue
        name, _, _, output = key.split("|")
        reference = expected[f"{name}|stock|{LEVELS[0]}|{output}"]
        if value.shape != reference.shape or value.dtype != reference.dtype or value.tobytes() != reference.tobytes():
            wrong.append(key)
    assert not wrong, f"other bits: {wrong}"


@pytest.mark.slow
def test_every_way_in_the_installed_version(installed: Outputs) -> None:
    assert len(installed) > 250


def each_version(test: Callable[..., None]) -> Callable[..., None]:
    versions = [*VERSIONS[:1], *(pytest.param(v, marks=pytest.mark.slow) for v in VERSIONS[1:])]
    reason = "RNNQC_ONNXRUNTIMES names no folder with versions of onnxruntime"
    return pytest.mark.skipif(not VERSIONS, reason=reason)(pytest.mark.parametrize("version", versions)(test))


@each_version
def test_same_bits_in(version: str, models: Path, installed: Outputs, tmp_path: Path) -> None:
    found = _run(models, tmp_path / "results.npz", Path(FOLDER) / version)
    assert str(found["version"]) in (version, str(installed["version"])), "the folder holds another version"
    _assert_same(installed, found)


@each_version
def test_commands_in(version: str, tmp_path: Path) -> None:
    model, data = MODELS / "digits_lstm.onnx", tmp_path / "few.npz"
    with np.load(MODELS / "digits_test.npz") as whole:
        np.savez(data, **{name: array[:32] for name, array in whole.items()})  # type: ignore[arg-type]
    said = _process("version_commands.py", Path(FOLDER) / version, model, data, tmp_path)
    assert json.loads(said.splitlines()[-1]) == {"version": version, "failed": {}}
