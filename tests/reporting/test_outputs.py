"""The page of a report agrees with `rnnqc verify` about outputs over time.

What these would catch: two rules for which axis is time, an axis that the values do not have, a recovered loop whose
outputs have steps in one place only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from rnnqc.data.feeds import Feeds
from rnnqc.measure.compare import compare_models
from rnnqc.measure.runs import Calls
from rnnqc.measure.time_axes import output_axes
from rnnqc.reporting.outputs import output_evidence
from rnnqc.search.quality import Quality
from tests.generate.recurrences import RecurrenceCase
from tests.subjects.protos import parse

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
RNG = np.random.default_rng(0)
WEIGHTS = {"W": RNG.normal(size=(1, 20, 4)).astype(np.float32), "R": RNG.normal(size=(1, 20, 5)).astype(np.float32)}
LSTM = "Y, Yh, Yc = LSTM <hidden_size = 5> (x, W, R"
RESHAPED = f"g (float[T,B,4] x, int64[3] sizes) => (float[B,T,5] y) {{ {LSTM}) y = Reshape(Y, sizes) }}"
STREAM = f"g (float[T,1,4] x, float[1,1,5] h, float[1,1,5] c) => (float[T,1,1,5] Y, Yh, Yc) {{ {LSTM}, , , h, c) }}"
STREAM = STREAM.replace("Y, Yh, Yc) {", "Y, float[1,1,5] Yh, float[1,1,5] Yc) {")
CARRIED = {"h": "Yh", "c": "Yc"}
Expected = Mapping[str, tuple[str, int] | None]


def _reshaped(*sizes: int) -> list[Feeds]:
    x = RNG.normal(size=(12, 2, 4)).astype(np.float32)
    return [{"x": x, "sizes": np.array(sizes)} for _ in range(2)]


def _stream(steps: int, calls: int) -> list[Feeds]:
    states = {n: np.zeros((1, 1, 5), np.float32) for n in CARRIED}
    data: list[Feeds] = [{"x": RNG.normal(size=(steps, 1, 4)).astype(np.float32)} for _ in range(calls)]
    return [{**data[0], **states}, *data[1:]]


def _noisy(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with other last digits of its weights: nothing is compared where all is equal."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for tensor in changed.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim > 1:
            tensor.CopyFrom(onnx.numpy_helper.from_array(values * np.float32(1.01), tensor.name))
    return changed


def _assert_same(proto: onnx.ModelProto, feeds: list[Feeds], carried: Mapping[str, str], expected: Expected) -> None:
    other = _noisy(proto)
    quality = Quality(proto, Calls.of(feeds, proto, carried))
    found = output_evidence(quality, quality.outputs(other), output_axes(proto), ("one", "other"))
    page = {o.name: o for o in found}
    compared = {c.name: c for c in compare_models(proto, other, feeds, state=carried)}
    assert set(page) == set(compared) == set(expected)
    for name, wanted in expected.items():
        curve, steps = page[name].curve, compared[name].steps
        assert page[name].sqnr_db == compared[name].sqnr_db
        assert (None if curve is None else (curve.unit, curve.stops[-1])) == wanted, name
        assert (None if steps is None else (steps.unit, len(steps.sqnr_db))) == wanted, name


@pytest.mark.parametrize(
    ("sizes", "expected"), [((2, 12, 5), ("time step", 12)), ((2, 5, 12), None), ((12, 2, 5), None)]
)
def test_an_axis_that_names_give_is_taken_if_its_size_is_that_of_the_input(
    sizes: tuple[int, int, int], expected: tuple[str, int] | None
) -> None:
    _assert_same(parse(f"{HEADER} {RESHAPED}", **WEIGHTS), _reshaped(*sizes), {}, {"y": expected})


@pytest.mark.parametrize(("steps", "expected"), [(1, ("call", 20)), (4, ("time step", 80))])
def test_streams(steps: int, expected: tuple[str, int]) -> None:
    wanted = {"Y": expected, "Yh": ("call", 20), "Yc": ("call", 20)}
    _assert_same(parse(f"{HEADER} {STREAM}", **WEIGHTS), _stream(steps, 20), CARRIED, wanted)


def test_outputs_of_a_recovered_loop() -> None:
    case = RecurrenceCase(form="loop", time=9, outputs=("y",))
    _assert_same(case.model(), [case.feeds()], {}, {"y": ("time step", 9)})
