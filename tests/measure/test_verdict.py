"""The verdict on a lowered model.

What these would catch: a NaN that is called good, an error that grows without a warning, token numbers judged by
their SQNR, a task that is lost behind good outputs or excuses what is not finite, a comparison of constants that is
called good.
"""

from __future__ import annotations

import math

import pytest

from rnnqc.measure.verdict import Judged, Task, verdict_of


@pytest.mark.parametrize(
    ("output", "level", "said"),
    [
        (Judged("y", math.inf, 1.0), "good", "is the same in both models"),
        (Judged("y", 40.0, 0.0), "good", "40.0 dB: its error is 1 % of its values."),
        (Judged("y", 40.0, 0.0, growing=True), "watch", "grows over time. Measure the task"),
        (Judged("y", 25.0, 0.0), "watch", "5.6 %"),
        (Judged("y", 19.9, 0.0), "bad", "Do not ship it"),
        (Judged("y", -3.0, 0.0), "bad", "more than all of its values"),
        (Judged("y", -math.inf, 0.0), "bad", "more than all"),
        (Judged("tokens", 12.0, 0.995), "good", "99.5% of them are equal"),
        (Judged("price", 66.9, 0.0, varying_db=12.2), "watch", "but 25 % of what varies: nearly all of the output is"),
        (Judged("price", 66.9, 0.0, varying_db=20.1), "good", "of its values."),
        (Judged("price", 12.0, 0.0, varying_db=-9.0), "bad", "25 % of its values."),
        (
            Judged("p", 14.5, 0.0, near_zero=True, max_abs=0.0067),
            "watch",
            "a range from 0 to 1, and 0.0067 off at most. Comp",
        ),
        (
            Judged("p", 25.0, 0.0, near_zero=True, max_abs=0.0067),
            "watch",
            "Compare on data on which it rises, or measure",
        ),
        (Judged("p", 14.5, 0.0, near_zero=True, max_abs=0.0101), "bad", "19 % of its values. Do not ship it"),
        (Judged("p", 14.5, 0.0, max_abs=0.0067), "bad", "19 % of its values. Do not ship it"),
        (Judged("p", 31.0, 0.0, near_zero=True, max_abs=0.0067), "good", "2.8 % of its values."),
        (Judged("p", 14.5, 0.0, unlike=1, near_zero=True, max_abs=0.0067), "bad", "NaN or infinite"),
        (Judged("y", 60.0, 1.0, unlike=3), "bad", "3 value(s) that are NaN or infinite"),
    ],
)
def test_of_one_output(output: Judged, level: str, said: str) -> None:
    found = verdict_of([output])
    assert found is not None
    assert found.level == level
    assert said in found.text
    assert found.line.startswith(f"{level}: ")


def test_the_worst_output_decides() -> None:
    """One with NaN before one with less SQNR."""
    found = verdict_of([Judged("a", 50.0, 0.0), Judged("b", 50.0, 0.0, unlike=1), Judged("c", 1.0, 0.0)])
    assert found is not None
    assert (found.level, found.text[:3]) == ("bad", "'b'")
    assert verdict_of([]) is None


@pytest.mark.parametrize(("other", "words"), [(43.6, "'mask', one of 2 outputs,"), (50.0, "'mask', the worst of 2")])
def test_the_worst_is_only_what_has_the_least_sqnr(other: float, words: str) -> None:
    """An output whose error grows decides before others, whose figures stand in the same tables."""
    found = verdict_of([Judged("h", other, 0.0), Judged("mask", 48.3, 0.0, growing=True)])
    assert found is not None
    assert found.level == "watch" and found.text.startswith(f"{words}") and "grows over time" in found.text


@pytest.mark.parametrize(
    ("task", "sqnr", "level"),
    [
        (Task("accuracy", 0.8718, 0.8716), 15.0, "good"),
        (Task("accuracy", 0.86, 0.8716), 50.0, "watch"),
        (Task("accuracy", 0.80, 0.8716), 50.0, "bad"),
        (Task("perplexity", 126.7, 126.7), 15.0, "good"),
        (Task("perplexity", 130.0, 126.7), 50.0, "watch"),
        (Task("perplexity", 140.0, 126.7), 50.0, "bad"),
        (Task("mine:score", 1.0, 5.0), 50.0, "good"),
    ],
)
def test_a_task_decides_where_it_can(task: Task, sqnr: float, level: str) -> None:
    found = verdict_of([Judged("y", sqnr, 0.0)], task)
    assert found is not None
    assert (found.level, found.figure) == (level, task.text)
    broken = verdict_of([Judged("y", sqnr, 0.0, unlike=1)], task)
    assert broken is not None
    assert broken.level == "bad"


@pytest.mark.parametrize(
    ("outputs", "level"),
    [
        ([Judged("y", math.inf, 1.0, constant=True)], "watch"),
        ([Judged("y", math.inf, 1.0, constant=True), Judged("z", 50.0, 0.0, constant=True)], "watch"),
        ([Judged("y", math.inf, 1.0, constant=True), Judged("z", 50.0, 0.0)], "good"),
        ([Judged("y", 10.0, 0.0, constant=True)], "bad"),
    ],
)
def test_constants_show_little(outputs: list[Judged], level: str) -> None:
    """Only where no output varies, and only where the figures would say that it is good."""
    found = verdict_of(outputs)
    assert found is not None
    assert found.level == level
    assert ("this comparison shows little" in found.text and "--data" in found.text) == (level == "watch")
    assert "evaluate" not in found.text, "a task on the same data would show as little"


@pytest.mark.parametrize(("metric", "level"), [("accuracy", "good"), ("mine:score", "watch")])
def test_a_task_shows_more_than_constants(metric: str, level: str) -> None:
    found = verdict_of([Judged("y", math.inf, 1.0, constant=True)], Task(metric, 0.9, 0.9))
    assert found is not None
    assert (found.level, "shows little" in found.text) == (level, level == "watch")
