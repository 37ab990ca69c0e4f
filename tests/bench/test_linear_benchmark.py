"""benchmarks/linear.py measures what the names of its ways say. No test depends on measured times.

What these would catch: a way that runs another operator than its name says, a ratio the wrong way round, a roofline
that is not that of the product.
"""

from __future__ import annotations

import linear
import pytest
from roofline import Limits

OPERATORS = {
    linear.FLOAT: {"MatMul", "Add"},
    "ort 8-bit blocks": {"MatMulNBits", "Add"},
    "ort 4-bit blocks": {"MatMulNBits", "Add"},
    "ort dynamic": {"DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Add"},
    linear.INT8: {"QuantLinear"},
    linear.INT4: {"QuantLinearInt4"},
    linear.STOCK: {"QuantLinear"},
}


@pytest.mark.parametrize("way", linear.WAYS)
def test_ways_run_what_they_say(way: str) -> None:
    model = linear.model_of(way, linear.float_model(64, 96))
    assert {n.op_type for n in model.graph.node} == OPERATORS[way]
    if "NBits" in str(OPERATORS[way]):
        (node,) = [n for n in model.graph.node if n.op_type == "MatMulNBits"]
        held = {a.name: a.i for a in node.attribute}
        assert (held["bits"], held["block_size"], held["accuracy_level"]) == (8 if "8" in way else 4, 32, 4)


def test_rows() -> None:
    limits = Limits("any", peak=2.0, rates={64 * 96: 3.0, 64 * 48: 3.0})
    assert limits.product_microseconds(4, 64, 96, 8) == pytest.approx(1e-3 * 4 * 64 * 96 / 2)
    assert limits.product_microseconds(1, 64, 96, 4) == pytest.approx(1e-3 * 64 * 96 / 2)
    ways = (linear.FLOAT, linear.INT8, linear.STOCK)
    rows = {r["way"]: r for r in linear.measure(64, 96, 4, ways, 1, 1, limits)}
    assert tuple(rows) == ways
    assert rows[linear.FLOAT]["x"] == 1
    for way in ways[1:]:
        assert rows[way]["x"] == rows[linear.FLOAT]["us"] / rows[way]["us"]
        assert rows[way]["share"] == limits.product_microseconds(4, 64, 96, 8) / rows[way]["us"]
        assert rows[way]["dB"] == rows[linear.INT8]["dB"] > 35
    assert rows[linear.FLOAT]["share"] == ""
