"""Models of int4 weights some of whose channels keep eight bits: native with several threads against stock.

What these would catch: a column of eight bits that is added to another column, by two threads or by none; a share of
such columns that native and stock take differently.
"""

from __future__ import annotations

import pytest
from lstm_models import Op, RecurrentCase
from running import assert_same_bits, run
from running_lowered import NATIVE, STOCK, session

import rnnqc
from rnnqc.testing.float_layer import Direction


@pytest.mark.parametrize(
    ("op", "share"),
    [
        *(("LSTM", share) for share in (0.0, 0.001, 0.08, 0.1, 0.5, 0.51, 1.0)),
        *((op, share) for op in ("GRU", "RNN") for share in (0.08, 0.5, 1.0)),
    ],
)
@pytest.mark.parametrize(("batch", "direction"), [(1, "forward"), (3, "reverse"), (9, "bidirectional")])
def test_native_is_stock_with_any_share_of_wide_channels(
    batch: int, direction: Direction, share: float, op: Op
) -> None:
    case = RecurrentCase(
        T=8, B=batch, I=40, H=200, direction=direction, initial_h=True, initial_c=op == "LSTM", op=op,
        linear_before_reset=op == "GRU" and batch == 1,
    )  # fmt: skip
    lowered = rnnqc.lower(case.model(), overrides=["*.weight.bits=4", f"*.weight.wide_channels={share}"]).proto
    feeds = case.feeds()
    expected = run(session(lowered, STOCK), feeds)
    for threads in (1, 2, 4):
        native = session(lowered, NATIVE, threads=threads)
        for _ in range(4):
            assert_same_bits(expected, run(native, feeds), f"{threads} threads")
