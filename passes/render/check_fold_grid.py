"""What the integer form of a cell has to hold in fixed-point arithmetic (fold_fixed_point.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, INPUT
from rnnqc.cells.fixed_point_numbers import FIXED_POINT32, GATE_KINDS, RESET, point_of, quantizers_of
from rnnqc.cells.stages import IntegerCell
from rnnqc.formats.rounding import round_to_integer
from rnnqc.ir import Model, Node, constant_array
from rnnqc.passes.constant_checks import Findings
from rnnqc.passes.qcdq.written_quantizers import Steps, nodes_of_cell
from rnnqc.passes.render.check_tables import TINY, check_near, table_values
from rnnqc.passes.render.read_cell import CellBefore

Array = npt.NDArray[Any]
Table = Callable[[Array], Array]
"""From codes of the argument to the entries of a table."""


@dataclass(frozen=True)
class GridBefore:
    """What a cell is before its scales are folded.

    Attributes:
        steps: Of its quantizers, by what `quantizers_of` calls them; None for one that passes values on.
        zero_points: Of the unsigned codes of the input, of the hidden state and of `RESET`.
        weight_scales: Of W and R, float64 `[GH]` or `[1]`.
        weights: Codes less their zero points of W `[I,GH]` and R `[H,GH]`.
        floats: B `[GH]`, and P and hidden_bias where it has them.
        tables: Of each gate, and last of the output activation if there is one.
    """

    steps: Mapping[str, Steps | None]
    zero_points: Mapping[str, int]
    weight_scales: Mapping[str, Array]
    weights: Mapping[str, Array]
    floats: Mapping[str, Array]
    tables: Sequence[Table]


def grid_before(before: CellBefore, *, float32: bool) -> GridBefore:
    """The same of a cell in form qcdq; `float32` in the arithmetic "grid32"."""
    cell, type_ = before.cell, before.cell.type

    def source(name: str) -> str:
        gate, _, kind = name.partition(".")
        coupled = cell.input_forget and gate == type_.gates[FORGET]
        return f"{type_.gates[INPUT]}.{kind}" if coupled else point_of(cell, name)

    def table(name: str, argument: str) -> Table:
        gates = type_.gates
        activation = cell.gate_activation(gates.index(name)) if name in gates else cell.output_activation
        acc, point = before.steps[argument], cell.points[f"{name}.activation"]
        kind = str(point.get("table", "exact")) if point["bits"] is not None else "exact"
        assert activation is not None
        bits = max(2, max(-int(acc.low), int(acc.high) + 1, 1).bit_length())
        own = before.steps.get(f"{name}.activation")

        def entries(codes: Array) -> Array:
            if float32:
                multiples = (codes.astype(np.float32) * np.float32(acc.step)).astype(np.float64)
                values = np.asarray(activation(multiples), np.float64)
            else:
                values = table_values(activation, kind, codes, acc.step, bits=bits)
            return on_grid(values, own)

        return entries

    names = [type_.gates[INPUT] if cell.input_forget and k == FORGET else g for k, g in enumerate(type_.gates)]
    tables = [table(g, f"{g}.acc") for g in names]
    if cell.output_activation is not None:
        tables.append(table("hidden", "cell_state"))
    zeros = {n: before.zero_point(point_of(cell, n)) for n in ("input", "hidden", RESET)}
    weights = {k: c.astype(np.int64) - before.weight_zero_points[k] for k, c in before.codes.items()}
    steps = {n: before.steps.get(source(n)) for n in quantizers_of(type_)}
    scales, floats = dict(before.weight_scales), dict(before.floats)
    if float32 and cell.input_forget:  # the coupled gate has the products of the input gate, which nothing reads
        forget, given = (slice(k * cell.hidden_size, (k + 1) * cell.hidden_size) for k in (FORGET, INPUT))
        for held in (scales, weights, floats):
            for key, array in held.items():
                if array.shape[-1] > 1:
                    held[key] = array.copy()
                    held[key][..., forget] = array[..., given]
    return GridBefore(steps, zeros, scales, weights, floats, tables)


def on_grid(values: Array, steps: Steps | None) -> Array:
    """Values in the format of a quantizer as float32 arithmetic makes them; themselves without one."""
    single = values.astype(np.float32)
    if steps is None or steps.rounding is None:
        return single
    scale = np.float32(steps.step)
    whole = np.clip(round_to_integer(single / scale, steps.rounding), steps.low, steps.high)
    return np.asarray(whole.astype(np.float32) * scale)


class GridCheck:
    """One cell.

    Args:
        findings: What is found goes there.
        before: What it was.
        cell: The cell with its integer form.
        operands: Its constants by the name of the input.
    """

    def __init__(
        self, findings: Findings, before: GridBefore, cell: IntegerCell, operands: Mapping[str, Array]
    ) -> None:
        self.found, self.before, self.cell, self.operands = findings, before, cell, operands
        self.names = quantizers_of(cell.type)
        self.codes = ("input", "hidden", RESET) if cell.resets_state else ("input", "hidden")

    def run(self, model: Model) -> None:
        """Compares operands, tables, numbers and what the nodes of the cell hold."""
        self._operands()
        self._numbers()
        self._tables()
        for name, node in nodes_of_cell(model, self.cell):
            self._node(name, node)

    def _array(self, key: str, wanted: npt.ArrayLike, ulps: float = 0.0) -> None:
        name = self.cell.operands.as_dict().get(key, "")
        what = f"{key} of {self.cell.name}"
        self.found.array(what, self.operands.get(key), wanted, node=self.cell.name, constant=name, ulps=ulps)

    def _scale(self, quantizer: str) -> float:
        steps = self.before.steps.get(quantizer)
        return 0.0 if steps is None else steps.step

    def _operands(self) -> None:
        cell, before = self.cell, self.before
        columns = len(cell.type.gates) * cell.hidden_size
        code = np.full(columns, self._scale("hidden"))
        if RESET in self.codes:
            code[cell.candidate_columns] = self._scale(RESET)
        for key, weights, scale in (("x", "W", self._scale("input")), ("h", "R", code)):
            product = np.broadcast_to(before.weight_scales[weights], columns) * scale
            self._array(f"{key}_multiplier", np.maximum(product, TINY), 1.0)
            held, zero = self.operands.get(weights), self.operands.get(f"{weights}_zero_point", np.zeros(1, np.int64))
            what = f"{weights} of {cell.name} less its zero points"
            centred = None if held is None else held.astype(np.int64) - zero
            constant = cell.operands.as_dict().get(weights, "")
            self.found.array(what, centred, before.weights[weights], node=cell.name, constant=constant)
        for key, values in before.floats.items():
            self._array(key, values)

    def _numbers(self) -> None:
        n = vars(self.cell.numbers)
        for k, name in enumerate(self.names):
            steps, what = self.before.steps[name], f"{self.cell.name}.{name}"
            self._number(f"scale of {what}", n["grid_scale"][k], 0.0 if steps is None else steps.step)
            if steps is None:
                continue
            zero = n["grid_zero_point"][k]
            self._number(f"lowest code of {what}", n["grid_min"][k] - zero, steps.low)
            self._number(f"highest code of {what}", n["grid_max"][k] - zero, steps.high)
            rounding = "none" if steps.rounding is None else steps.rounding.value
            # What meets values on its own grid alone may round in any way that finds the nearest code.
            if not (n["arithmetic"] == FIXED_POINT32 and name == "input"):
                self.found.word(f"rounding of {what}", n["grid_rounding"][k], rounding, node=self.cell.name)
            if name in self.codes:
                self._number(f"zero point of {what}", zero, self.before.zero_points[name])

    def _number(self, what: str, found: float, wanted: float) -> None:
        self.found.array(what, np.asarray(found, np.float64), wanted, node=self.cell.name)

    def _tables(self) -> None:
        cell, type_ = self.cell, self.cell.type
        offsets = zip(type_.gates, cell.numbers.gate_table_offset, strict=True)
        sites = [("gate_table", f"{g}.acc", o) for g, o in offsets]
        sites += [("cell_table", "cell_state", 0)] if cell.output_activation is not None else []
        for (key, argument, offset), table in zip(sites, self.before.tables, strict=True):
            steps, held = self.before.steps[argument], self.operands.get(key)
            if steps is None:
                continue
            codes = np.arange(int(steps.low), int(steps.high) + 1)
            part = None if held is None else held[int(offset) : int(offset) + len(codes)]
            what = f"table of {cell.name}.{'hidden' if key == 'cell_table' else argument.removesuffix('.acc')}"
            node = f"{cell.name}, from entry {offset} on" if offset else cell.name
            self.found.array(what, part, table(codes), node=node, constant=cell.operands.as_dict().get(key, ""))

    def _node(self, name: str, node: Node) -> None:
        """Compares scales and limits of the quantizers that are written out."""
        value, _, what = name.rpartition(".")
        position = {"units": ("Div", 1), "quantized": ("Mul", 1), "multiples": ("Clip", 1)}
        if what in position and node.op == position[what][0]:
            quantizers = self._quantizers(value)
            held = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
            if not quantizers or held is None:
                return
            count = 1 if held.size == 1 else held.size // self.cell.hidden_size
            repeat = 1 if held.size == 1 else self.cell.hidden_size
            for place, key in ((1, "low"), (2, "high")) if node.op == "Clip" else ((1, "step"),):
                wanted = np.repeat([getattr(s, key) for s in quantizers[:count]], repeat)
                self.found.input(f"{key} of {self.cell.name}/{value}", node, place, wanted)

    def _quantizers(self, value: str) -> list[Steps]:
        """Those of a value that is quantized, one for each gate side by side."""
        gates, steps = self.cell.type.gates, self.before.steps
        one = {
            "x": "input", "hidden": "hidden", "initial_h": "hidden", "hidden.previous": "hidden", "reset": RESET,
            "initial_c": "cell_state", **{n: n for n in self.names},
        }  # fmt: skip
        kind = {"preactivation": "acc", "reset_product": "hidden_product"}.get(value, value)
        if value == "reset.hidden" or (value not in one and kind not in GATE_KINDS):
            return []
        names = [one[value]] if value in one else [f"{g}.{kind}" for g in gates]
        if value == "reset_product":
            names = names[self.cell.type.joint :]
        return [s for n in names if (s := steps.get(n)) is not None]


def check_knots(found: Findings, before: CellBefore, cell: IntegerCell) -> None:
    """Compares piecewise-linear tables with their functions in binary64."""
    for name in (*cell.type.gates, *(("hidden",) if cell.output_activation is not None else ())):
        point = before.cell.point(f"{name}.activation")
        argument = before.steps.get("cell_state" if name == "hidden" else f"{name}.acc")
        gates = cell.type.gates
        activation = cell.gate_activation(gates.index(name)) if name in gates else cell.output_activation
        if point.get("table") == "piecewise-linear" and argument is not None and activation is not None:
            codes = np.arange(int(argument.low), int(argument.high) + 1)
            bits = max(2, max(-int(argument.low), int(argument.high) + 1, 1).bit_length())
            values = table_values(activation, "piecewise-linear", codes, argument.step, bits=bits)
            check_near(found, f"{cell.name}.{name}", activation, values, codes * argument.step)
