"""The entries of a report: one for each recurrent node, with its form or the reason why it stays float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rnnqc.cells.base import Cell
from rnnqc.cells.forms import CUSTOM, ORT, QCDQ, QONNX, WEIGHT_ONLY
from rnnqc.cells.types import CELL_TYPES
from rnnqc.errors import Outcome, Remark, and_more
from rnnqc.ir import display_name
from rnnqc.lowering.reports.report import Entry
from rnnqc.lowering.run import Passed
from rnnqc.passes.analysis.custom_products import custom_cells, described, matrices_of_cells
from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode, weight_sizes
from rnnqc.passes.analysis.released_cells import WRITTEN_OUT, released_cells
from rnnqc.passes.graph.nodes.lstm_node import UNUSED
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.passes.weight_only.quantize_weights import stored_weights_of_nodes

_ONLY_OPERATORS = (
    "the recipe stores the weights of the operators LSTM, GRU and RNN in fewer bits, and this is a custom cell.",
    "a custom cell",
    "choose a recipe of cells, such as int8: the matmuls of the custom cell become integer",
)
_ONLY_LSTM = (
    "the form asked for has LSTM layers only.",
    "a custom cell",
    "choose another form: the matmuls of the custom cell become integer",
)


def make_entries(passed: Passed, form: str) -> list[Entry]:
    """Makes one entry for each recurrent node of the normal form, and for each that was lowered earlier.

    Args:
        passed: The result of the passes.
        form: The requested form.
    """
    refused = {r.node: r for r in passed.remarks_of(Outcome.FLOAT)}
    notes: dict[str, list[Remark]] = {}
    for remark in passed.remarks_of(Outcome.NOTE):
        if remark.action:
            notes.setdefault(remark.node, []).append(remark)
    made = _Made(passed, form)
    entries = []
    for node in passed.nodes:
        entry = made.entry(node, refused.get(node.path))
        told = notes.get(node.path)
        if entry.status == "lowered" and told:
            alike = [r for r in told if r.action == told[-1].action]
            entry.reason, entry.found, entry.action = _with_others(alike), alike[0].found, alike[0].action
            entry.code = alike[0].pass_name
        entries.append(entry)
    return entries + made.earlier(entries)


def _with_others(remarks: Sequence[Remark]) -> str:
    """Returns the reason of the first remark about a node, with the number of further ones."""
    reason = remarks[0].reason
    return f"{reason.removesuffix('.')},{and_more(remarks)}." if len(remarks) > 1 else reason


class _Made:
    """The recurrent layers of a model after the passes."""

    def __init__(self, passed: Passed, form: str) -> None:
        self.model, self.cells, self.form = passed.model, passed.cells, form
        self.stored = stored_weights_of_nodes(self.model)
        self.custom = custom_cells(self.model)  # those without an entry so far
        self.matrices = matrices_of_cells(self.model)
        self.present = {f"{path}{display_name(n)}" for path, graph in self.model.paths() for n in graph.nodes}
        self.counted: tuple[set[str], set[str]] = (set(), set())  # initializers counted before and after

    def entry(self, node: RecurrentNode, refusal: Remark | None) -> Entry:
        """Makes the entry of one node."""
        cells = [c for c in self.cells.values() if c.node == node.path]
        size = _uncounted(node.weights, self.counted[0]) if node.weights else node.weight_bytes
        entry = Entry(node.path, node.op, "lowered", float_bytes=size, earlier=bool(node.form))
        if node.path in self.stored:
            entry.form, entry.bytes = self.stored[node.path]
            if node.form:  # it had these weights before
                entry.float_bytes = entry.bytes
        elif node.attributes.get("name") in self.custom:
            self._describe(entry, self.custom.pop(node.attributes["name"]))
        elif self.form == QONNX and refusal is None and (cells or node.op == CELL_OP):
            entry.form, entry.bytes, entry.cells = QONNX, size, [c.name for c in cells]
        elif refusal is not None or not cells:
            entry.status, entry.bytes = "quantized" if node.quantized else "float", size
            entry.reason, entry.found, entry.action = self._why(node, refusal)
            entry.code = entry.code if refusal is None else refusal.pass_name
        else:
            entry.form, entry.bytes = cells[0].form, self._size(cells)
            entry.cells = [c.name for c in cells]
        return entry

    def _size(self, cells: Sequence[Cell]) -> int:
        """Returns the bytes of the cells' weights that no entry has counted yet."""
        return _uncounted(weight_sizes(self.model, cells), self.counted[1])

    def _describe(self, entry: Entry, record: Mapping[str, Any]) -> None:
        matrices = self.matrices.get(record["name"], {})
        shared = sum(matrices.values()) - _uncounted(matrices, self.counted[1])
        entry.form, entry.bytes, entry.float_bytes = CUSTOM, record["bytes"] - shared, record["float_bytes"]
        entry.points, entry.summary, entry.left = record["points"], described(record), list(record.get("left", ()))

    def _why(self, node: RecurrentNode, refusal: Remark | None) -> tuple[str, str, str]:
        """Returns why a node stays float, the cause in the model, and what to do."""
        if refusal is not None:
            return refusal.reason, refusal.found, refusal.action
        if node.op in CELL_TYPES and not node.refusal[0] and node.path not in self.present:
            return UNUSED
        if self.form == WEIGHT_ONLY and not node.refusal[0]:
            return _ONLY_OPERATORS
        if self.form in (QONNX, ORT) and node.op not in (*CELL_TYPES, CELL_OP) and not node.refusal[0]:
            return _ONLY_LSTM
        return node.refusal

    def earlier(self, entries: Sequence[Entry]) -> list[Entry]:
        """Makes entries for layers of an earlier lowering that `entries` lacks."""
        listed = {c for e in entries for c in e.cells}
        floats = {e.node for e in entries if e.status == "float"}
        cells = [c for n, c in self.cells.items() if n not in listed and c.node not in floats]
        nodes: dict[str, list[Cell]] = {}
        for cell in cells:
            nodes.setdefault(cell.node, []).append(cell)  # one for each direction
        found = [_lowered_earlier(of_node, self._size(of_node)) for of_node in nodes.values()]
        for cell in released_cells(self.model).values():
            if cell.name in listed:  # lowered now
                continue
            found.append(_lowered_earlier([cell], self._size([cell])))
            if self.form != QCDQ:
                found[-1].reason, found[-1].found, found[-1].action = WRITTEN_OUT
        for record in self.custom.values():
            found.append(Entry(record["path"], record["op"], "lowered", earlier=True))
            self._describe(found[-1], {**record, "float_bytes": record["bytes"]})
        return found


def _uncounted(sizes: Mapping[str, int], counted: set[str]) -> int:
    """Sums the sizes that are not counted yet, and marks them as counted."""
    found = sum(size for name, size in sizes.items() if name not in counted)
    counted.update(sizes)
    return found


def _lowered_earlier(cells: Sequence[Cell], size: int) -> Entry:
    """Makes the entry of a node that an earlier lowering turned into these cells."""
    names, first = [c.name for c in cells], cells[0]
    return Entry(first.node, first.op, "lowered", first.form, cells=names, float_bytes=size, bytes=size, earlier=True)
