"""The weights of quantized cells against those of the float model."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.ir import Model, constant_array, graph_info
from rnnqc.passes.normal_form import decompose
from rnnqc.passes.quantization import encoding_of
from rnnqc.pipeline import Lowered
from rnnqc.reporting.evidence import PointEvidence
from rnnqc.reporting.points import is_quantized, weight_evidence

Array = npt.NDArray[Any]


def weights_evidence(float_model: Model, qcdq: Lowered) -> list[PointEvidence]:
    """W and R of every quantized cell.

    Args:
        float_model: The float model; it is taken apart.
        qcdq: It, lowered to form qcdq.
    """
    decompose(float_model, "report on")
    floats = graph_info(float_model.graph).initializers
    found = []
    for name, cell in qcdq.model.cells.items():
        if name not in float_model.cells:
            continue
        origin = float_model.cells[name]
        for key in ("W", "R"):
            point = f"{key}.weight"
            codes = _stored(qcdq.model, getattr(cell, key))
            if not is_quantized(cell.points.get(point, {"bits": None})) or codes is None:
                continue
            array = constant_array(floats[getattr(origin, key)])
            factor = _stored(qcdq.model, f"{name}/input.factor") if key == "W" else None
            assert array is not None
            if factor is not None:  # an equalized input
                array = (array / factor[:, None]).astype(np.float32)
            evidence = weight_evidence(cell, point, array, encoding_of(cell.points[point]).dequantize(codes))
            if evidence is not None:
                found.append(evidence)
    return found


def _stored(model: Model, name: str) -> Array | None:
    for graph in model.graphs():
        held = graph_info(graph).initializers
        if name in held:
            return constant_array(held[name])
    return None
