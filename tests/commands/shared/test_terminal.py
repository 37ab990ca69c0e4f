"""Progress of commands whose remarks go to no terminal.

What these would catch: no output for minutes in a pipe or a log, a line for every sample, lines that -q should stop.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rnnqc.commands.shared import terminal


class Clock:
    """A clock that advances on request."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(terminal, "EVERY", 10.0)
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=made.monotonic))
    terminal.reset()
    return made


def test_a_line_every_ten_seconds(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    with terminal.progress_bar("calibrating") as update:
        for k in range(1, 42):
            clock.now += 0.5
            update(completed=k, total=100)
        update(description="points [a]", completed=0, total=None)
        clock.now += 10
        update(description="points [a]", completed=0, total=None)
        clock.now += 15
        update(completed=3, total=None)
    captured = capfd.readouterr()
    assert captured.err.splitlines() == [
        "rnnqc: calibrating 20 of 100, 10 s, about 40 s left",
        "rnnqc: calibrating 40 of 100, 20 s, about 30 s left",
        "rnnqc: points [a], 30 s",
        "rnnqc: points [a] 3, 46 s",
    ]
    assert captured.out == ""


def test_an_estimate_is_of_what_is_counted(clock: Clock, capfd: pytest.CaptureFixture[str]) -> None:
    """From its first count on, not from the start of the command; none where the total is not known or is reached."""
    with terminal.progress_bar("loading") as update:
        clock.now += 9
        update(description="models", completed=0, total=4)
        clock.now += 6
        update(description="models", completed=2, total=4)
        clock.now += 12
        update(description="more", completed=5, total=5)
        clock.now += 12
        update(description="more", completed=6, total=6)
    assert capfd.readouterr().err.splitlines() == [
        "rnnqc: models 2 of 4, 15 s, about 6 s left",
        "rnnqc: more 5, 27 s",
        "rnnqc: more 6, 39 s",
    ]


@pytest.mark.parametrize("everywhere", [True, False])
def test_nothing_for_those_who_want_quiet(clock: Clock, capfd: pytest.CaptureFixture[str], everywhere: bool) -> None:
    terminal.reset(quiet=everywhere)
    with terminal.progress_bar("tuning", quiet=not everywhere) as update:
        clock.now += 1000
        update(completed=1, total=2)
    terminal.reset()
    assert capfd.readouterr().err == ""
