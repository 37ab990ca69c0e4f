"""Weights that are multiples of a step already.

What these would catch: trained weights that are rounded again by a scale of their own, which costs an int4 layer 20 dB
and more; a step that a format does not hold; floats that are taken for quantized values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.formats.format_request import FormatRequest
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.weight_grids import comes_quantized, own_steps
from rnnqc.formats.weight_scales import GRANULARITIES, WeightRule, fit_weights
from rnnqc.formats.weights import group_scales, mixed_scales, quantize_groups
from rnnqc.passes.formats.point_format import integer_format, with_scale

STEPS = np.float32([0.013, 0.21, 1e-4, 3.0])


def multiples(
    low: int, high: int, rows: int = 40, seed: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Integers, none of which has a common divisor with the others of its channel, and what they stand for."""
    codes = np.random.default_rng(0).integers(low, high + 1, (rows, len(STEPS)))
    codes[0], codes[1] = low, 1
    return codes, np.asarray(codes.astype(np.float32) * STEPS, np.float32)


@pytest.mark.parametrize(("low", "high"), [(-80, 80), (-127, 127), (-128, 127), (-5, 3)])
def test_steps_are_found(low: int, high: int) -> None:
    _, array = multiples(low, high)
    steps = own_steps(array, -128, 127)
    assert steps is not None
    np.testing.assert_allclose(steps, STEPS, rtol=1e-6)
    assert comes_quantized(array) and comes_quantized(array, low, high)


def test_what_a_format_does_not_hold() -> None:
    _, array = multiples(-128, 100)
    assert own_steps(array, -127, 127) is None
    assert own_steps(-array, -127, 128) is not None


def test_floats_are_no_multiples() -> None:
    array = np.random.default_rng(0).standard_normal((40, 300)).astype(np.float32)
    assert own_steps(array, -255, 255) is None
    assert not comes_quantized(array) and not comes_quantized(np.zeros((40, 3), np.float32))
    array[:, 1:] = 0.0
    assert not comes_quantized(array)


def test_one_number_is_the_largest_multiple() -> None:
    steps = own_steps(np.float32([[0.5, -2.0]]), -127, 127)
    assert steps is not None
    np.testing.assert_allclose(steps, [0.5 / 127, 2.0 / 127])


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("rule", ["min-max", "mse"])
def test_a_fit_takes_the_step(granularity: str, rule: str) -> None:
    """With one scale, as per tensor, all channels have one step."""
    codes, array = multiples(-80, 90)
    if granularity != "per-channel":
        array = np.asarray(codes * np.float32(0.013), np.float32)
    request = FormatRequest(8, narrow=True)
    scale, zero_point = fit_weights(array, WeightRule(rule, granularity, gates=2), request)
    assert not zero_point.any()
    np.testing.assert_array_equal(np.rint(array / scale), codes)


@pytest.mark.parametrize(
    "request_", [FormatRequest(8, pow2=True), FormatRequest(8, scale_bits=4), FormatRequest(8, max_fix_position=3)]
)
def test_what_a_recipe_asks_of_scales_counts(request_: FormatRequest) -> None:
    _, array = multiples(-80, 90)
    scale, _ = fit_weights(array, WeightRule(), request_)
    np.testing.assert_array_equal(np.float32(request_.finished(scale)), scale)


def test_groups_of_four_bits_hold_them() -> None:
    codes, array = multiples(-5, 4)
    scale = group_scales(array, 4)
    np.testing.assert_array_equal(quantize_groups(array, scale, 4, 32, Rounding.HALF_EVEN), codes)


def test_wide_channels_hold_them() -> None:
    codes, array = multiples(-50, 90)
    narrow = with_scale(integer_format({"bits": 4, "narrow": True}), list(group_scales(array, 4)), axis=1)
    scale = mixed_scales(array, narrow, 8, 1.0, np.ones(len(STEPS)))
    np.testing.assert_array_equal(np.rint(array / scale), codes)
