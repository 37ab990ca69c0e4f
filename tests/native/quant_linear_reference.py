"""`ai.rnnqc::QuantLinear` in numpy, following docs/quant_linear.md sentence by sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.reference.codes import F32, code, exact_weights, products, quantize_rows, weight_codes, without_nan

_DEFAULTS: dict[str, Any] = {
    "x_mode": "dynamic_row",
    "x_scale": 0.0,
    "x_zero_point": 128,
    "group_size": 0,
    "bits": 4,
    "codebook": 0,
}
_OPERATOR = "QuantLinear"


def run(inputs: Mapping[str, npt.NDArray[Any]], attributes: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Computes Y of one node.

    Args:
        inputs: Arrays by the operator's input names; an absent `W_group_multiplier` is left out.
        attributes: Values by the operator's attribute names; defaults may be left out.

    Returns:
        Float32 `[.., N]`.

    Raises:
        ValueError: An unknown attribute, another mode, or packed weights whose groups do not fit together.
    """
    unknown = set(attributes) - set(_DEFAULTS)
    settings = {**_DEFAULTS, **attributes}
    if unknown or settings["x_mode"] not in ("dynamic_row", "static", "codes"):
        raise ValueError(f"{_OPERATOR}: attributes {sorted(unknown)}, x_mode = {settings['x_mode']!r}")
    columns = inputs["multiplier"].size
    multipliers = inputs.get("W_group_multiplier")
    size, bits, codebook = (int(settings[name]) for name in ("group_size", "bits", "codebook"))
    held = weight_codes(inputs["W"], multipliers, size, columns, bits, _OPERATOR, codebook)
    weights = exact_weights(held, 255)
    given = inputs["X"]
    x = given.reshape(-1, given.shape[-1])
    if x.size == 0:
        return np.zeros((*given.shape[:-1], columns), np.float32)
    scale: npt.NDArray[Any] | None = None
    zero_point: Any = int(settings["x_zero_point"])
    with np.errstate(over="ignore"):
        if settings["x_mode"] == "codes":
            codes: npt.NDArray[Any] = x
        elif settings["x_mode"] == "static":
            codes = code(without_nan(x), F32(settings["x_scale"]), zero_point, 8)
        else:
            codes, scale, zero_point = quantize_rows(without_nan(x))
        sums = products(codes, zero_point, weights)[0].astype(np.float32)
        if scale is not None:
            sums = np.asarray(sums * scale)
        y = np.asarray(sums * inputs["multiplier"] + inputs["B"], dtype=np.float32)
    return y.reshape(*given.shape[:-1], columns)
