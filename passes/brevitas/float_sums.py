"""Checks whether Brevitas' own float32 sums are exact, so that its results do not depend on their order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.passes.graph.nodes.quant_operators import GATES, Parameter, QuantLstm
from rnnqc.passes.graph.values.index_expressions import EXACT_TO


def largest_sum(weights: Sequence[Parameter], values: QonnxQuantizer) -> tuple[int, str] | None:
    """Returns a bound of the sums, in units of both scales, and the gate that has it; None for float weights.

    Args:
        weights: A matrix `[H,K]` for each gate.
        values: The quantizer of the values that they multiply.
    """
    zero = float(values.zero_point.ravel()[0])
    most = max(abs(values.minimum - zero), abs(values.maximum - zero))
    found = (0, "")
    for gate, p in zip(GATES, weights, strict=True):
        if p.codes is None or p.quantizer is None:
            return None
        sums = np.abs(p.codes - p.quantizer.zero_point).sum(axis=1, dtype=np.float64)
        found = max(found, (math.ceil(float(sums.max(initial=0.0)) * most), gate))
    return found


def doubt_about_sums(read: QuantLstm, x: QonnxQuantizer) -> tuple[str, str, str] | None:
    """Returns why Brevitas itself may compute something else: reason, found, action; None if the sums are exact.

    With power-of-two scales its matmuls are exact in any order as long as the partial sums, in units of both scales,
    stay within 2**24. With other scales float32 rounds every product: smaller sums then differ only next to ties of
    their quantizer (docs/brevitas.md); for larger ones the spacing of float32 exceeds the unit, as with power-of-two
    scales.
    """
    for key, weights, values in (("W", read.W, x), ("R", read.R, read.quantizers["output"])):
        found = largest_sum(weights, values)
        if found is not None and found[0] > EXACT_TO:
            return (
                "Brevitas' own float32 sums are not exact here, and depend on their order; rnnqc's are exact.",
                f"products with {key} of the {found[1]} gate sum up to {found[0]}, float32 is exact to {EXACT_TO}",
                "expect single quantized values to differ from Brevitas' own, or give input or weights fewer bits",
            )
    return None
