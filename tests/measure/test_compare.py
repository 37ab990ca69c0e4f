"""Comparing two models.

What these would catch: a measure that mixes feeds up, models of different signatures compared as if they belonged
together.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from rnnqc.errors import CompileError
from rnnqc.measure.compare import compare_levels, compare_models
from rnnqc.measure.feeds import Level
from tests.subjects.protos import parse

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
FLOAT = parse(f"{HEADER} g (float[2] x) => (float[2] y, int64[2] k) {{ y = Identity(x) k = Cast <to = 7> (x) }}")
OFF = parse(
    f"{HEADER} g (float[2] x) => (float[2] y, int64[2] k) {{ y = Add(x, d) k = Cast <to = 7> (x) }}",
    d=np.array([0.5, 0], np.float32),
)
FEEDS = [{"x": np.array([3, 4], np.float32)}, {"x": np.array([0, 5], np.float32)}]


def test_measures_over_all_feeds() -> None:
    y, k = compare_models(FLOAT, OFF, FEEDS)
    assert (y.name, k.name) == ("y", "k")
    assert y.sqnr_db == pytest.approx(20.0)
    assert (y.max_abs, y.equal) == (0.5, 0.5)
    a, b = np.array([3, 4, 0, 5]), np.array([3.5, 4, 0.5, 5])
    assert y.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert (k.sqnr_db, k.max_abs, k.equal) == (math.inf, 0.0, 1.0)
    assert k.cosine == pytest.approx(1.0)


@pytest.mark.parametrize("is_given", [False, True])
def test_small_probabilities(is_given: bool) -> None:
    """Their error counts against a tenth on generated feeds, and against themselves on the user's data."""
    one, other = (
        parse(f"{HEADER} g (float[2] x) => (float[2] y) {{ s = Add (x, d) y = Sigmoid (s) }}", d=np.float32(d))
        for d in (-8.0, -7.9)
    )
    (level,) = compare_levels(one, other, [Level("", [{"x": np.zeros(2, np.float32)}], is_given=is_given)])
    assert level.outputs[0].sqnr_db == pytest.approx(19.6 if is_given else 69.0, abs=0.2)


def test_calls_are_counted() -> None:
    told: list[tuple[int, int]] = []
    compare_models(FLOAT, OFF, FEEDS, progress=lambda *done: told.append(done))
    assert told == [(1, 2), (2, 2)]


def test_other_outputs() -> None:
    other = parse(f"{HEADER} g (float[2] x) => (float[2] z) {{ z = Neg(x) }}")
    with pytest.raises(
        CompileError, match=r"the float model and the lowered model have different outputs: \['k', 'y'\] and \['z'\]"
    ):
        compare_models(FLOAT, other, FEEDS)


def test_other_shapes() -> None:
    other = parse(
        f"{HEADER} g (float[2] x) => (float[N] y, int64[2] k) {{ y = Concat <axis = 0> (x, x) k = Cast <to = 7> (x) }}"
    )
    with pytest.raises(CompileError, match=r"output 'y' has shape \[2\] and \[4\] in a and b"):
        compare_models(FLOAT, other, FEEDS, names=("a", "b"))


@pytest.mark.parametrize("broken", ["the float model", "the lowered model"])
def test_model_that_does_not_run_is_named(broken: str) -> None:
    bad = parse(f"{HEADER} g (float[2] x) => (float[2] y, int64[2] k) {{ y = Mystery(x) k = Cast <to = 7> (x) }}")
    models = (bad, FLOAT) if broken == "the float model" else (FLOAT, bad)
    with pytest.raises(CompileError, match=f"^{broken}: onnxruntime .* refuses the model"):
        compare_models(*models, FEEDS)


ACCUMULATOR = "(float[2] x, float[2] h) => (float[2] y, float[2] g)"
EXACT = parse(f"{HEADER} g {ACCUMULATOR} {{ g = Add(x, h) y = Neg(g) }}")
DRIFTING = parse(f"{HEADER} g {ACCUMULATOR} {{ s = Add(x, h) g = Mul(s, d) y = Neg(g) }}", d=np.float32([1.01, 1.01]))


def test_each_model_goes_on_with_its_own_states() -> None:
    """Fed with the float model's states, the error of every call would be 1 %."""
    calls = [{"x": np.array([1, 2], np.float32)}] * 40
    y, g = compare_models(EXACT, DRIFTING, calls, state={"h": "g"})
    assert y.steps is not None and y.steps.unit == "call" and len(y.steps.sqnr_db) == 40
    exact, drifting, wanted = 0.0, 0.0, []
    for _ in calls:
        exact, drifting = exact + 1, (drifting + 1) * 1.01
        wanted.append(20 * math.log10(exact / abs(exact - drifting)))
    assert y.steps.sqnr_db == pytest.approx(wanted, abs=1e-2)
    assert g.steps is not None and g.steps.growing and g.steps.worst == 39
    again, _ = compare_models(EXACT, DRIFTING, [{**c, "h": np.zeros(2, np.float32)} for c in calls], state=["h:g"])
    assert again.steps is not None and len(again.steps.sqnr_db) == 1, "every call starts a stream"
    assert again.sqnr_db == pytest.approx(40.0, abs=1e-2)


def test_time_steps_of_sequences_of_other_lengths() -> None:
    """A difference at one step of time is seen there, in batches and sequences of every size."""
    weights = {"W": np.ones((1, 4, 1), np.float32), "R": np.ones((1, 4, 1), np.float32)}
    text = "Y, h, c = LSTM <hidden_size = 1> (x, W, R)"
    models = [
        parse(f"{HEADER} g (float[T,B,1] x) => (float[T,1,B,1] Y) {{ {text} }}", **weights),
        parse(
            f"{HEADER} g (float[T,B,1] x) => (float[T,1,B,1] Y) {{ m = CumSum(x, zero) k = Less(m, five)"
            "f = Cast <to = 1> (k) p = Mul(x, f) Y, h, c = LSTM <hidden_size = 1> (p, W, R) }",
            zero=np.array(0, np.int32), five=np.float32(5), **weights,
        ),
    ]  # fmt: skip
    feeds = [{"x": np.ones((t, b, 1), np.float32)} for t, b in ((7, 1), (5, 3), (4, 2))]
    (y,) = compare_models(*models, feeds)
    assert y.steps is not None and (y.steps.unit, y.steps.axis, len(y.steps.equal)) == ("time step", 0, 7)
    assert [share == 1.0 for share in y.steps.equal] == [True] * 4 + [False] * 3
    assert y.steps.worst in (4, 5, 6)


def test_states_of_the_wrong_name() -> None:
    with pytest.raises(CompileError, match="no output 'z'"):
        compare_models(EXACT, DRIFTING, FEEDS, state=["h:z"])
