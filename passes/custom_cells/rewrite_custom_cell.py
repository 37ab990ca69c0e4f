"""Replaces the matmuls of one custom cell, and inserts quantizers after its values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rnnqc.data.statistics import Statistics
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.scales import is_power_of_two
from rnnqc.ir import Model, Node, Value, constant_array, dtype_of, output_number
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.custom_cell import BIAS, HIDDEN, VALUE, WEIGHT, CustomCell
from rnnqc.passes.analysis.custom_products import CustomProduct
from rnnqc.passes.analysis.point_marks import CONSTANT
from rnnqc.passes.custom_cells.custom_formats import CustomFormats, dequantizes_weights
from rnnqc.passes.custom_cells.custom_weight import CustomWeight, CustomWeights, store_weight
from rnnqc.passes.custom_cells.emit_custom_product import Site, emit_grid, emit_half_quantized, emit_product
from rnnqc.passes.custom_cells.emit_vitis_table import emit_vitis_table
from rnnqc.passes.custom_cells.keep_apart import keep_apart
from rnnqc.passes.custom_cells.mark_custom_values import ValueMarks
from rnnqc.passes.custom_cells.write_out import write_out


class CustomCellRewriter:
    """Rewrites one custom cell.

    Call `product` for every matmul first, then `edge` and `entering` for values, then `put_marks`.

    Args:
        model: The model.
        cell: The cell in it.
        formats: The formats of its points.
        statistics: Statistics with the second moments of the operands.
        weights: The quantized weights that the model has already.
        integer: Whether matmuls become integer, or remain float matmuls of fake-quantized values (form qcdq).

    Attributes:
        given: For each matmul operand, by its own point, the point whose format it has.
        tagged: The last node of each matmul, followed by those of the quantizers of values.
    """

    def __init__(
        self,
        model: Model,
        cell: CustomCell,
        formats: CustomFormats,
        statistics: Statistics | None,
        weights: CustomWeights,
        *,
        integer: bool,
    ) -> None:
        self._model, self._cell, self._formats, self._statistics = model, cell, formats, statistics
        self._weights, self._integer = weights, integer
        self._held: dict[str, CustomWeight | None] = {}
        self._replaced: list[Node] = []
        self._inside = set(cell.region)
        self._biases: dict[tuple[str, int], Value] = {}
        self._exchanged: dict[int, Value] = {}
        self._marks = ValueMarks(cell)
        self.given: dict[str, str] = {}
        self.tagged: list[Node] = []

    @property
    def stored_bytes(self) -> int:
        """The bytes that the weights of the replaced matmuls add to the model."""
        return sum(w.nbytes for w in self._held.values() if w is not None)

    def end_products(self) -> None:
        """Removes the replaced matmuls."""
        self._model.remove_nodes(self._cell.graph, self._replaced)

    def compare_extremes(self) -> None:
        """Replaces Max and Min of two float values by comparisons.

        Which of +0 and -0 onnxruntime returns depends on their position in a tensor, and so on the other rows.
        """
        for node in [n for n in self._cell.graph.nodes if id(n) in self._inside and n.op in ("Max", "Min")]:
            kinds = {dtype_of(v) for v in node.inputs}
            if len(node.inputs) != 2 or kinds != {np.dtype(np.float32)}:
                continue
            a, b = node.inputs
            builder = Builder(self._model, prefix=node.name)
            compared = builder.op("Less" if node.op == "Max" else "Greater", [a, b], "compared")
            builder.op("Where", [compared, b, a], "chosen")
            value = node.outputs[0]
            node.outputs.clear()
            self._make(value, builder.nodes)
            self._model.remove_nodes(self._cell.graph, [node])

    def keep_apart(self) -> None:
        """Makes onnxruntime compute the step operator by operator, with operators that step programs support."""
        graph = self._cell.graph
        if self._cell.recurrence.loop is None:  # the steps stay the operators of the model
            return
        for change in (write_out, keep_apart):
            self._inside |= {id(n) for n in change(self._model, graph, {id(n) for n in graph.nodes})}

    def put_marks(self) -> None:
        """Annotates the values of the cell with the names of their points."""
        self._marks.put(self._inside, self._exchanged)

    def product(self, name: str, product: CustomProduct, code: PointFormat | None) -> None:
        """Replaces one matmul."""
        cell, model = self._cell, self._model
        weight = self._formats.points[f"{name}.{WEIGHT}"]
        given = code is self._formats.static(cell.origins.get(id(product.x)))
        path = f"{cell.name}.{name}"
        if name not in self._held:
            self._held[name] = self._stored(path, product, weight)
        held = self._held[name]
        b = Builder(model, prefix=path)
        takes_over = given and code is not None
        self.given[f"{name}.{HIDDEN}"] = cell.origins[id(product.x)] if takes_over else f"{name}.{HIDDEN}"
        site = Site(cell.name, name, cell.step_of(name, product))
        if held is None or code is None:
            y = emit_half_quantized(b, site, product, held, code, given=given)
        else:
            readable = dequantizes_weights(cell, self._formats, name, product, model.opset)
            y = emit_product(b, site, product, held, code, given=given, readable=readable, integer=self._integer)
        bias, adding = self._bias(name, product) or cell.bias_of(product) or product.bias, b.nodes
        if product.bias is not None:
            b.op("Add", [y, bias], "sum")
        elif id(product.node) in cell.sums:
            adding = [cell.sums[id(product.node)]]
        if bias is not None:
            site.mark_taken(adding, bias, BIAS, CONSTANT, rank=None)
        target, last = product.node.outputs[0], b.nodes[-1]
        product.node.outputs.clear()
        last.outputs.clear()
        last.outputs.append(target)
        cell.graph.nodes.extend(b.nodes)
        self._inside |= {id(n) for n in b.nodes}
        self.tagged.append(last)
        self._replaced.append(product.node)

    def _stored(self, path: str, product: CustomProduct, weight: PointFormat) -> CustomWeight | None:
        """Adds the weights of a matmul to the model; returns None if they stay float."""
        if weight.is_float:
            return None
        seen = self._statistics.points.get(f"{path}.{HIDDEN}") if self._statistics is not None else None
        moment = None if seen is None else seen.shrunk_moment
        name, integer = f"{path}.{WEIGHT}", self._integer
        return store_weight(self._weights, self._cell.graph, name, product, weight, moment, integer=integer)

    def _bias(self, name: str, product: CustomProduct) -> Value | None:
        """Returns the bias of a matmul in its format, and makes the Add that follows, if any, read it."""
        held = self._formats.points.get(f"{name}.{BIAS}", FLOAT).static
        bias = self._cell.bias_of(product)
        if held is None or bias is None:
            return None
        key = (name, id(bias))
        if key not in self._biases:
            array = np.asarray(constant_array(bias), np.float32)
            values = replace(held, axis=None if held.axis is None else array.ndim - 1).fake_quantize(array)
            self._biases[key] = self._model.add_initializer(
                f"{self._cell.name}.{name}.{BIAS}", values, self._cell.graph
            )
        made = self._biases[key]
        node = self._cell.sums.get(id(product.node))
        if node is not None:
            _exchange(node, bias, made)
        return made

    def _quantizer(self, point: str, value: Value, *, entering: bool = False) -> list[Node]:
        """Returns nodes that round `value` to the format of a point."""
        held = self._formats.points[point].complete
        if entering and not is_power_of_two(held.scale[0]):
            # A state from the call before is quantized already and must not change: otherwise chunks would not be
            # exact.
            held = replace(held, rounding=Rounding.HALF_EVEN)
        b = Builder(self._model, prefix=f"{self._cell.name}.{point.removesuffix(f'.{VALUE}')}")
        emit_grid(b, "initial" if entering else VALUE, value, held, readable=not self._integer)
        return b.nodes

    def edge(self, point: str, value: Value) -> None:
        """Inserts a quantizer after `value`, which keeps its name if a node of the cell computes it, or a table."""
        if self._formats.points[point].table is not None:
            self._tabulate(point, value)
            return
        if not value.inputs or id(value.inputs[0]) not in self._inside:
            self._replace_inside(value, self._quantizer(point, value))
            return
        maker = value.inputs[0]
        raw = Builder(self._model, prefix=value.name).value("exact", value.dtype)
        position = output_number(maker, value)
        maker.outputs[position] = raw
        self._make(value, self._quantizer(point, raw))

    def _tabulate(self, point: str, value: Value) -> None:
        """Replaces an activation by a table."""
        maker, held = value.inputs[0], self._formats.points[point].complete
        b = Builder(self._model, prefix=f"{self._cell.name}.{point.removesuffix(f'.{VALUE}')}")
        emit_vitis_table(b, VALUE, maker.inputs[0], maker.op, held)
        maker.outputs.clear()
        self._model.remove_nodes(self._cell.graph, [maker])
        self._make(value, b.nodes)

    def _make(self, value: Value, nodes: list[Node]) -> None:
        """Makes the last of some new nodes compute a value of the cell."""
        self._cell.graph.nodes.extend(nodes)
        self._inside |= {id(n) for n in nodes}
        nodes[-1].outputs.clear()
        nodes[-1].outputs.append(value)
        self.tagged.append(nodes[-1])

    def _replace_inside(self, value: Value, nodes: list[Node]) -> None:
        """Makes the recurrence read a value from outside as quantized by `nodes`."""
        graph, made = self._cell.graph, nodes[-1].outputs[0]
        self._exchanged[id(value)] = made
        for user in list(value.outputs):
            if id(user) in self._inside:
                _exchange(user, value, made)
        graph.nodes.extend(nodes)
        self.tagged.append(nodes[-1])
        graph.outputs[:] = [made if v is value else v for v in graph.outputs]

    def entering(self, point: str, value: Value) -> None:
        """Quantizes an initial state with the format of the state."""
        nodes = self._quantizer(point, value, entering=True)
        loop = self._cell.recurrence.loop
        assert loop is not None
        first = 2 if loop.op == "Loop" else 0
        for state in self._cell.states:
            if state.initial is value and self._cell.origins.get(id(state.before)) == point:
                loop.inputs[first + state.index] = nodes[-1].outputs[0]
        self._cell.outer.nodes.extend(nodes)


def _exchange(node: Node, old: Value, new: Value) -> None:
    """Makes `node` read `new` instead of `old`."""
    for k, value in enumerate(node.inputs):
        if value is old:
            node.inputs[k] = new
