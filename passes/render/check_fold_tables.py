"""What the integer form of a cell has to hold in look-up arithmetic, from its quantizers before (fold_lut.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import RELU_TABLE, TABLE
from rnnqc.cells.base import CELL, FORGET, INPUT
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.lut_numbers import STATE_LIMIT
from rnnqc.cells.stages import IntegerCell
from rnnqc.ir import Model, Node, constant_array
from rnnqc.passes.constant_checks import Findings
from rnnqc.passes.fold.fold_lut import GATE_LIMIT, RESIDUAL_BITS
from rnnqc.passes.formats.point_format import INDEX_BITS
from rnnqc.passes.qcdq.written_quantizers import nodes_of_cell
from rnnqc.passes.render.check_tables import TINY, check_near, check_table, table_values
from rnnqc.passes.render.read_cell import CellBefore

Array = npt.NDArray[Any]
_FLOAT_TABLE_BITS = INDEX_BITS
_WIDE = 16
LIMITING = ("Clip", "Max")


class TablesCheck:
    """One cell.

    Args:
        findings: What is found goes there.
        before: The cell with its quantizers.
        cell: The cell with its integer form.
        operands: Its constants by the name of the input.
    """

    def __init__(
        self, findings: Findings, before: CellBefore, cell: IntegerCell, operands: Mapping[str, Array]
    ) -> None:
        self.found, self.before, self.cell, self.operands = findings, before, cell, operands
        type_, points = cell.type, before.cell.points
        self.sources = [INPUT if cell.input_forget and k == FORGET else k for k in range(len(type_.gates))]
        accs = [before.steps.get(f"{type_.gates[k]}.acc") for k in self.sources]
        self.kinds = [cell.gate_activation(k).kind for k in self.sources]
        self.step = [
            a.step if a is not None and kind == TABLE else 1.0 for a, kind in zip(accs, self.kinds, strict=True)
        ]
        self.half = [
            -a.low if a is not None and kind == TABLE else 0.0 for a, kind in zip(accs, self.kinds, strict=True)
        ]
        state = before.steps.get("cell_state")
        self.cell_scale = state.step if state is not None and type_.cell_state else 0.0
        wide = state is not None and points["cell_state"]["bits"] > _FLOAT_TABLE_BITS and state.high >= 2.0**23 - 1
        self.cell_max = 0.0 if state is None or not type_.cell_state else STATE_LIMIT if wide else state.high
        self.scales = {n: before.scale(n) for n in ("input", "hidden", RESET_HIDDEN)}
        self.zeros = {n: before.zero_point(n) for n in ("input", "hidden", RESET_HIDDEN)}

    def run(self, model: Model) -> None:
        """Compares operands, tables, numbers and what the nodes of the cell hold."""
        self._operands()
        self._numbers()
        self._tables()
        wanted, limiting = self._in_nodes(), self._limiting()
        for name, node in nodes_of_cell(model, self.cell):
            self._node(wanted, name, node)
            if name in limiting and node.op in LIMITING:
                limiting.remove(name)
        for name in sorted(limiting):
            self.found.word(f"limits of {self.cell.name}/{name}", "missing", "there", node=self.cell.name)

    def _array(self, key: str, wanted: npt.ArrayLike, ulps: float = 0.0) -> None:
        name = self.cell.operands.as_dict().get(key, "")
        what = f"{key} of {self.cell.name}"
        self.found.array(what, self.operands.get(key), wanted, node=self.cell.name, constant=name, ulps=ulps)

    def _operands(self) -> None:
        cell, before, size = self.cell, self.before, self.cell.hidden_size
        steps, columns = np.repeat(self.step, size), len(cell.type.gates) * size
        code = np.full(columns, self.scales["hidden"] or 1.0)
        if cell.resets_state:
            code[cell.candidate_columns] = self.scales[RESET_HIDDEN] or 1.0
        for key, codes, scale in (("x", "W", self.scales["input"] or 1.0), ("h", "R", code)):
            product = np.broadcast_to(before.weight_scales[codes], columns) * scale / steps
            self._array(f"{key}_multiplier", np.maximum(product, TINY), 1.0)
            self._weights(codes, before.codes[codes])
        floats, zero = before.floats, np.repeat([h + 0.5 if h else 0.0 for h in self.half], size)
        self._array("B", floats["B"] / steps + zero, 1.0)
        if "P" in floats:
            gates = np.repeat([self.step[k] for k in cell.type.peephole_gates], size)
            self._array("P", floats["P"] * (self.cell_scale or 1.0) / gates, 3.0)
        if "hidden_bias" in floats:
            self._array("hidden_bias", floats["hidden_bias"] / self.step[cell.type.joint], 2.0)

    def _weights(self, key: str, codes: Array) -> None:
        held = self.operands.get(key)
        if held is not None and held.dtype == np.uint8:  # with zero point 128; W has rows for zero points of x below
            rows, rest = held[: len(codes)].astype(np.int64) - 128, held[len(codes) :].astype(np.int64) - 128
            self.operands = {**self.operands, key: rows}
            if len(rest):
                what = f"rows of zero points of {key} of {self.cell.name}"
                self.found.array(what, rest.sum(axis=0), -codes.sum(axis=0, dtype=np.int64), node=self.cell.name)
        self._array(key, codes)

    def _number(self, key: str, wanted: npt.ArrayLike) -> None:
        held = np.asarray(vars(self.cell.numbers)[key], np.float64)
        self.found.array(f"{key} of {self.cell.name}", held, np.asarray(wanted, np.float64), node=self.cell.name)

    def _limits(self, k: int) -> tuple[float, float]:
        """Of the pre-activation of a gate, in its units."""
        clip, n = GATE_LIMIT if self.cell.clip is None else self.cell.clip, self.half[k]
        if self.kinds[k] != TABLE:
            return -min(clip, GATE_LIMIT), min(clip, GATE_LIMIT)
        return max(0.0, n + 0.5 - clip / self.step[k]), min(2 * n - 0.5, n + 0.5 + clip / self.step[k])

    def _limiting(self) -> set[str]:
        """Values that are limited, so that codes and entries of tables are those that there are."""
        type_, uniform = (
            self.cell.type,
            vars(self.cell.numbers)["gate_table_size"] > 0 and "P" not in self.before.floats,
        )
        joint = type_.joint if uniform else 0
        coupled = FORGET if self.cell.input_forget else -1
        names = {f"{gate}.limited" for k, gate in enumerate(type_.gates) if k >= joint and k != coupled}
        names |= {"preactivation.limited"} if joint else set()
        wide = self.cell_scale and self.cell_max >= STATE_LIMIT
        return names | ({"cell_state"} if type_.cell_state and not wide else set())

    def _numbers(self) -> None:
        n, points = vars(self.cell.numbers), self.before.cell.points
        static = n["x_mode"] == "static"
        self._number("x_scale", self.scales["input"] if static else 0.0)
        self._number("x_zero_point", self.zeros["input"])
        self._number("h_scale", self.scales["hidden"])
        self._number("h_zero_point", self.zeros["hidden"])
        self._number("x_bits", points["input"]["bits"])
        self._number("h_bits", points["hidden"]["bits"])
        if self.cell.resets_state:
            self._number("reset_scale", self.scales[RESET_HIDDEN])
            self._number("reset_zero_point", self.zeros[RESET_HIDDEN])
        self._number("cell_scale", self.cell_scale)
        self._number("cell_max", self.cell_max)
        limits = [self._limits(k) for k in range(len(self.kinds))]
        self._number("gate_min", [v for v, _ in limits])
        self._number("gate_max", [v for _, v in limits])
        self.found.word(f"gate_kinds of {self.cell.name}", list(n["gate_kinds"]), self.kinds, node=self.cell.name)

    def _tables(self) -> None:
        """Every entry of every gate's table, and of that of the output activation."""
        cell, n = self.cell, vars(self.cell.numbers)
        held = self.operands.get("gate_table")
        for k, source in enumerate(self.sources):
            activation, kind = cell.gate_activation(source), self.kinds[k]
            if kind not in (TABLE, RELU_TABLE):
                continue
            name, offset = cell.type.gates[source], int(n["gate_table_offset"][k])
            step, half, unit = self.step[k], int(self.half[k]), 1.0
            if kind == RELU_TABLE:
                half = 2 ** (RESIDUAL_BITS - 1)
                step = activation.limit / half
                self._near("gate_index_scale", n["gate_index_scale"][k], 1.0 / step)
            elif cell.type.cell_state and k == CELL:
                unit = self.cell_scale or 1.0
            self._table("gate_table", name, held, offset, np.arange(-half, half), (step, unit, kind == RELU_TABLE))
        output = cell.output_activation
        if output is None or output.kind not in (TABLE, RELU_TABLE):
            return
        half = 2 ** (INDEX_BITS - 1)
        step = output.limit / half if output.kind == RELU_TABLE else self.cell_scale or output.limit / half
        if output.kind == RELU_TABLE or not self.cell_scale:
            self._near("cell_index_scale", n["cell_index_scale"], 1.0 / step)
        codes = np.concatenate([np.arange(half), np.arange(-half, 0)])  # entry k for code k
        self._table(
            "cell_table", "hidden", self.operands.get("cell_table"), 0, codes, (step, 1.0, output.kind == RELU_TABLE)
        )

    def _near(self, key: str, found: float, wanted: float) -> None:
        what = f"{key} of {self.cell.name}"
        self.found.array(what, np.asarray(found), wanted, node=self.cell.name, ulps=1.0)

    def _table(
        self, key: str, name: str, held: Array | None, offset: int, codes: Array, form: tuple[float, float, bool]
    ) -> None:
        """Compares a part of an operand with the activation of the point `<name>.activation`."""
        cell, (step, unit, residual) = self.cell, form
        gates = cell.type.gates
        activation = cell.gate_activation(gates.index(name)) if name in gates else cell.output_activation
        assert activation is not None
        kind = self.before.cell.points[f"{name}.activation"].get("table", "exact")
        bits = int(np.log2(len(codes)))
        wanted = table_values(activation, kind, codes, step, bits=bits, residual=residual)
        what = f"table of {activation.name} of {cell.name}.{name}"
        part = None if held is None or held.ndim != 1 else held[offset : offset + len(codes)]
        constant = cell.operands.as_dict().get(key, "")
        node = f"{cell.name}, from entry {offset} on" if offset else cell.name
        check_table(self.found, what, part, wanted, unit=unit, node=node, constant=constant)
        if kind == "piecewise-linear" and not residual:
            check_near(self.found, what, activation, wanted, codes * step)

    def _in_nodes(self) -> dict[tuple[str, str], dict[int, Any]]:
        """What nodes of the cell hold: constants by their position, by the value that a node makes and its operator."""
        wanted: dict[tuple[str, str], dict[int, Any]] = {}
        for source, names in (
            ("input", (("x", "x.product"),)), ("hidden", (("hidden", "hidden.product"), ("initial_h", ""))),
            (RESET_HIDDEN, ((RESET_HIDDEN, f"{RESET_HIDDEN}.product"),)),
        ):  # fmt: skip
            scale, zero = self.scales[source], self.zeros[source]
            bits = self.before.cell.points.get(source, {"bits": None})["bits"]
            for name, product in names:
                if scale:
                    wanted[f"{name}.codes", "QuantizeLinear"] = {1: scale, 2: zero}
                    wanted[f"{name}.codes.units", "Div"] = {1: scale}
                    wanted[f"{name}.codes.shifted", "Add"] = {1: zero}
                    if product and bits == _WIDE:
                        wanted[f"{product}.high", "MatMulInteger"] = {2: int(zero) >> 8}
                        wanted[f"{product}.low", "MatMulInteger"] = {2: int(zero) & 255}
                    if product:
                        wanted[product, "MatMulInteger"] = {2: int(zero) >> 8 if bits == _WIDE else zero}
                elif bits is not None and name != "x":
                    wanted[f"{name}.scale", "Div"] = {1: 2.0 ** (bits - 1) - 1}
                elif bits is not None:
                    wanted[f"{name}.scale", "Div"] = {1: 2.0**bits - 1}
        self._beyond(wanted)
        for k, gate in enumerate(self.cell.type.gates):
            low, high = self._limits(k)
            wanted[f"{gate}.limited", "Clip"] = {1: np.float32(low), 2: np.float32(high)}
        limits = [self._limits(k) for k in range(len(self.kinds))]
        if len(set(limits)) == 1:
            wanted["preactivation.limited", "Clip"] = {1: np.float32(limits[0][0]), 2: np.float32(limits[0][1])}
        if self.cell_scale:
            wanted["initial_c.units", "Div"] = {1: self.cell_scale}
            wanted["hidden.squashed.argument", "Mul"] = {1: self.cell_scale}
            for name in ("initial_c.codes", "cell_state"):
                wanted[name, "Clip"] = {1: np.float32(-self.cell_max), 2: np.float32(self.cell_max)}
        return wanted

    def _beyond(self, wanted: dict[tuple[str, str], dict[int, Any]]) -> None:
        """What takes the part of hidden states that their codes lose."""
        bound = vars(self.cell.numbers).get("h_bound")
        for source, name in (("hidden", "hidden"), ("hidden", "initial_h"), (RESET_HIDDEN, RESET_HIDDEN)):
            scale, zero = self.scales[source], self.zeros[source]
            if not scale or not bound:
                continue
            low = np.float32(-zero) * np.float32(scale)
            wanted[f"{name}.beyond.held", "Clip"] = {1: low, 2: np.float32(bound)}
            wanted[f"{name}.beyond.units", "Div"] = {1: scale}
            bits = self.before.cell.points[source]["bits"]
            for part in (f"{name}.beyond.0", f"{name}.beyond.1"):
                wanted[f"{part}.scale", "Div"] = {1: 2.0 ** (bits - 1) - 1}
                if bits != _WIDE:
                    wanted[f"{part}.product", "MatMulInteger"] = {2: zero}

    def _node(self, wanted: Mapping[tuple[str, str], Mapping[int, Any]], name: str, node: Node) -> None:
        for position, value in wanted.get((name, node.op), {}).items():
            if position < len(node.inputs) and constant_array(node.inputs[position]) is not None:
                what = f"constant of {self.cell.name}/{name}"
                self.found.input(what, node, position, value)
        if node.op == "Mul" and node.outputs and node.outputs[0].name == self.cell.y_c and self.cell_scale:
            self.found.input(f"unit of the cell state of {self.cell.name}", node, 1, self.cell_scale)
