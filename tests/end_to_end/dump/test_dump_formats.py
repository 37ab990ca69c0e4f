"""The folder of a dump is sufficient to recompute every tensor in it.

What these would catch: an index without a format, with a wrong one, or without what says how a table is indexed;
constants in text with fewer digits than they have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from tests.generate.layers import RecurrentCase

Array = npt.NDArray[Any]
GATES = ("input_gate", "output_gate", "forget_gate", "cell_gate")
ROUNDINGS = {
    "half_even": np.rint,
    "half_away": lambda u: np.copysign(np.floor(np.abs(u) + 0.5), u),
    "half_up": lambda u: np.floor(u + 0.5),
    "half_even_up": lambda u: np.where(u < 0, np.floor(u + 0.5), np.rint(u)),
    "floor": np.floor,
}


class Dumped:
    """One cell of a dump: nothing but its files."""

    def __init__(self, folder: Path) -> None:
        ((_, self.entry),) = json.loads((folder / "index.json").read_text())["cells"].items()
        self.arrays = dict(np.load(folder / self.entry["file"]))

    def real(self, name: str) -> Array:
        return self.arrays[name].astype(np.float64)

    def codes(self, name: str) -> Array:
        return self.arrays[f"{name}.codes"].astype(np.int64)

    def weights(self, key: str) -> Array:
        """Multiples of the scales."""
        return np.asarray(self.codes(f"{key}.weight") - self.arrays.get(f"{key}.weight.zero_point", np.int64(0)))

    def quantized(self, point: str, values: Array) -> Array:
        """The quantized values, by what the index says of the point."""
        f = self.entry["points"][point]
        (scale,) = f["scale"]
        whole = ROUNDINGS[f["rounding"]](values / scale) + f["zero_point"]
        return np.asarray(np.clip(whole, f["minimum"], f["maximum"]).astype(np.int64))

    def looked_up(self, table: str, point: str, offset: int) -> Array:
        place = offset + self.codes(point) - self.entry["points"][point]["minimum"]
        return np.asarray(self.arrays[f"operand.{table}"][place].astype(np.float64))


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["pow2-int8", "pow2-int8-floor", "pow2-int16", "distiller-asym"])
def test_every_tensor_follows_from_the_ones_before_it(recipe: str, tmp_path: Path) -> None:
    case = RecurrentCase(T=6, B=3, I=7, H=9)
    lowered = rnnqc.lower(case.model(), recipe, stats=calibrate(case.model(), [case.feeds()]))
    rnnqc.dump(lowered, case.feeds(), tmp_path / "dump")
    d = Dumped(tmp_path / "dump")
    h = case.H
    np.testing.assert_array_equal(d.quantized("input", case.feeds()["X"].astype(np.float64)), d.codes("input"))
    products = {
        "x": (d.codes("input") - d.entry["points"]["input"]["zero_point"]) @ d.weights("W"),
        "hidden": (d.codes("hidden.previous") - d.entry["points"]["hidden"]["zero_point"]) @ d.weights("R"),
    }
    for name, sums in products.items():
        np.testing.assert_array_equal(sums, d.codes(f"{name}.product"))
    parts = {
        "input_product": products["x"] * d.real("x.product.scale") + d.real("bias"),
        "hidden_product": products["hidden"] * d.real("hidden.product.scale"),
    }
    offsets = d.entry["attributes"]["gate_table_offset"]
    for k, gate in enumerate(GATES):
        for part, values in parts.items():
            point = f"{gate}.{part}"
            if point in d.entry["points"]:
                np.testing.assert_array_equal(d.quantized(point, values[..., k * h : (k + 1) * h]), d.codes(point))
        whole = d.real(f"{gate}.input_product") + d.real(f"{gate}.hidden_product")
        np.testing.assert_array_equal(d.quantized(f"{gate}.acc", whole), d.codes(f"{gate}.acc"))
        np.testing.assert_array_equal(
            d.looked_up("gate_table", f"{gate}.acc", offsets[k]), d.real(f"{gate}.activation")
        )
    i, o, f, c = (d.real(f"{gate}.activation") for gate in GATES)
    before = np.concatenate([np.zeros_like(i[:1]), d.real("cell_state")[:-1]])
    np.testing.assert_array_equal(d.quantized("cell_state.kept", f * before), d.codes("cell_state.kept"))
    np.testing.assert_array_equal(d.quantized("cell_state.added", i * c), d.codes("cell_state.added"))
    total = d.real("cell_state.kept") + d.real("cell_state.added")
    np.testing.assert_array_equal(d.quantized("cell_state", total), d.codes("cell_state"))
    np.testing.assert_array_equal(d.looked_up("cell_table", "cell_state", 0), d.real("hidden.activation"))
    np.testing.assert_array_equal(d.quantized("hidden", o * d.real("hidden.activation")), d.codes("hidden"))


@pytest.mark.few(1)
@pytest.mark.parametrize("linear_before_reset", [False, True])
@pytest.mark.parametrize("recipe", ["pow2-int8", "distiller-asym"])
def test_every_tensor_of_a_gru_follows_from_the_ones_before_it(
    recipe: str, linear_before_reset: bool, tmp_path: Path
) -> None:
    case = RecurrentCase(T=6, B=3, I=7, H=9, op="GRU", linear_before_reset=linear_before_reset)
    lowered = rnnqc.lower(case.model(), recipe, stats=calibrate(case.model(), [case.feeds()]))
    rnnqc.dump(lowered, case.feeds(), tmp_path / "dump")
    d, h = Dumped(tmp_path / "dump"), case.H
    points, offsets = d.entry["points"], d.entry["attributes"]["gate_table_offset"]

    def step(point: str, values: Array) -> Array:
        np.testing.assert_array_equal(d.quantized(point, values), d.codes(point), err_msg=point)
        return d.real(point)

    step("input", case.feeds()["X"].astype(np.float64))
    x = (d.codes("input") - points["input"]["zero_point"]) @ d.weights("W") * d.real("x.product.scale") + d.real("bias")
    before, weights = d.codes("hidden.previous") - points["hidden"]["zero_point"], d.weights("R")
    hidden = before @ weights[:, : d.codes("hidden.product").shape[-1]]
    np.testing.assert_array_equal(hidden, d.codes("hidden.product"))
    hidden = hidden * d.real("hidden.product.scale")
    made: dict[str, Array] = {}
    for k, gate in enumerate(("update_gate", "reset_gate", "hidden_gate")):
        columns = slice(k * h, (k + 1) * h)
        if gate == "hidden_gate" and not linear_before_reset:
            reset = step("reset.hidden", made["reset_gate"] * d.real("hidden.previous"))
            whole = np.rint(reset / points["reset.hidden"]["scale"][0]).astype(np.int64) @ weights[:, columns]
            np.testing.assert_array_equal(whole, d.codes("reset.hidden.product"))
            part = step(f"{gate}.hidden_product", whole * d.real("reset.hidden.product.scale"))
        else:
            part = step(f"{gate}.hidden_product", hidden[..., columns])
        if gate == "hidden_gate" and linear_before_reset:
            part = step(f"{gate}.reset_product", made["reset_gate"] * (part + d.real("hidden_bias")))
        step(f"{gate}.acc", step(f"{gate}.input_product", x[..., columns]) + part)
        made[gate] = d.looked_up("gate_table", f"{gate}.acc", offsets[k])
        np.testing.assert_array_equal(made[gate], d.real(f"{gate}.activation"))
    kept = step("hidden_state.kept", made["update_gate"] * d.real("hidden.previous"))
    added = step("hidden_state.added", (1.0 - made["update_gate"]) * made["hidden_gate"])
    step("hidden", step("hidden_state", kept + added))


def test_text_has_all_constants_and_all_of_their_digits(tmp_path: Path) -> None:
    case = RecurrentCase(T=2, B=1, I=3, H=5)
    lowered = rnnqc.lower(case.model(), "int8-static", stats=calibrate(case.model(), [case.feeds()]))
    index = rnnqc.dump(lowered, case.feeds(), tmp_path / "dump", text=True)
    ((_, entry),) = index["cells"].items()
    arrays = np.load(tmp_path / "dump" / entry["file"])
    constants = [n for n in arrays.files if n.startswith("operand.") and n not in ("operand.W", "operand.R")]
    assert {"operand.gate_table", "operand.x_multiplier", "operand.B"} <= set(constants)
    for name in [*constants, "x.product.scale", "hidden.product.scale", "W.weight.codes"]:
        text = np.loadtxt(tmp_path / "dump" / "frame_0" / entry["text"][name])
        np.testing.assert_array_equal(text.astype(arrays[name].dtype), arrays[name].ravel(), err_msg=name)
