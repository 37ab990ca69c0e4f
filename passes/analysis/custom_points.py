"""Analysis: the quantization points of a custom cell. Reads only.

Names below the name of the recurrence, with `<node>` for the node that computes the value:

* `<product>.weight`, `<product>.hidden`, `<product>.bias`: constant weights of a matmul, its other operand, and the
  added constant, if there is one;
* `<node>.value`: every other computed float; `<node>.sigmoid.value` and `<node>.tanh.value` for these two operators,
  whose range is known;
* `<value>.input.value`: a float from outside, for example an element of the sequence.

If two of these names are equal, a number follows the name of the node or value.

Operators that only move values have no point: their results have the format of the source. A state has the format of
its next value, and so has the initial state.

Unrolled steps that do not become a loop (`roll-custom-steps`) do not correspond to each other: only their matmuls have
points, the same for all matmuls with one matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Model, Node, constant_array
from rnnqc.passes.analysis.custom_cell import CustomCell
from rnnqc.passes.analysis.custom_origins import Owner, Reader, owner_of
from rnnqc.passes.analysis.custom_products import CustomProduct, custom_cells, read_product
from rnnqc.passes.analysis.float_recurrences import FloatRecurrence, float_recurrences
from rnnqc.passes.graph.point_names import distinct_names
from rnnqc.passes.graph.values.constant_expressions import Constants


def custom_cells_of(model: Model) -> list[CustomCell]:
    """Returns every custom cell, with its points; the model should be in normal form.

    The model reserves their names, so that later cells get others.
    """
    found = list(float_recurrences(model))
    if not found:
        return []
    model.infer_shapes()
    homes = {id(n): g for g in model.graphs() for n in g.nodes}
    constants = Constants(model)
    cells = [_read(r, homes, constants) for r in found]
    done = [(r["name"], r["points"]) for r in custom_cells(model).values()]
    taken = {text for name, points in done for text in (name, *(f"{name}.{p}" for p in points))}
    wanted = {k: (c.recurrence.path, ("", *(f".{p}" for p in c.points))) for k, c in enumerate(cells)}
    for number, name in distinct_names(wanted, taken).items():
        cells[number].name = name
        model.reserve_name(name)
    return cells


def points_of_recurrences(model: Model) -> dict[str, list[str]]:
    """Returns the names of the quantization points of each custom cell, quantized or not."""
    done = {str(r["name"]): list(r["points"]) for r in custom_cells(model).values()}
    return done | {c.name: c.points for c in custom_cells_of(model)}


def custom_identity(cell: CustomCell) -> dict[str, Any]:
    """Returns the matmuls that distinguish a recurrence from another one of the same name."""
    return {"op": cell.recurrence.op, "products": {n: list(s[0].weights.shape) for n, s in cell.products.items()}}


def _read(recurrence: FloatRecurrence, homes: Mapping[int, Graph], constants: Constants) -> CustomCell:
    anchor = recurrence.loop if recurrence.loop is not None else recurrence.products[0]
    outer = homes[id(anchor)]
    graph: Graph = outer if recurrence.loop is None else recurrence.loop.attrs["body"]
    cell = CustomCell(recurrence.path, recurrence, graph, outer)
    if recurrence.branched:
        reason = "its matmuls are in branches of an If, which are not quantized."
        cell.refused.append(NotHandled(reason, recurrence.found, "compute both ways, and select with Where"))
        return cell
    if recurrence.computed:
        reason = "what multiplies its state is no constant matrix."
        cell.refused.append(NotHandled(reason, recurrence.found, "none, if it is computed from inputs"))
    sites: dict[Owner, list[CustomProduct]] = {}
    first: dict[tuple[int, bool], Node] = {}
    for node in recurrence.products:
        try:
            product = read_product(node)
        except NotHandled as refusal:
            cell.refused.append(refusal)
            continue
        if recurrence.loop is None:  # one format for each matrix
            node = first.setdefault((id(product.source), product.turned), node)
        sites.setdefault(owner_of(node), []).append(product)
        _note_sum(cell, product)
    reader = Reader(cell, sites, constants)
    if recurrence.loop is not None:
        reader.loop(recurrence.loop)
    reader.name_points()
    return cell


def _note_sum(cell: CustomCell, product: CustomProduct) -> None:
    """Assigns a constant that a separate Add adds to a matmul to the matmul."""
    made = product.node.outputs[0]
    if product.node.op != "MatMul" or len(made.outputs) != 1 or any(made is v for v in cell.graph.outputs):
        return
    (node,) = made.outputs
    others = [v for v in node.inputs if v is not made]
    if node.op == "Add" and not node.domain and len(others) == 1:
        held = constant_array(others[0])
        if held is not None and held.size == product.weights.shape[1] and held.shape[-1] == held.size:
            cell.sums[id(product.node)] = node
