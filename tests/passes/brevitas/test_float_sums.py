"""Detection of sums that float32 computes exactly in any order.

What these would catch: a claim of equality with Brevitas where its own sums are rounded, or a doubt where they are not.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import rnnqc
from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Model
from rnnqc.passes.brevitas.float_sums import doubt_about_sums, largest_sum
from rnnqc.passes.graph.nodes.quant_operators import Parameter, QuantLstm, is_quant_lstm, read_quant_lstm
from rnnqc.passes.graph.values.index_expressions import EXACT_TO
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm


def quantizer(bits: int, scale: float, zero_point: float = 0.0) -> QonnxQuantizer:
    return QonnxQuantizer(
        np.float32(scale),
        np.float32(zero_point),
        bits,
        True,
        False,
        Rounding.HALF_EVEN,  # type: ignore[arg-type]
    )


def read_of(**options: object) -> QuantLstm:
    lstm = random_lstm(3, pow2=True, **options)  # type: ignore[arg-type]
    model = Model.load(one_cell(lstm, draw_feeds(random_lstm(3, pow2=True), 0, False, True)))
    return next(read_quant_lstm(n) for n in model.graph.nodes if is_quant_lstm(n))


def with_first_row(read: QuantLstm, codes: list[int]) -> QuantLstm:
    """The cell with other quantized values in the first row of W of the first gate, and no others there."""
    first = read.W[0]
    assert first.codes is not None
    made = np.zeros_like(first.codes)
    made[0, : len(codes)] = codes
    others = [replace(p, codes=np.zeros_like(made)) for p in read.W[1:]]
    return replace(read, W=[replace(first, codes=made), *others])


def test_the_bound_is_the_last_whole_number_that_float32_has_all_below_of() -> None:
    x = quantizer(16, 2.0**-10)  # -32768 .. 32767
    read = read_of()
    at = with_first_row(read, [500, -12])
    beyond = with_first_row(read, [500, -12, 1])
    assert largest_sum(at.W, x) == (EXACT_TO, "input") and doubt_about_sums(at, x) is None
    doubt = doubt_about_sums(beyond, x)
    assert doubt is not None and f"sum up to {EXACT_TO + 32768}" in doubt[1] and "W of the input gate" in doubt[1]


def test_scales_that_are_no_powers_of_two_have_the_same_bound() -> None:
    """Would catch: silence about 16-bit cells as they are trained, whose scales are any numbers."""
    x = quantizer(16, 0.001)
    assert doubt_about_sums(with_first_row(read_of(), [500, -12]), x) is None
    assert doubt_about_sums(with_first_row(read_of(), [500, -12, 1]), x) is not None


def test_raw_weights_of_which_nothing_is_said() -> None:
    read = with_first_row(read_of(), [500, -12, 1])
    raw = replace(read, W=[Parameter(p.values) for p in read.W])
    assert doubt_about_sums(raw, quantizer(16, 2.0**-10)) is None


def test_a_zero_point_makes_products_larger() -> None:
    read = with_first_row(read_of(), [500, -12])
    assert doubt_about_sums(read, quantizer(16, 2.0**-10, 3.0)) is not None


@pytest.mark.parametrize("seed", range(4))
def test_within_the_bound_every_order_gives_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.integers(-127, 128, 96)
    x = rng.integers(-1024, 1024, 96)
    assert np.abs(w).sum() * 1024 <= EXACT_TO
    products = (w * np.float32(2.0**-7)).astype(np.float32) * (x * np.float32(2.0**-10)).astype(np.float32)
    sums = set()
    for _ in range(50):
        total = np.float32(0)
        for value in rng.permutation(products):
            total = np.float32(total + value)
        sums.add(float(total))
    assert sums == {float(w @ x) * 2.0**-17}


@pytest.mark.few(1)
@pytest.mark.parametrize("pow2", [False, True])
def test_lower_says_it(pow2: bool) -> None:
    wide = {"output": {"bits": 16, "scale": np.float32(2.0**-15)}}
    for bits, changes, said in ((8, None, 0), (16, wide, 1)):
        lstm = random_lstm(3, pow2=pow2, weight_bits=bits, changes=changes)
        model = one_cell(lstm, draw_feeds(random_lstm(3, pow2=pow2), 0, False, True))
        texts = [w for w in rnnqc.lower(model).report.warnings if "float32 sums are not exact" in w]
        assert len(texts) == said, texts
