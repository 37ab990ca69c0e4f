"""Checks of a lowering that the command line asks for.

What these would catch: a check that is asked for and passed over, a later one that hides the first.
"""

from __future__ import annotations

from typing import Any

import pytest

from rnnqc.lowering.failures import FORM, MIN_SQNR, STRICT, VERIFY, first_failure
from rnnqc.lowering.reports.report import Entry, Report

LOWERED, FLOAT = Entry("a", "LSTM", "lowered", "fused"), Entry("b", "GRU", "float")
LEVELS = {"magnitude 1": {"y": 40.0}, "magnitude 30": {"y": 12.5}}


def report(**given: Any) -> Report:
    return Report("m.onnx", "int8", "fused", **given)


CASES: dict[str, tuple[Report, dict[str, Any], str]] = {
    "strict": (report(entries=[LOWERED, FLOAT]), {"strict": True}, STRICT),
    "in part": (report(entries=[Entry("c", "Scan", "lowered", left=["m"])]), {"strict": True}, STRICT),
    "suspected": (report(suspected_steps=["make a layer of it."]), {"strict": True}, STRICT),
    "form": (report(entries=[LOWERED]), {"form": "qonnx"}, FORM),
    "verify": (report(unverified=["cleanup"]), {"verify": True}, VERIFY),
    "unmeasured": (report(unmeasured="no data."), {"min_sqnr": 1.0}, MIN_SQNR),
    "too lossy": (report(sqnr_db={"x": 30.0, "y": 12.5}), {"min_sqnr": 20.0}, MIN_SQNR),
    "infinite": (report(sqnr_db={"y": 30.0}, unlike=["output 'y' is NaN."]), {"min_sqnr": 20.0}, MIN_SQNR),
}
ASKED = {"strict": False, "form": None, "verify": False, "min_sqnr": None}


@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_for_fails(name: str) -> None:
    given, asked, option = CASES[name]
    failure = first_failure(given, **asked)
    assert failure is not None
    assert failure.option == option
    assert failure.texts[-1].endswith("the model was not written.")
    assert first_failure(given) is None, "nobody asked"


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (report(entries=[LOWERED]), {"strict": True}),
        (report(entries=[Entry("a", "LSTM", "lowered", "qonnx"), FLOAT]), {"form": "qonnx"}),
        (report(unverified=["cleanup"], verified=["fold-scales"]), {"verify": True}),
        (report(sqnr_db={"y": 20.0}, unmeasured="took too long."), {"min_sqnr": 20.0}),
    ],
)
def test_what_is_enough(given: Report, asked: dict[str, Any]) -> None:
    assert first_failure(given, **asked) is None


def test_the_worst_output_and_its_level_are_named() -> None:
    given = report(sqnr_db={"x": 15.0, "y": 12.5}, sqnr_level={"y": "magnitude 30"}, sqnr_levels=LEVELS)
    failure = first_failure(given, min_sqnr=20.0)
    assert failure is not None
    assert failure.texts[0] == "output 'y' has 12.5 dB at magnitude 30, 20 dB asked for."


def test_the_first_check_counts() -> None:
    given = report(entries=[FLOAT], unverified=["cleanup"], unmeasured="no data.")
    asked = {"strict": True, "form": "qonnx", "verify": True, "min_sqnr": 1.0}
    found = []
    for option in asked:
        failure = first_failure(given, **asked)  # type: ignore[arg-type]
        assert failure is not None
        found.append(failure.option)
        asked = asked | {option: ASKED[option]}
    assert found == [STRICT, FORM, VERIFY, MIN_SQNR]
