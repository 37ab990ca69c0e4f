"""4-bit weights of layers with units that count: their forget gates are among the channels that keep 8 bits.

What these would catch: wide channels that are chosen by what the calibration saw lost, which is nothing while a unit
counts; files that grow by more than these channels; native results other than those in standard operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

import rnnqc
from rnnqc.lowering.saved_formats import formats_text
from rnnqc.reference.codes import weight_codes
from tests.runs.lowered import NATIVE, run_both, session
from tests.runs.sessions import plain_session, run, sqnr
from tests.subjects.protos import of_nodes

Array = npt.NDArray[np.float32]
K, H, T = 40, 32, 300
COUNTING = (3, 17)
NARROW = "*.weight.wide_channels=0"


def model() -> onnx.ModelProto:
    """An LSTM two of whose units add about one in a step, until a rare large input makes them forget a little."""
    rng = np.random.default_rng(5)
    w, r = rng.normal(0, 0.2, (4, H, K)), rng.normal(0, 0.1, (4, H, H))
    b = np.zeros((4, H))
    for unit in COUNTING:
        b[:, unit] = [4.0, 0.0, 12.0, 2.0]
        w[2, unit, 0] = -3.0
    arrays = {"W": w.reshape(1, 4 * H, K), "R": r.reshape(1, 4 * H, H)}
    arrays["B"] = np.concatenate([b.reshape(1, -1), np.zeros((1, 4 * H))], axis=1)
    node = helper.make_node("LSTM", ["X", "W", "R", "B"], ["Y", "Y_h", "Y_c"], "lstm", hidden_size=H)
    shapes = {"Y": (T, 1, 1, H), "Y_h": (1, 1, H), "Y_c": (1, 1, H)}
    return of_nodes([node], {"X": (T, 1, K)}, shapes, {k: a.astype(np.float32) for k, a in arrays.items()})


def inputs(seed: int, forgetting: int) -> Array:
    """Inputs that depend on each other, and at some steps the one that makes units forget."""
    rng = np.random.default_rng([seed, 5])
    x = rng.normal(0, 1, (T, 1, 8)) @ np.random.default_rng(1).normal(0, 0.35, (8, K))
    x[..., 0] = 0.0
    x[rng.permutation(T)[:forgetting], 0, 0] = rng.uniform(1.5, 2.8, forgetting)
    return x.astype(np.float32)


@pytest.fixture(scope="module")
def statistics() -> rnnqc.Statistics:
    """Of data in which nothing is forgotten."""
    return rnnqc.calibrate(model(), [{"X": inputs(seed, 0)} for seed in range(4)])


def lowered(statistics: rnnqc.Statistics | None, *overrides: str) -> onnx.ModelProto:
    return rnnqc.lower(model(), "w4a8-uneven", overrides=overrides, stats=statistics).proto


def states_db(made: onnx.ModelProto) -> float:
    """SQNR of last cell states, on other data than the calibration's: things are forgotten there."""
    feeds = [{"X": inputs(seed, 6)} for seed in range(100, 112)]
    wanted, got = (
        np.concatenate([run(s, feed)["Y_c"] for feed in feeds]) for s in (plain_session(model()), session(made, NATIVE))
    )
    return sqnr(wanted, got)


def weights(made: onnx.ModelProto, key: str) -> tuple[Array, dict[str, Any]]:
    """Quantized W or R, and the attributes of the node."""
    (node,) = (n for n in made.graph.node if n.op_type.startswith("QuantLSTMCell"))
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    stored = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    (codes,) = (a for n, a in stored.items() if n.endswith(f"/{key}.packed"))
    (groups,) = (a for n, a in stored.items() if n.endswith(f"/{key}_group_multiplier.packed"))
    wide = attributes.get(f"{key.lower()}_wide_columns", 0)
    return weight_codes(codes, groups, 32, 4 * H, codebook=1, wide_columns=wide), attributes | {"groups": groups}


def test_states_of_units_that_count(statistics: rnnqc.Statistics) -> None:
    narrow, wide = lowered(statistics, NARROW), lowered(statistics)
    assert states_db(wide) > states_db(narrow) + 20.0
    (held,) = {a["w_wide_columns"] for _, a in [weights(wide, "W")]}
    groups = weights(wide, "W")[1]["groups"]
    assert held == 2 == (groups == 0).all(axis=0).sum()  # a hundredth of 128, rounded up
    assert {2 * H + unit for unit in COUNTING} == set(np.flatnonzero((groups == 0).all(axis=0)))
    feeds = {"X": inputs(7, 6)}
    run_both(wide, feeds)


def test_channels_without_groups(statistics: rnnqc.Statistics) -> None:
    """Weights of 4 bits for each channel: the same ones are wide, stored as int8."""
    made = lowered(statistics, "*.weight.codebook=none", "*.weight.group_size=none")
    (codes,) = (a for t in made.graph.initializer if (a := numpy_helper.to_array(t)).shape == (K, 4 * H))
    assert codes.dtype == np.int8
    assert set(np.flatnonzero(np.abs(codes.astype(int)).max(axis=0) > 7)) == {2 * H + unit for unit in COUNTING}


def test_what_wide_channels_cost(statistics: rnnqc.Statistics) -> None:
    """One more byte for two weights of such channels, and nothing else moves in the others."""
    made = {key: (weights(lowered(statistics, NARROW), key), weights(lowered(statistics), key)) for key in "WR"}
    for (narrow, _), (wide, attributes) in made.values():
        columns = (attributes["groups"] == 0).all(axis=0)
        np.testing.assert_array_equal(narrow[:, ~columns], wide[:, ~columns])
        assert (narrow[:, columns] != wide[:, columns]).any(axis=0).all()
    assert made["W"][1][1]["operator_version"] == 4


@pytest.mark.parametrize("data", [False, True], ids=["no data", "no mean squares"])
def test_without_what_a_calibration_says_of_the_states(data: bool, statistics: rnnqc.Statistics) -> None:
    """Channels with the largest errors are wide; files of statistics of earlier versions are taken, too."""
    older = None
    if data:
        older = rnnqc.calibrate(model(), [{"X": inputs(0, 0)}], moments=False)
        assert not any(p.channel_square is not None for p in older.points.values())
    made = lowered(older)
    assert weights(made, "W")[1]["w_wide_columns"] == 2
    feeds = {"X": inputs(7, 6)}
    assert sqnr(run(plain_session(model()), feeds)["Y"], run(session(made, NATIVE), feeds)["Y"]) > 15.0


def test_saved_formats_have_them(statistics: rnnqc.Statistics) -> None:
    text = formats_text(rnnqc.lower(model(), "w4a8-uneven", stats=statistics), "stats.json")
    assert text.count("wide_channels = 0.01") == 2
