"""Where Brevitas' own float32 sums of products are exact, and its results are those of any order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.passes.graph.nodes.quant_operators import GATES, Parameter, QuantLstm
from rnnqc.passes.graph.values.index_expressions import EXACT_TO


def largest_sum(weights: Sequence[Parameter], values: QonnxQuantizer) -> tuple[int, str] | None:
    """A bound of the sums of products, in units of the two scales, and the gate that has it; None of raw weights.

    Args:
        weights: A matrix `[H,K]` for each gate.
        values: The quantizer of what they are multiplied with.
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
    """Why Brevitas itself may compute something else: reason, found, action.

    With scales that are powers of two its products are exact in any order, if their sums in units of the two scales
    stay within 2**24, partial ones too. With other scales every product is rounded: of smaller sums only those next to
    a tie of their quantizer may fall otherwise, of which docs/brevitas.md tells; of larger ones the steps of float32
    are wider than these units, too, and the same is said.
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
