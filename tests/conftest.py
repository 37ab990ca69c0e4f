"""Hypothesis profiles, the optional folder of real models, and the slow tests' switch.

* `HYPOTHESIS_PROFILE=ci` (default) is derandomised and small and reports a failing example as it is, `nightly` has
  60 times the examples, `explore` is random; both shrink.
* `RNNQC_SHARED` names a folder with real models and data, `../shared` next to the checkout by default; tests that
  need it skip when it is absent, and the summary says how many did.
* `--slow` runs the tests marked `slow`, too; without it they are deselected. So are, of a test marked `few(n)`, all
  cases but n, in which as many values of its parameters stand as n cases can have; of equals those that are evenly
  spread. Every instruction set and kernel of the machine is among them, whatever n is.
* Hypothesis draws no numbers that it finds in the sources: it would parse all of the product in each process, and an
  edit anywhere would change what is drawn everywhere.
* What waits for the longest of all, the cross-compiled library, comes first: no processor is idle at the end.
* BLAS and OpenMP have one thread: products are small, and threads that wait for the next one take processors from
  the other processes of the run.
* Each process imports all tests. Every second one begins at the end, so that two of them compile half of the files
  each, which in a new checkout takes longer than running what they have.
* What is there once the tests are collected is taken out of the garbage collector's sight, whose turns otherwise cost
  a tenth of the time.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

from rnnqc.commands.shared import terminal
from tests import few
from tests.native import arm64
from tests.runs.commands import Command, in_process

if hasattr(providers, "_get_local_constants"):  # since Hypothesis 6.131
    providers._get_local_constants = lambda: providers._local_constants
terminal.EVERY = math.inf  # what commands print does not depend on how long they take
SHARED_MISSING = "the folder of real models is absent"
_COMMON = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
_CI_PHASES = [Phase.explicit, Phase.generate]
settings.register_profile("ci", derandomize=True, max_examples=10, database=None, phases=_CI_PHASES, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("nightly", derandomize=True, max_examples=600, database=None, **_COMMON)  # type: ignore[arg-type]
settings.register_profile("explore", max_examples=300, **_COMMON)  # type: ignore[arg-type]
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def shared_folder() -> Path:
    """The path of the real models, whether or not the folder exists."""
    default = Path(__file__).resolve().parents[2] / "shared"
    return Path(os.environ.get("RNNQC_SHARED", default))


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    """`rnnqc` with these arguments, in this process."""
    return lambda *arguments: in_process(capfd, *arguments)


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Function from a relative path to a file of the folder of real models; skips the test when it is not there."""

    def find(relative: str) -> Path:
        path = shared_folder() / relative
        if not path.exists():
            pytest.skip(f"{SHARED_MISSING}: no {path}; set RNNQC_SHARED")
        return path

    return find


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Function from a name and what fills an empty folder to that folder, filled once for all processes of a run."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent

    def make(name: str, fill: Callable[[Path], None]) -> Path:
        import fcntl  # not on Windows, where no test asks for it

        folder, whole = root / name, root / f"{name}.whole"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.exists():
                folder.mkdir(exist_ok=True)
                fill(folder)
                whole.touch()
        return folder

    return make


@pytest.fixture(scope="session")
def arm64_library(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The native library for arm64."""
    return made_once("arm64", arm64.build_library) / arm64.LIBRARY


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, too")


def pytest_configure(config: pytest.Config) -> None:
    few.ALL = config.getoption("--slow")
    config.addinivalue_line("markers", "slow: takes long for what it adds to the others; runs with --slow")
    config.addinivalue_line("markers", "few(n): without --slow n of its cases run")


def pytest_collection(session: pytest.Session) -> None:
    if int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2 == 0:
        return
    root = session.config.rootpath
    for path in sorted((p for a in session.config.args for p in (root / a).rglob("test_*.py")), reverse=True):
        with contextlib.suppress(Exception, pytest.skip.Exception):  # said when it is collected
            importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        left = [item for item in items if "slow" not in item.keywords]
        left = _few(left)
        kept = {id(item) for item in left}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = left
    items.sort(key=lambda item: "arm64_library" not in getattr(item, "fixturenames", ()))


def _few(items: list[pytest.Item]) -> list[pytest.Item]:
    """Returns `items`, in order, without the cases that tests marked `few` leave out."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") is not None:
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    gone: set[int] = set()
    for members in cases.values():
        marker = members[0].get_closest_marker("few")
        assert marker is not None
        cases_of = [item.callspec.params if hasattr(item, "callspec") else {} for item in members]
        kept = few.chosen(cases_of, marker.args[0])
        gone.update(id(item) for k, item in enumerate(members) if k not in kept)
    return [item for item in items if id(item) not in gone]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    missing = [report for report in skipped if SHARED_MISSING in str(report.longrepr)]
    if missing:
        text = f"WARNING: {len(missing)} tests of real models did NOT run: {SHARED_MISSING} ({shared_folder()})"
        terminalreporter.write_line(text, yellow=True, bold=True)
