"""The nodes that specify a cell, taken out of a lowered model: before its loop over time, the loop, after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.stages import QuantizedCell
from rnnqc.cells.types import fused_type
from rnnqc.errors import CompileError
from rnnqc.ir import CELL_TAG, DOMAIN, Model
from rnnqc.passes.graph.point_names import plain_name
from rnnqc.proto.graph_walks import blocks_of, captured, needed, reads
from rnnqc.tracing.rolled import rolled

EXACT_EVERYWHERE = "else_branch"
"""The branch of the choice between two ways of multiplying integers that is exact on every processor."""


@dataclass(frozen=True)
class Program:
    """One cell as nodes of standard operators.

    Attributes:
        cell: What the model says about it.
        node: The fused node, or None.
        nodes: All nodes in order, without subgraphs but that of `scan`.
        scan: The loop over time, one of `nodes`.
        inputs: Names in the model, by the names that `nodes` use for what comes from outside.
        outputs: Names in the model, by the names in `nodes`.
        opset: Of the standard operators.
        ir_version: Of the model.
    """

    cell: QuantizedCell
    node: onnx.NodeProto | None
    nodes: Sequence[onnx.NodeProto]
    scan: onnx.NodeProto
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    opset: int
    ir_version: int

    @property
    def body(self) -> onnx.GraphProto:
        """What the loop does in each step."""
        graph: onnx.GraphProto = next(a.g for a in self.scan.attribute if a.name == "body")
        return graph

    @property
    def backwards(self) -> bool:
        """Whether the loop takes the elements of its sequences from the last to the first."""
        return any(a.name == "scan_input_directions" and any(a.ints) for a in self.scan.attribute)

    @property
    def states(self) -> int:
        """How many values the loop carries from step to step."""
        scanned: int = next(a.i for a in self.scan.attribute if a.name == "num_scan_inputs")
        return len(self.scan.input) - scanned

    @property
    def captured(self) -> list[str]:
        """What the loop's body uses of the nodes and inputs around it."""
        return sorted(captured(self.body))

    @property
    def before(self) -> list[onnx.NodeProto]:
        """The nodes that the loop needs."""
        return needed(self.nodes, [*self.scan.input, *self.captured])

    def depends(self, names: Iterable[str], sources: Iterable[str]) -> set[str]:
        """Which of `names` depend on `sources`."""
        reached = set(sources)
        for node in self.nodes:
            if any(i in reached for i in node.input):
                reached.update(node.output)
        return reached & set(names)

    def named(self, prelude: bool) -> dict[str, str]:
        """The values in front of the loop, or of its body, by their names without path and number."""
        nodes = self.before if prelude else self.body.node
        given = [] if prelude else [v.name for v in self.body.input]
        names = [*given, *(o for n in nodes for o in n.output if o)]
        result: dict[str, str] = {}
        for name in names:
            result.setdefault(plain_name(name, self.cell.name), name)
        return result


def programs(model: Model, proto: onnx.ModelProto, cells: Mapping[str, Cell]) -> list[Program]:
    """The program of every cell that has a form other than float.

    Args:
        model: The model.
        proto: The same.
        cells: The cells of interest, by name.

    Raises:
        CompileError: A cell's loop is not there, and cannot be made from the model's description of the cell.
    """
    tagged: dict[str, list[onnx.NodeProto]] = {}
    used: dict[str, set[str]] = {}
    for graph in blocks_of([proto.graph]):
        for node in graph.node:
            name = _tag(node)
            if name in cells:
                tagged.setdefault(name, []).append(node)
                used.setdefault(name, set())
        tags = [_tag(n) for n in graph.node]
        for name in {t for t in tags if t in cells}:
            outer = {i for n, t in zip(graph.node, tags, strict=True) if t != name for i in reads(n)}
            used[name] |= outer | {o.name for o in graph.output}
    opset = max(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    made = []
    for name, nodes in tagged.items():
        cell = cells[name]
        if not isinstance(cell, QuantizedCell):
            continue
        fused = nodes[0] if len(nodes) == 1 and nodes[0].domain == DOMAIN and fused_type(nodes[0].op_type) else None
        if fused is not None:
            function = functions.get((fused.domain, fused.op_type, fused.overload))
            if function is None:
                raise CompileError(
                    f"Cell {name!r}: the model has no function for {fused.op_type} {fused.overload}".rstrip() + ".",
                    supported="files with the functions that `rnnqc lower` writes: they say what a cell computes",
                    action="lower the float model again",
                )
            inputs = {f: a for f, a in zip(function.input, fused.input, strict=False) if a}
            outputs = {f: a for f, a in zip(function.output, fused.output, strict=False) if a}
            flat = _flat(_with_attributes(function.node, fused))
        else:
            # The whole cell stands in one graph; the nodes of its subgraphs carry its name, too.
            top = _outermost(proto.graph, name)
            flat = _flat(top)
            own = {o for n in top for o in n.output}
            inputs = {i: i for n in top for i in sorted(reads(n)) if i not in own}
            outputs = {o: o for n in top for o in n.output if o in used[name]}
        scans = [n for n in flat if n.op_type == "Scan"]
        if not scans and fused is None:
            own_nodes, given, made_here = rolled(model, cell, flat)
            flat = _flat(own_nodes)
            inputs, outputs = {n: n for n in given}, {n: n for n in made_here}
            scans = [n for n in flat if n.op_type == "Scan"]
        if len(scans) != 1 or any(a.HasField("g") for n in flat if n is not scans[0] for a in n.attribute):
            raise CompileError(
                f"Cell {name!r} has no loop over time of its own: it was unrolled, or another tool changed it.",
                supported="cells in the forms that `rnnqc lower` writes; form qcdq without --unroll",
                action="lower the float model again, without --unroll; the values are the same",
            )
        made.append(Program(cell, fused, flat, scans[0], inputs, outputs, opset, proto.ir_version))
    return made


def _tag(node: onnx.NodeProto) -> str:
    return next((p.value for p in node.metadata_props if p.key == CELL_TAG), "")


def _outermost(graph: onnx.GraphProto, name: str) -> list[onnx.NodeProto]:
    return next(found for g in blocks_of([graph]) if (found := [n for n in g.node if _tag(n) == name]))


def _with_attributes(nodes: Iterable[onnx.NodeProto], call: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Copies of a function's nodes with the attributes that the call gives (only top-level nodes refer to some)."""
    given = {a.name: a for a in call.attribute}
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for attribute in copy.attribute:
            if attribute.ref_attr_name:
                name = attribute.name
                attribute.CopyFrom(given[attribute.ref_attr_name])
                attribute.name = name
        copies.append(copy)
    return copies


def _flat(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes with one branch of every If in the place of the If."""
    flat: list[onnx.NodeProto] = []
    for node in nodes:
        if node.op_type != "If":
            flat.append(node)
            continue
        branch = next(a.g for a in node.attribute if a.name == EXACT_EVERYWHERE)
        flat.extend(_flat(branch.node))
        flat.extend(onnx.helper.make_node("Constant", [], [t.name], value=t) for t in branch.initializer)
        pairs = zip(branch.output, node.output, strict=True)
        flat.extend(onnx.helper.make_node("Identity", [i.name], [o], o) for i, o in pairs)
    return flat
