"""Makes the values at quantization points outputs of the model: the graphs behind calibration.

A value of the main graph becomes an output directly. One in the body of a Scan becomes a scan output, level by level.
One in a branch of an If or in the body of a Loop is appended to a sequence of tensors that is threaded through them,
since the other branch does not compute it and iterations may differ in shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from rnnqc.cells.base import FORGET, GATES, Cell
from rnnqc.ir import Graph, Model, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.boundary import boundary_of
from rnnqc.passes.cells.cell_graphs import graphs_of_cells, replace_cell
from rnnqc.passes.cells.float_arithmetic import FloatArithmetic
from rnnqc.passes.cells.loop_driver import emit_cell

LENGTHS, LAST = "sequence_lens", "hidden.last"
CONSTANT = ("W.weight", "R.weight", "bias", "accumulator")
"""Quantization points whose values no data decides."""
ANY_RANK = -1


@dataclass(frozen=True)
class Observed:
    """An observed value.

    Attributes:
        cell: Name of the cell.
        point: Quantization point, `LENGTHS`, or `LAST`.
        value: Its name in the graph.
        step: Whether each step of the cell's loop produces one, `[B, K]`.
        rank: Rank of the values of one run of the cell, all steps together; `ANY_RANK` if each tensor is one run; in a
            Scan such a tensor is exposed as a matrix of its rows.
        size: Size of the last axis.
        kind: Element type, a number of `onnx.TensorProto`.
        entering: Whether it is an initial state: a value of the point before the first step.
    """

    cell: str
    point: str
    value: str
    step: bool
    rank: int
    size: int
    kind: int = TensorProto.FLOAT
    entering: bool = False


def observe_cells(model: Model) -> list[Observed]:
    """Emits every float cell of `model` again, and returns its values at the quantization points."""
    graphs = graphs_of_cells(model)
    found: list[Observed] = []
    for cell in model.cells.values():
        if cell.form == "float":
            found += _observe(model, graphs[cell.name], cell)
    model.sort()
    return found


def _observe(model: Model, graph: Graph, cell: Cell) -> list[Observed]:
    at = boundary_of(model, graph, cell)
    seen: list[tuple[str, Value]] = []
    points = {p.name for p in cell.type.points} - set(CONSTANT)

    def note(builder: Builder, point: str, value: Value) -> Value:
        if point in points and not (cell.input_forget and point.startswith(GATES[FORGET])):
            # A copy, because the input may come from an outer graph.
            seen.append((point, builder.op("Identity", [value], "input.observed") if point == "input" else value))
        return value

    builder = emit_cell(model, cell, at, FloatArithmetic(note, products=True))
    if at.sequence_lens is not None:
        seen.append((LENGTHS, builder.op("Identity", [at.sequence_lens], f"{LENGTHS}.observed")))
    scan = next(n for n in builder.nodes if n.op == "Scan")
    seen.append((LAST, scan.outputs[0]))
    replace_cell(model, graph, cell, builder.nodes)
    body = scan.attrs["body"]
    in_step = {v.name for v in body.inputs} | {v.name for n in body.nodes for v in n.outputs}
    ranks = {LENGTHS: 1, LAST: 2}
    sizes = {LENGTHS: 1, "input": cell.input_size}
    return [
        Observed(
            cell.name,
            p,
            v.name,
            v.name in in_step,
            ranks.get(p, 3),
            sizes.get(p, cell.hidden_size),
            TensorProto.INT32 if p == LENGTHS else TensorProto.FLOAT,
        )
        for p, v in seen
    ]  # fmt: skip


@dataclass(frozen=True)
class Level:
    """A subgraph on the path to a value, with its owner node."""

    owner: onnx.NodeProto
    graph: onnx.GraphProto


class NotObservableError(Exception):
    """A value that cannot be exposed outside the subgraphs it is in."""


def with_outputs(proto: onnx.ModelProto, values: Sequence[Observed], kept: Sequence[str]) -> dict[str, str]:
    """Makes values outputs of `proto`, in place, and removes its other outputs.

    Args:
        proto: The model, whose names are unique over all graphs.
        values: The values to expose.
        kept: Names of outputs to keep.

    Returns:
        The name of the output for each value: a tensor, or a sequence of tensors if it is inside If or Loop.

    Raises:
        NotObservableError: A value is in an If or a Loop inside a Scan.
    """
    outputs = [o for o in proto.graph.output if o.name in set(kept)]
    where = dict(places(proto.graph))
    result = {v.value: _bring_out(proto.graph, v, where[v.value]) for v in values}
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    present = {o.name for o in outputs}
    for name in result.values():
        if name not in present:
            proto.graph.output.add(name=name)
    return result


def places(graph: onnx.GraphProto, levels: tuple[Level, ...] = ()) -> Iterator[tuple[str, tuple[Level, ...]]]:
    """Yields every value of a graph and its subgraphs, with the subgraphs on the path to it."""
    for value in (*graph.input, *graph.initializer):
        yield value.name, levels
    for node in graph.node:
        for name in node.output:
            yield name, levels
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from places(attribute.g, (*levels, Level(node, attribute.g)))


def levels_of(proto: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Returns the operators of the nodes whose subgraphs contain each value, outermost first."""
    return {name: tuple(v.owner.op_type for v in levels) for name, levels in places(proto.graph)}


def count_stacked(levels: Sequence[str]) -> int:
    """Returns how many of the innermost levels, Scans, become leading axes; others produce sequences.

    Raises:
        NotObservableError: A Scan contains a level that is not a Scan.
    """
    if "Scan" not in levels:
        return 0
    stacked = levels[levels.index("Scan") :]
    if any(op != "Scan" for op in stacked):
        raise NotObservableError
    return len(stacked)


def _bring_out(main: onnx.GraphProto, value: Observed, levels: tuple[Level, ...]) -> str:
    """Exposes the value in the main graph; returns its name there."""
    kind = value.kind
    current, rank = value.value, value.rank - value.step
    inner = len(levels) - count_stacked([v.owner.op_type for v in levels])
    if inner < len(levels) and value.rank == ANY_RANK:
        # onnxruntime must know ranks in nested loops.
        current, rank = f"{value.value}/observed.rows", 2
        levels[-1].graph.node.append(helper.make_node("Flatten", [value.value], [current], current, axis=-1))
    for depth in range(len(levels) - 1, inner - 1, -1):
        fresh, owner = f"{value.value}/observed{depth}", levels[depth].owner
        described = helper.make_tensor_value_info("", kind, [None] * rank)
        add_scan_output(owner, current, fresh, described)
        current, rank = fresh, rank + 1
    if any(level.owner.op_type not in ("If", "Loop") for level in levels[:inner]):
        raise NotObservableError
    if not inner:
        return current
    empty = f"{value.value}/observed"
    main.node.insert(0, helper.make_node("SequenceEmpty", [], [empty], empty, dtype=kind))
    return _threaded(levels[:inner], current, empty, kind, value.value)


def add_scan_output(
    scan: onnx.NodeProto,
    name: str,
    fresh: str,
    described: onnx.ValueInfoProto | None = None,
    *,
    backwards: bool = False,
) -> None:
    """Makes a value of the body of a Scan one of its outputs, in place.

    Args:
        scan: The node.
        name: The value.
        fresh: The output; its slices are in the order of the loop.
        described: Type and rank of the value. onnxruntime needs them if the Scan is in a Loop.
        backwards: Whether the slices are in reverse order.
    """
    body: onnx.GraphProto = next(a.g for a in scan.attribute if a.name == "body")
    inside = f"{fresh}.step"
    body.node.append(helper.make_node("Identity", [name], [inside], inside))
    output = body.output.add()
    if described is not None:
        output.CopyFrom(described)
    output.name = inside
    directions = next((a for a in scan.attribute if a.name == "scan_output_directions"), None)
    if directions is None and backwards:
        states = len(scan.input) - next(a.i for a in scan.attribute if a.name == "num_scan_inputs")
        directions = scan.attribute.add(name="scan_output_directions", type=onnx.AttributeProto.INTS)
        directions.ints.extend([0] * (len(scan.output) - states))
    if directions is not None:
        directions.ints.append(int(backwards))
    scan.output.append(fresh)


def _threaded(levels: Sequence[Level], value: str, sequence: str, kind: int, name: str) -> str:
    """Appends `value`, computed inside `levels`, to the outer `sequence`; returns the longer sequence's name."""
    level, depth = levels[0], len(levels)
    owner, graph = level.owner, level.graph
    inside, after = sequence, f"{name}/observed.after{depth}"
    described = helper.make_tensor_sequence_value_info
    carried = len(graph.input) - 2
    if owner.op_type == "Loop":
        inside = f"{name}/observed.before{depth}"
        owner.input.extend([""] * (2 + carried - len(owner.input)))
        owner.input.append(sequence)
        graph.input.append(described(inside, kind, None))
    if len(levels) > 1:
        made = _threaded(levels[1:], value, inside, kind, name)
    else:
        made = f"{name}/observed.inside"
        graph.node.append(helper.make_node("SequenceInsert", [inside, value], [made], made))
    if owner.op_type == "Loop":
        graph.output.insert(1 + carried, described(made, kind, None))
        owner.output.extend([""] * (carried - len(owner.output)))
        owner.output.insert(carried, after)
        return after
    graph.output.append(described(made, kind, None))
    for attribute in owner.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH and attribute.g is not graph:
            _append_nothing(attribute.g, sequence, kind, f"{name}/observed.nothing{depth}")
    owner.output.append(after)
    return after


def _append_nothing(graph: onnx.GraphProto, sequence: str, kind: int, name: str) -> None:
    """Makes the branch without the value append an empty tensor."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    tensor = onnx.numpy_helper.from_array(np.zeros(0, dtype), f"{name}.value")
    graph.node.append(helper.make_node("Constant", [], [f"{name}.value"], f"{name}.value", value=tensor))
    graph.node.append(helper.make_node("SequenceInsert", [sequence, f"{name}.value"], [name], name))
    graph.output.append(helper.make_tensor_sequence_value_info(name, kind, None))
