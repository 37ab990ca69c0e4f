"""The marker `few`, and cases in one test that are as few.

What these would catch: a test that loses its last case, or all of one kind, and cases that never run.
"""

from __future__ import annotations

import pytest

from tests import few
from tests.native.bundles import bundled

pytest_plugins = ["pytester"]
CONFTEST = "from tests.conftest import *\n"
CASES = """
import pytest

@pytest.mark.few({count})
@pytest.mark.parametrize("case", range(10))
def test_case(case):
    print(f"case {{case}},")

def test_other():
    pass
"""


def _run(pytester: pytest.Pytester, count: int, *arguments: str) -> list[int]:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(CASES.format(count=count))
    result = pytester.runpytest_inprocess("-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider", *arguments)
    assert result.ret == 0
    return [int(line.split("case ")[1].split(",")[0]) for line in result.outlines if "case " in line]


@pytest.mark.parametrize(("count", "left"), [(1, [0]), (4, [0, 3, 6, 9]), (20, [*range(10)])])
def test_cases_are_evenly_spread(pytester: pytest.Pytester, count: int, left: list[int]) -> None:
    assert _run(pytester, count) == left


def test_all_cases_are_run_with_the_slow_ones(pytester: pytest.Pytester) -> None:
    assert _run(pytester, 2, "--slow") == list(range(10))


PRODUCT = """
import pytest

@pytest.mark.few(3)
@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", range(2))
def test_case(a, b, c):
    print(f"case {a}{b}{c},")
"""


def test_every_value_stands(pytester: pytest.Pytester) -> None:
    """Evenly spread cases of a product may all have one value of a parameter."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(PRODUCT)
    result = pytester.runpytest_inprocess("-q", "-s", "-p", "no:xdist", "-p", "no:cacheprovider")
    cases = [line.split("case ")[1][:3] for line in result.outlines if "case " in line]
    assert [set(values) for values in zip(*cases, strict=True)] == [set("012"), set("012"), set("01")]


@pytest.mark.parametrize("everything", [False, True])
def test_cases_in_one_test(everything: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the marker leaves, with every value of an instruction set."""
    monkeypatch.setattr(few, "ALL", everything)
    seen: list[tuple[int, str]] = []

    @bundled("n, isa", [(n, isa) for n in range(4) for isa in ("avx2", "portable", "neon")], few=2)
    def run(n: int, isa: str) -> None:
        seen.append((n, isa))

    run()
    assert len(seen) == (12 if everything else 3)
    assert {isa for _, isa in seen} == {"avx2", "portable", "neon"}
