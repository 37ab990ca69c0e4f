"""Compares the weights of quantized cells with those of the float model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.calibration.float_cells import decompose
from rnnqc.ir import Model, constant_array, graph_info, info
from rnnqc.lowering.reports.report import Lowered
from rnnqc.passes.analysis.custom_cell import WEIGHT, CustomCell
from rnnqc.passes.analysis.custom_points import custom_cells_of
from rnnqc.passes.analysis.point_marks import CODES, marks_of
from rnnqc.reporting.points import weight_evidence
from rnnqc.search.findings import PointEvidence
from rnnqc.search.recurrences import recurrences_of

Array = npt.NDArray[Any]


def weights_evidence(float_model: Model, qcdq: Lowered, *, fold: bool = False) -> list[PointEvidence]:
    """Measures the matrices of every quantized recurrence.

    Args:
        float_model: The float model. It is modified.
        qcdq: The same model lowered to form qcdq.
        fold: Whether lowering folds values computed from known inputs (see `model_as_lowered`).
    """
    found = []
    arrays, marked = dict(_arrays(float_model, fold)), _marked(qcdq.model)
    for recurrence in recurrences_of(qcdq.model).values():
        cell = recurrence.cell
        for point in (p for p in recurrence.quantized if p.endswith(f".{WEIGHT}")):
            path = f"{recurrence.name}.{point}"
            name = None if cell is None else getattr(cell, point.removesuffix(f".{WEIGHT}"))
            codes = marked.get(path) if name is None else _stored(qcdq.model, name)
            array = arrays.get(path)
            if codes is None or array is None:
                continue
            factor = _stored(qcdq.model, f"{recurrence.name}/input.factor") if point == "W.weight" else None
            if cell is not None and factor is not None:  # the input is equalized
                array = (array / factor[:, None]).astype(np.float32)
            held = recurrence.points[point]
            evidence = weight_evidence(path, held, array, held.complete.dequantize(codes))
            found += [evidence] if evidence is not None else []
    return found


def _arrays(float_model: Model, fold: bool) -> Iterator[tuple[str, Array]]:
    """Yields the float matrices with the paths of their points."""
    others: list[CustomCell] = []

    def look(normal: Model) -> bool:
        others.extend(custom_cells_of(normal))
        return bool(others)

    decompose(float_model, "report on", look, fold=fold)
    floats = graph_info(float_model.graph).initializers
    for cell in float_model.cells.values():
        for key in ("W", "R"):
            array = constant_array(floats[getattr(cell, key)])
            assert array is not None
            yield f"{cell.name}.{key}.{WEIGHT}", array
    for other in others:
        for name, sites in other.products.items():
            yield f"{other.name}.{name}.{WEIGHT}", sites[0].weights


def _marked(model: Model) -> dict[str, Array]:
    """Returns the quantized weights of custom cells by the paths of their points. Points may share an array."""
    found = {}
    for node in (n for g in model.graphs() for n in g.nodes):
        for mark in marks_of(info(node).metadata):
            array = constant_array(node.inputs[-1 - mark.place]) if mark.part == CODES and mark.place < 0 else None
            if array is not None and mark.tensor.endswith(f".{WEIGHT}"):
                found[f"{mark.cell}.{mark.tensor}"] = array
    return found


def _stored(model: Model, name: str) -> Array | None:
    for graph in model.graphs():
        held = graph_info(graph).initializers
        if name in held:
            return constant_array(held[name])
    return None
