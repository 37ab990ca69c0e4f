"""Finds signs in a Brevitas file that weights are quantized differently than they were trained."""

from __future__ import annotations

import numpy as np

from rnnqc.formats.qonnx import FloatArray, QonnxQuantizer
from rnnqc.passes.graph.nodes.quant_operators import GATES, Parameter, QuantLstm

_NEAREST = ("half_even", "half_away", "half_up", "half_even_up", "half_toward_zero")
_MOST_CODES = 256
_REPEATED = 4
_CLOSE = 1e-3


def doubt_about_weights(read: QuantLstm) -> tuple[str, str, str] | None:
    """Returns why the weights of a cell may not be the trained ones: reason, found, action; None without a sign.

    Brevitas 0.13 exports float weights with a Quant node that has `rounding_mode = ROUND`, whatever they were trained
    with. The file can show this in two ways: the weights are quantized already, with another scale, or the activations
    have another rounding.
    """
    held = [(key, GATES[k], p) for key, parameters in (("W", read.W), ("R", read.R)) for k, p in enumerate(parameters)]
    for key, gate, p in held:
        step = _other_grid(p)
        if step is not None:
            reason = "its weights were quantized with another scale before."
            scale = float(p.quantizer.scale.ravel()[0]) if p.quantizer is not None else 0.0
            found = f"{key} of the {gate} gate in steps of {step:.6g}, scale {scale:.6g}"
            return reason, found, "compare with what Brevitas computes; export the model again if that differs"
    others = sorted({q.rounding.value for q in read.quantizers.values()} - set(_NEAREST))
    rounds = any(
        p.quantizer is not None and p.raw is not None and not _is_on_grid(p.raw, p.quantizer) for *_, p in held
    )
    if others and rounds:
        reason = "its weights are rounded to nearest, other values are not."
        found = f"rounding_mode ROUND of float weights beside {', '.join(others)}"
        action = (
            "if the weights were trained with another rounding, which Brevitas does not export, quantize them before "
            "the export; if not, nothing is wrong"
        )
        return reason, found, action
    return None


def _is_on_grid(raw: FloatArray, quantizer: QonnxQuantizer) -> bool:
    return bool(np.allclose(quantizer(raw), raw, rtol=0, atol=_CLOSE * float(quantizer.scale.max())))


def _other_grid(p: Parameter) -> float | None:
    """Returns the step of raw weights that are quantized with another scale than their quantizer's; else None."""
    if p.raw is None or p.quantizer is None or p.quantizer.scale.size != 1 or _is_on_grid(p.raw, p.quantizer):
        return None
    values = np.unique(p.raw.astype(np.float64))
    if not 3 <= values.size <= _MOST_CODES or values.size * _REPEATED > p.raw.size:
        return None
    step = float(np.diff(values).min())
    units = values / step
    return step if float(np.abs(units - np.rint(units)).max()) < _CLOSE * _MOST_CODES / 2 else None
