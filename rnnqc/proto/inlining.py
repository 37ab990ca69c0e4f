"""Inlines model-local functions with onnxruntime's semantics of a call."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of, defined, reads

FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""
MOST_NODES = 250_000
MOST_BYTES = 2**31 - 1


def key_of(function: onnx.FunctionProto) -> FunctionKey:
    """Returns the key by which nodes call a function."""
    return function.domain, function.name, function.overload


def functions_with(functions: Iterable[onnx.FunctionProto], wanted: Callable[[str, str], bool]) -> list[FunctionKey]:
    """Returns the functions that contain a wanted operator, directly or through a call.

    Functions of one name belong together: onnxruntime before 1.27 does not tell overloads apart.

    Args:
        functions: Some functions of a model.
        wanted: Whether an operator, given by domain and name, is wanted; calls of these functions are not asked about.
    """
    held = {key_of(f): {(n.domain, n.op_type) for b in blocks_of([f]) for n in b.node} for f in functions}
    own = {key[:2] for key in held}
    users: dict[tuple[str, str], list[FunctionKey]] = {}
    for key, used in held.items():
        for name in used:
            users.setdefault(name, []).append(key)
    pending = [name for name in users if name not in own and wanted(*name)]
    found: set[tuple[str, str]] = set()
    while pending:
        for key in users.pop(pending.pop(), ()):
            found.add(key[:2])
            pending.append(key[:2])
    return [key for key in held if key[:2] in found]


def inlined(model: onnx.ModelProto, keys: Collection[FunctionKey] | None = None) -> onnx.ModelProto:
    """Returns a copy of the model with some of its functions inlined.

    As in onnxruntime, an attribute that a call lacks has the function's default (`attribute_proto`); one without a
    default is removed from the nodes that refer to it; and a body runs under the operator sets of the model, whatever
    the function imports. A value of a function is named after the calling node, `/`, and its own name.

    Args:
        model: The model; no function calls itself.
        keys: The functions to inline; every function that calls one of them must be among them. All by default.

    Raises:
        CompileError: A call does not fit its function, or the result is too large.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    inliner = _Inliner(result, {key_of(f): f for f in model.functions if keys is None or key_of(f) in keys})
    for block in blocks_of([result.graph]):
        assert isinstance(block, onnx.GraphProto)
        inliner.inline(block)
    kept = [f for f in model.functions if key_of(f) not in inliner.functions]
    del result.functions[:]
    result.functions.extend(kept)
    versions = {o.domain for o in result.opset_import}
    for opset in (o for f in inliner.functions.values() for o in f.opset_import):
        if opset.domain not in versions:
            versions.add(opset.domain)
            result.opset_import.append(opset)
    return result


@dataclass
class _Site:
    """The place of a call.

    Attributes:
        prefix: Prefix of new names.
        attributes: Replacements for references to attributes, by name; None keeps references.
        inner: The new names of values of subgraphs.
    """

    prefix: str
    attributes: Mapping[str, onnx.AttributeProto] | None = None
    inner: dict[str, str] = field(default_factory=dict)


class _Inliner:
    """Inlines calls, the outermost ones first, so that every call has its attributes when it is inlined."""

    def __init__(self, model: onnx.ModelProto, functions: Mapping[FunctionKey, onnx.FunctionProto]) -> None:
        self.functions = functions
        self.names: set[str] = set()
        for block in blocks_of([model.graph]):
            assert isinstance(block, onnx.GraphProto)
            self.names |= defined(block)
            self.names |= {name for node in block.node for name in (node.name, *node.input)}
        self.counts: dict[str, int] = {}
        self.nodes = self.bytes = 0

    def inline(self, graph: onnx.GraphProto) -> None:
        """Replaces the calls in a graph, not those in its subgraphs."""
        if not any(_called(node) in self.functions for node in graph.node):
            return
        done: list[onnx.NodeProto] = []
        pending = list(reversed(graph.node))
        while pending:
            node = pending.pop()
            function = self.functions.get(_called(node))
            if function is None:
                done.append(node)
            else:
                pending.extend(reversed(self._body(node, function, graph)))
        del graph.node[:]
        graph.node.extend(done)

    def _body(self, call: onnx.NodeProto, function: onnx.FunctionProto, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        """Returns the nodes of a function for a call, and adds the declared types of their values to `graph`."""
        prefix = call.name or next((o for o in call.output if o), call.op_type)
        for given, formal, what in ((call.input, function.input, "inputs"), (call.output, function.output, "outputs")):
            if len(given) > len(formal):
                raise CompileError(
                    f'Operator "{call.op_type}" (node {prefix!r}): the call of a model-local function has {len(given)} '
                    f"{what}.",
                    supported=f"up to {len(formal)}, as many as the function has",
                    action="export the model again",
                )
        self.nodes += len(function.node)
        self.bytes += sum(node.ByteSize() for node in function.node)
        if self.nodes > MOST_NODES or self.bytes > MOST_BYTES:
            raise CompileError(
                f"model-local functions cannot be inlined: at function {function.name!r} (node {prefix!r}) they "
                f"come to {self.nodes} nodes of {self.bytes} bytes.",
                supported=f"up to {MOST_NODES} nodes and {MOST_BYTES} bytes",
                action="split the model, or export it without functions",
            )
        site = _Site(prefix, {a.name: a for a in [*function.attribute_proto, *call.attribute]})
        scope: ChainMap[str, str] = ChainMap({"": ""})
        scope.update(zip(function.input, [*call.input, *[""] * len(function.input)], strict=False))
        results = {formal: actual for formal, actual in zip(function.output, call.output, strict=False) if actual}
        for name in (o for node in function.node for o in node.output if o):
            scope[name] = results.get(name) or self._fresh(f"{prefix}/{name}")
        for name in sorted(set().union(*(reads(node) for node in function.node)) - set(scope)):
            scope[name] = self._fresh(f"{prefix}/{name}")  # no node makes it, even if the caller has the name
        described = {v.name for v in [*graph.value_info, *graph.output, *graph.input]}
        for value in function.value_info:
            name = scope.get(value.name, "")
            if name and name not in described and value.name not in function.input:
                graph.value_info.append(value)
                graph.value_info[-1].name = name
        return [self._renamed(node, scope, site) for node in function.node]

    def _renamed(self, node: onnx.NodeProto, scope: ChainMap[str, str], site: _Site) -> onnx.NodeProto:
        """Copies a node for a call.

        Args:
            node: A node of a function, or of a graph that a call passes to one.
            scope: The new names of values; values that are not in it keep their names.
            site: The call.
        """
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.name = self._fresh(f"{site.prefix}/{node.name}") if node.name else ""
        made.input[:] = [scope.get(name, name) for name in node.input]
        made.output[:] = [scope.get(name, name) for name in node.output]
        del made.attribute[:]
        for attribute in node.attribute:
            given, within = attribute, site
            if attribute.ref_attr_name and site.attributes is not None:
                if attribute.ref_attr_name not in site.attributes:
                    continue
                # A graph of the caller: onnxruntime, too, resolves its names in the function first.
                given, within = site.attributes[attribute.ref_attr_name], _Site(site.prefix)
            own = made.attribute.add()
            own.CopyFrom(given)
            own.name = attribute.name
            for graph in [*([own.g] if own.HasField("g") else []), *own.graphs]:
                self._rename(graph, scope, within)
        return made

    def _rename(self, graph: onnx.GraphProto, around: ChainMap[str, str], site: _Site) -> None:
        """Renames the values that a subgraph defines, in place; sibling subgraphs share the new names."""
        scope = around.new_child()
        for name in sorted(defined(graph)):
            hint = f"{site.prefix}/{name}"
            scope[name] = self._fresh(hint) if name in around else site.inner.get(name) or self._fresh(hint)
            site.inner.setdefault(name, scope[name])
        nodes = [self._renamed(node, scope, site) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        tensors = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
        for value in [*graph.input, *graph.output, *graph.value_info, *tensors]:
            value.name = scope.get(value.name, value.name)
        for annotation in graph.quantization_annotation:
            annotation.tensor_name = scope.get(annotation.tensor_name, annotation.tensor_name)

    def _fresh(self, hint: str) -> str:
        name = hint
        while name in self.names:
            self.counts[hint] = self.counts.get(hint, 1) + 1
            name = f"{hint}_{self.counts[hint]}"
        self.names.add(name)
        return name


def _called(node: onnx.NodeProto) -> FunctionKey:
    return node.domain, node.op_type, node.overload
