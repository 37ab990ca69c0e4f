"""Activation tables as their definition gives them, entry by entry, and as the nodes of a model make them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.activations import Activation
from rnnqc.cells.tables import KNOT_UNIT, piecewise_linear_tanh
from rnnqc.cells.vitis_tables import STEP_BITS, VITIS, vitis_values
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes.constant_checks import Findings
from rnnqc.passes.fold.fold_cell import linear_length

Array = npt.NDArray[Any]
TINY = float(np.finfo(np.float32).tiny)
"""The least multiplier: zero would meet an infinite scale of a row as NaN."""
LINEAR_ERROR = {"Tanh": 1.02e-3, "Sigmoid": 5.2e-4}
"""How far the piecewise-linear tables are from the functions, with a little room."""
EXACT_ULPS, SCALED_ULPS = 1.0, 3.0
"""An entry is one rounding from its definition; in units that are no power of two, three."""
_VITIS_BITS = 16
_PIECEWISE = "piecewise-linear"


def table_values(
    activation: Activation, kind: str, codes: Array, step: float, *, bits: int, residual: bool = False
) -> Array:
    """What a table holds, float64, before a grid of its own rounds it.

    Args:
        activation: What it tabulates.
        kind: "piecewise-linear", "exact" or "vitis", as a recipe says.
        codes: Of the argument.
        step: Real value of one code.
        bits: Width of the codes.
        residual: Whether the table holds what is above `max(x, 0)`.
    """
    n = linear_length(activation, bits, step) if activation.name in STEP_BITS else None
    if kind == VITIS and activation.name in STEP_BITS:
        position = -round(float(np.log2(step)))
        values = vitis_values(activation.name, position, _VITIS_BITS)[codes + 2 ** (_VITIS_BITS - 1)]
        return np.asarray(values, np.float64)
    if kind == _PIECEWISE and n is not None and not residual:
        tanh = piecewise_linear_tanh(codes.astype(np.int64), n) * KNOT_UNIT
        return np.asarray(tanh if activation.name == "Tanh" else 0.5 + 0.5 * tanh)
    x = codes * step
    return np.asarray(activation.residual(x) if residual else activation(x), np.float64)


def check_table(
    findings: Findings, what: str, found: Array | None, wanted: Array, *, unit: float = 1.0, node: str, constant: str
) -> None:
    """Compares the entries of a table with their real values, in units."""
    exact = float(np.frexp(unit)[0]) == 0.5
    ulps = EXACT_ULPS if exact else SCALED_ULPS
    findings.array(what, found, wanted / unit, node=node, constant=constant, ulps=ulps)


def check_near(findings: Findings, what: str, activation: Activation, wanted: Array, x: Array) -> None:
    """Compares what a piecewise-linear table is to hold with the function in binary64: knots may be wrong, too."""
    if activation.name in LINEAR_ERROR:
        off = np.abs(wanted - activation(x))
        findings.array(
            f"distance of {what} from the function",
            np.maximum(off, LINEAR_ERROR[activation.name]),
            LINEAR_ERROR[activation.name],
            node=what,
        )


def values_of_tables(model: Model, names: Iterable[str]) -> Mapping[str, Array]:
    """The values of the main graph so called, which follow from constants alone; initializers are taken as they are."""
    wanted = list(dict.fromkeys(names))
    proto = model.proto
    held = {t.name: t for t in proto.graph.initializer}
    found = {n: onnx.numpy_helper.to_array(held[n]) for n in wanted if n in held}
    makers = {name: node for node in proto.graph.node for name in node.output}
    computed = [n for n in wanted if n in makers]
    if not computed:
        return found
    needed: dict[int, onnx.NodeProto] = {}
    inputs: set[str] = set()
    stack = list(computed)
    while stack:
        name = stack.pop()
        if name in makers and id(makers[name]) not in needed:
            needed[id(makers[name])] = makers[name]
            stack += makers[name].input
        elif name in held:
            inputs.add(name)
    graph = onnx.GraphProto(name="tables")
    graph.node.extend(n for n in proto.graph.node if id(n) in needed)
    graph.initializer.extend(held[n] for n in sorted(inputs))
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in computed)
    part = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import, graph=graph)
    part.functions.extend(proto.functions)
    return found | run_model(part, {})
