"""A model as one flat graph: its parts can run alone, between any values, with one iteration of each cell's loop.

Loops are replaced by one iteration of their bodies, branches by the chosen one, functions by their nodes. The part
between any values of the result can run: fed values are disconnected from their producers. Parts can also be compared
without a run: equal digests mean equal operators on equal constants.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, helper, numpy_helper

from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.passes.graph.point_names import alias, plain_name
from rnnqc.proto.inlining import inlined

Array = npt.NDArray[Any]
_FED, _RUNS, _CARRIED = "fed:", ":runs", ":next"
_ELEMENT, _LAST, _AXIS = "verify:element", "verify:last", "verify:axis"


class MissingValueError(Exception):
    """A value without producer that is not fed."""


class FlatModel:
    """The nodes of a model and its subgraphs, by their outputs.

    Args:
        model: The model.
        cells: Names of cells; their loops are replaced by single steps.
        functions: Whether calls of functions stay calls.
        chosen: Values of branch conditions, by name as in `conditions`. Integer matmuls are then computed exactly: this
            machine may choose the other branch because its integer matmuls are not exact.

    Attributes:
        conditions: Values of the branch conditions of cells, by name without cell: their values on this machine; true
            for those that depend on data.
    """

    def __init__(
        self, model: onnx.ModelProto, cells: Collection[str], *, functions: bool = False,
        chosen: Mapping[str, bool] | None = None,
    ) -> None:  # fmt: skip
        whole = model if functions else inlined(model)
        self._whole, self._has_exact_products = whole, bool(chosen)
        self.conditions: dict[str, bool] = dict(chosen or {})
        self._header = onnx.ModelProto(ir_version=model.ir_version, opset_import=whole.opset_import)
        self._header.functions.extend(whole.functions)
        self._prefixes = tuple(f"{c}/" for c in cells)
        self.makers: dict[str, onnx.NodeProto] = {}
        self.tensors: dict[str, onnx.TensorProto] = {}
        self.carried: dict[str, list[str]] = {c: [] for c in cells}
        """By cell the states that its loop makes, those of a step."""
        self._short: dict[str, dict[str, str]] = {c: {} for c in cells}
        for name, array in ((_ELEMENT, 0), (_LAST, -1), (_AXIS, [0])):
            self.tensors[name] = numpy_helper.from_array(np.asarray(array, np.int64), name)
        self._walk(whole.graph)
        for name in self.makers:
            self._note(name)

    def with_turned(self, conditions: Collection[str]) -> FlatModel:
        """Returns the model with the other branch for some conditions."""
        chosen = {name: value != (name in conditions) for name, value in self.conditions.items()}
        return FlatModel(self._whole, list(self.carried), functions=True, chosen=chosen)

    def needed(self, names: Iterable[str], given: Collection[str]) -> set[str]:
        """Returns the given values that others depend on, including one that is to be recomputed from the others."""
        found: set[str] = set()
        done: set[str] = set()
        stack = [v for name in names if name in self.makers for v in self.makers[name].input]
        while stack:
            value = stack.pop()
            if value in given:
                found.add(value)
            elif value in self.makers and value not in done:
                done.add(value)
                stack += self.makers[value].input
        return found

    def name(self, cell: str, short: str) -> str | None:
        """Returns a cell's value of this name, ignoring suffixes added by passes; the first step's if unrolled."""
        return self._short[cell].get(short)

    def run(
        self, feeds: Mapping[str, Array], wanted: Iterable[str], *, repeated: bool = False, native: bool = False
    ) -> dict[str, Array]:
        """Runs the part between given and wanted values.

        Args:
            feeds: The fed values; their producers do not run for other values.
            wanted: Names of values. One that is fed as well is computed from the other fed values.
            repeated: Whether the first axis of all feeds and results enumerates separate runs.
            native: Whether fused cells run in the native library.

        Raises:
            MissingValueError: A value is neither computed nor fed.
            CompileError: onnxruntime cannot run it.
        """
        names = tuple(dict.fromkeys(wanted))
        part = self._part(feeds, names)
        results = list(names)
        if repeated:
            first = run_session(make_session(part, optimize=False), {f"{_FED}{k}": v[0] for k, v in feeds.items()})
            part, results = _repeated(part, first), [f"{n}{_RUNS}" for n in names]
        session = make_session(part, native=native, optimize=False)
        made = run_session(session, {f"{_FED}{k}": v for k, v in feeds.items()})
        return {n: np.asarray(made[r]) for n, r in zip(names, results, strict=True)}

    def constant(self, name: str) -> Array | None:
        """Returns a value that depends on constants only; None for other values."""
        if name not in self.makers and name in self.tensors:
            return numpy_helper.to_array(self.tensors[name])
        try:
            return self.run({}, [name])[name]
        except (CompileError, MissingValueError):
            return None

    def _walk(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            self.tensors.setdefault(tensor.name, tensor)
        for node in graph.node:
            bodies = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
            of_cell = self._is_of_cell(node, bodies)
            if node.op_type == "MatMulInteger" and self._has_exact_products:
                self._exact_product(node)
            elif not bodies:
                self.makers.update((o, node) for o in node.output if o)
            elif of_cell and node.op_type == "If":
                body = self._branch(node.input[0], bodies)
                self._walk(body)
                self._link((v.name for v in body.output), node.output)
            elif of_cell and node.op_type == "Scan":
                self._one_step(node, bodies["body"])
            else:
                for body in bodies.values():
                    self._walk(body)
                self.makers.update((o, node) for o in node.output if o)

    def _branch(self, condition: str, bodies: Mapping[str, onnx.GraphProto]) -> onnx.GraphProto:
        """The chosen branch: the one for this machine, or the first if the condition depends on data."""
        cell = next(p[:-1] for p in self._prefixes if condition.startswith(p))
        short = plain_name(condition, cell)
        if short not in self.conditions:
            held = self.constant(condition)
            self.conditions[short] = held is None or bool(held)
        return bodies["then_branch" if self.conditions[short] else "else_branch"]

    def _exact_product(self, node: onnx.NodeProto) -> None:
        """Computes an integer matmul in float64."""
        (made,), operands = node.output, []
        for k, value in enumerate(node.input[:2]):
            wide, zero, shifted = (f"{made}:{k}{what}" for what in ("", ".zero_point", ".shifted"))
            self.makers[wide] = helper.make_node("Cast", [value], [wide], to=onnx.TensorProto.DOUBLE)
            operands.append(wide)
            if len(node.input) > 2 + k and node.input[2 + k]:
                self.makers[zero] = helper.make_node("Cast", [node.input[2 + k]], [zero], to=onnx.TensorProto.DOUBLE)
                self.makers[shifted] = helper.make_node("Sub", [wide, zero], [shifted])
                operands[k] = shifted
        self.makers[f"{made}:double"] = helper.make_node("MatMul", operands, [f"{made}:double"])
        self.makers[made] = helper.make_node("Cast", [f"{made}:double"], [made], to=onnx.TensorProto.INT32)

    def _is_of_cell(self, node: onnx.NodeProto, bodies: Mapping[str, onnx.GraphProto]) -> bool:
        if node.op_type == "If":
            return bool(node.input[0].startswith(self._prefixes))
        return any(v.name.startswith(self._prefixes) for b in bodies.values() for v in b.input[:1])

    def _one_step(self, node: onnx.NodeProto, body: onnx.GraphProto) -> None:
        count = next(a.i for a in node.attribute if a.name == "num_scan_inputs")
        states = len(node.input) - count
        given = [v.name for v in body.input]
        self._link(node.input[:states], given[:states])
        backwards = any(a.name == "scan_input_directions" and any(a.ints) for a in node.attribute)
        for source, name in zip(node.input[states:], given[states:], strict=True):
            element = _LAST if backwards else _ELEMENT
            self.makers[name] = helper.make_node("Gather", [source, element], [name], axis=0)
        self._walk(body)
        made = [v.name for v in body.output]
        cell = next(p[:-1] for p in self._prefixes if given[0].startswith(p))
        carried = [f"{name}{_CARRIED}" for name in given[:states]]
        self.carried[cell] = self.carried[cell] or carried
        self._link(made[:states], carried)
        self._link(made[:states], node.output[:states])
        for source, name in zip(made[states:], node.output[states:], strict=True):
            self.makers[name] = helper.make_node("Unsqueeze", [source, _AXIS], [name])

    def _link(self, sources: Iterable[str], names: Iterable[str]) -> None:
        for source, name in zip(sources, names, strict=True):
            self.makers[name] = helper.make_node("Identity", [source], [name])

    def _note(self, name: str) -> None:
        for cell, short in self._short.items():
            if name.startswith(f"{cell}/") and not alias(name)[1]:
                short.setdefault(plain_name(name, cell), name)

    def _part(self, feeds: Mapping[str, Array], names: Sequence[str]) -> onnx.ModelProto:
        """The model from the fed values to other ones."""
        nodes: dict[int, onnx.NodeProto] = {}
        stored: dict[str, onnx.TensorProto] = {}
        done: set[str] = set()
        stack = [(n, False) for n in reversed(names)]
        while stack:
            name, ready = stack.pop()
            if ready:
                node = self.makers[name]
                if id(node) not in nodes:
                    nodes[id(node)] = copy = onnx.NodeProto()
                    copy.CopyFrom(node)
                    copy.input[:] = [f"{_FED}{v}" if v in feeds else v for v in node.input]
                continue
            if name in done:
                continue
            done.add(name)
            if name in self.makers:
                stack.append((name, True))
                stack += [(v, False) for v in self.makers[name].input if v and v not in feeds]
            elif name in self.tensors:
                stored[name] = self.tensors[name]
            else:
                raise MissingValueError(name)
        part = onnx.ModelProto()
        part.CopyFrom(self._header)
        part.graph.name = "part"
        part.graph.node.extend(nodes.values())
        part.graph.initializer.extend(stored.values())
        for name, array in feeds.items():
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            part.graph.input.append(helper.make_tensor_value_info(f"{_FED}{name}", kind, None))
        part.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
        return part


def _repeated(part: onnx.ModelProto, results: Mapping[str, Array]) -> onnx.ModelProto:
    """A model that runs `part`, with these results, once for each element of the first axis of its inputs."""
    body = part.graph
    whole = onnx.ModelProto(ir_version=part.ir_version, opset_import=part.opset_import)
    whole.graph.name = "runs"
    varying = {v.name for v in body.input}
    inside: list[onnx.NodeProto] = []
    for inner in body.node:  # values that depend on constants only are computed once
        if varying.isdisjoint(inner.input):
            whole.graph.node.append(inner)
        else:
            varying.update(inner.output)
            inside.append(inner)
    del body.node[:]
    body.node.extend(inside)
    whole.graph.initializer.extend(body.initializer)
    del body.initializer[:]
    node = whole.graph.node.add(op_type="Scan", input=[v.name for v in body.input])
    for value in body.input:
        whole.graph.input.append(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, None))
        value.name = f"{value.name}{_RUNS}"
    for inner in body.node:
        inner.input[:] = [f"{v}{_RUNS}" if v.startswith(_FED) else v for v in inner.input]
    for value in body.output:
        held = results[value.name]
        kind = helper.np_dtype_to_tensor_dtype(held.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, held.shape))  # Scan needs the rank
        node.output.append(f"{value.name}{_RUNS}")
        whole.graph.output.append(onnx.ValueInfoProto(name=f"{value.name}{_RUNS}"))
    node.attribute.append(helper.make_attribute("body", body))
    node.attribute.append(helper.make_attribute("num_scan_inputs", len(node.input)))
    return whole
