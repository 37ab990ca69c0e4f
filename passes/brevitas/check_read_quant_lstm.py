"""What read-quant-lstm-cell has to write, from the node that Brevitas exports."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import make_activation
from rnnqc.formats.encoding import Rounding
from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.ir import Model, display_name, output_or_none
from rnnqc.passes.brevitas.exported_grids import Grids, input_of
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.fold.grid_numbers import GRID32, QUANTIZERS
from rnnqc.passes.graph.lstm_node import NotHandled
from rnnqc.passes.graph.quant_operators import CELL_OP, GATES, Parameter, QuantLstm, is_quant_lstm, read_quant_lstm
from rnnqc.passes.qcdq.written_quantizers import Steps
from rnnqc.passes.render.check_fold_grid import GridBefore, GridCheck, Table
from rnnqc.passes.render.check_fold_scales import operands_of

Array = npt.NDArray[Any]


class ReadQuantLstmCheck(ConstantCheck):
    """Codes, multipliers, biases, tables and numbers of every cell, from the quantizers of its node.

    Args:
        model: Before the pass.
    """

    def __init__(self, model: Model) -> None:
        nodes = [(p, n) for p, g in model.paths() for n in g.nodes if is_quant_lstm(n)]
        self._before: dict[str, GridBefore] = {}
        grids, read = Grids(), dict[str, QuantLstm]()
        for path, node in nodes:
            try:
                cell = read_quant_lstm(node)
            except NotHandled:  # the pass says so
                continue
            read[f"{path}{display_name(node)}"] = cell
            for k in range(3):
                made = output_or_none(node, k)
                if made is not None:
                    grids.known[made.name] = cell.quantizers["cell_state" if k == 2 else "output"]
        for name, cell in read.items():
            with contextlib.suppress(NotHandled):
                self._before[name] = _before(cell, grids)

    def findings(self, after: Model) -> Findings:
        """Compares every cell that the pass has made an integer one."""
        found = Findings()
        cells = [c for c in after.cells.values() if c.op == CELL_OP and c.form == "integer" and c.node in self._before]
        operands = operands_of(after, cells)
        for cell in cells:
            found.word(f"arithmetic of {cell.name}", cell.integer.get("arithmetic"), GRID32, node=cell.name)
            GridCheck(found, self._before[cell.node], cell, operands[cell.name]).run(after)
        return found


def _before(node: QuantLstm, grids: Grids) -> GridBefore:
    q, x = node.quantizers, input_of(node, grids)[1]
    steps: dict[str, Steps | None] = dict.fromkeys(QUANTIZERS)
    steps["input"] = Steps(np.array([x.scale]), x.low, x.high, Rounding(x.rounding))
    steps["hidden"] = _steps(q["output"])
    sources = {g: "input" if node.cifg and g == "forget" else g for g in GATES}
    for gate, source in sources.items():
        steps[f"{gate}_gate.acc"] = _steps(q[f"{source}_acc"])
    for name in ("cell_state.kept", "cell_state.added", "cell_state"):
        steps[name] = _steps(q["cell_state"])
    values = [q["cell_tanh" if g == "cell" else f"{s}_sigmoid"] for g, s in sources.items()]
    arguments = [q[f"{s}_acc"] for s in sources.values()]
    names = ["Tanh" if g == "cell" else "Sigmoid" for g in sources]
    tables = [_table(*parts) for parts in zip(names, arguments, values, strict=True)]
    tables.append(_table("Tanh", q["cell_state"], q["hidden_state_tanh"]))
    zeros = {"input": x.zero_point, "hidden": _unsigned_zero(q["output"])}
    scales, weights = {}, {}
    for key, parameters in (("W", node.W), ("R", node.R)):
        scales[key], weights[key] = _columns(parameters)
    return GridBefore(steps, zeros, scales, weights, {"B": np.concatenate(node.bias).astype(np.float64)}, tables)


def _zero(q: QonnxQuantizer) -> float:
    return float(q.zero_point.ravel()[0])


def _steps(q: QonnxQuantizer) -> Steps:
    rounding = q.rounding if isinstance(q.rounding, Rounding) else None
    return Steps(q.scale.ravel()[:1].astype(np.float64), q.minimum - _zero(q), q.maximum - _zero(q), rounding)


def _unsigned_zero(q: QonnxQuantizer) -> int:
    return int(_zero(q)) + (2 ** (q.bits - 1) if q.signed else 0)


def _table(name: str, argument: QonnxQuantizer, value: QonnxQuantizer) -> Table:
    """From multiples of the argument's scale to values, Brevitas' operations in float32."""
    activation, scale = make_activation(name), argument.scale.ravel()[0].astype(np.float32)

    def entries(multiples: Array) -> Array:
        x = (multiples.astype(np.float32) * scale).astype(np.float64)
        return value(np.asarray(activation(x)).astype(np.float32))

    return entries


def _columns(parameters: Sequence[Parameter]) -> tuple[Array, Array]:
    """Scales `[4H]`, and codes less their zero points `[K,4H]`."""
    scales, codes = [], []
    for p in parameters:
        if p.quantizer is None or p.codes is None:
            raise NotHandled("weights are float.", "", "")
        size = p.values.shape[0]
        scales.append(np.broadcast_to(p.quantizer.scale.ravel().astype(np.float64), (size,)))
        zero = np.zeros(size) if p.quantizer.bipolar else np.broadcast_to(p.quantizer.zero_point.ravel(), (size,))
        codes.append(p.codes.T - zero.astype(np.int64))
    return np.concatenate(scales), np.concatenate(codes, axis=1)
