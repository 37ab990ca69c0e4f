"""Layers with the same weights: the steps of an unrolled decoder, or tied layers.

What this would catch: weights that are rounded for each use apart, so that a file with thirty steps of one layer holds
its weights thirty times; a mean of moments that is not that of all rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.passes.formats.shared_weights import merge_for_shared_weights
from tests.generate.layers import RecurrentCase

SIZES = {"T": 5, "B": 2, "I": 16, "H": 24}


def two_uses(op: str, other_weights: bool = False) -> onnx.ModelProto:
    """One layer after whose input `X` a second one of the same weights reads `X2`."""
    model = RecurrentCase(op=op, **SIZES).model() if op != "LSTM" else RecurrentCase(**SIZES).model()
    (first,) = model.graph.node
    second = onnx.NodeProto()
    second.CopyFrom(first)
    second.name = "second"
    second.input[0] = "X2"
    for k, name in enumerate(first.output):
        second.output[k] = f"{name}_second" if name else ""
    if other_weights:
        (held,) = (t for t in model.graph.initializer if t.name == first.input[1])
        model.graph.initializer.append(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(held), "W2"))
        second.input[1] = "W2"
    model.graph.node.append(second)
    (given,) = (i for i in model.graph.input if i.name == "X")
    model.graph.input.append(given)
    model.graph.input[-1].name = "X2"
    for output in list(model.graph.output):
        model.graph.output.append(output)
        model.graph.output[-1].name = f"{output.name}_second"
    onnx.checker.check_model(model)
    return model


def feeds() -> dict[str, npt.NDArray[np.float32]]:
    """The channels of the first input differ much, so that they are equalized; those of the second differ otherwise."""
    rng = np.random.default_rng(3)
    shape = SIZES["T"], SIZES["B"], SIZES["I"]
    sizes = {"X": np.logspace(-2, 1, SIZES["I"]), "X2": np.logspace(0, 0.5, SIZES["I"])}
    return {name: (rng.normal(size=shape) * size).astype(np.float32) for name, size in sizes.items()}


def onnx_bytes(model: onnx.ModelProto, name: str) -> int:
    (found,) = (t for t in model.graph.initializer if t.name == name)
    return int(onnx.numpy_helper.to_array(found).nbytes)


def stored(model: onnx.ModelProto) -> list[tuple[int, ...]]:
    """The shapes of the matrices of the file."""
    return [tuple(t.dims) for t in model.graph.initializer if len(t.dims) >= 2 and min(t.dims) > 2]


@pytest.mark.few(3)
@pytest.mark.parametrize(("recipe", "form"), [("int8", "fused"), ("int8", "qcdq"), ("w4a8-uneven", "fused")])
@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_weights_stand_in_the_file_once(op: str, recipe: str, form: str) -> None:
    """Also with wide channels, which are selected for all uses together."""
    for other in (False, True):
        model = two_uses(op, other)
        lowered = rnnqc.lower(
            model, recipe, form=form, calibration=[feeds()], verify=other and (recipe, form) == ("int8", "fused")
        )
        assert [e.status for e in lowered.report.entries] == ["lowered"] * 2
        before, after = lowered.report.weight_bytes
        first, second = lowered.report.entries
        assert (before, after) == (first.float_bytes + second.float_bytes, first.bytes + second.bytes)
        assert second.float_bytes == (onnx_bytes(model, "W2") if other else 0), "weights that are shared count once"
        assert second.bytes <= (0.6 if other else 0.1) * first.bytes
        found = stored(lowered.proto)
        assert len(found) == (3 if other else 2), f"other weights of the second one: {other}, {found}"


def test_what_concerns_the_weights_is_of_all_uses() -> None:
    model, data = two_uses("LSTM"), feeds()
    statistics = calibrate(model, [data])
    first, second = statistics.cells
    w = np.zeros((16, 96), np.float32)
    arrays = {first: {"W": w}, second: {"W": w}}
    merged = merge_for_shared_weights(statistics, arrays)
    rows = np.concatenate([data["X"].reshape(-1, 16), data["X2"].reshape(-1, 16)])
    for cell in (first, second):
        point = merged.points[f"{cell}.input"]
        assert point.second_moment is not None and point.channel_max is not None
        np.testing.assert_allclose(point.second_moment, rows.T @ rows / len(rows), rtol=1e-4, atol=1e-4)
        assert point.channel_mean is not None
        np.testing.assert_allclose(point.channel_mean, rows.mean(axis=0), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(point.channel_max, np.abs(rows).max(axis=0))
        assert merged.points[f"{cell}.hidden"] is statistics.points[f"{cell}.hidden"]
        assert (point.min, point.max) == (
            statistics.points[f"{cell}.input"].min,
            statistics.points[f"{cell}.input"].max,
        )
    assert merge_for_shared_weights(statistics, {first: {"W": w}, second: {"W": w + 1}}) is statistics
