"""Brings recurrent nodes into one form, so that later passes need not handle variants."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import onnx

from rnnqc.cells.types import CELL_TYPES, type_of
from rnnqc.errors import CompileError, Outcome, Remark
from rnnqc.evaluation.evaluate import evaluate_nodes
from rnnqc.evaluation.numerics import Bitwise, Close
from rnnqc.ir import (
    DOMAIN,
    Constant,
    Graph,
    Model,
    Node,
    attribute,
    constant_array,
    graph_info,
    info,
    input_or_none,
    output_or_none,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.nodes.foreign_operators import is_foreign
from rnnqc.passes.graph.nodes.lstm_node import WEIGHTS_TAG, B, P, R, W, is_recurrent
from rnnqc.passes.graph.nodes.quantized_products import QUANTIZED_PRODUCTS
from rnnqc.passes.graph.values.constant_expressions import constant_expression
from rnnqc.passes.invariants import Property
from rnnqc.passes.normalize.own_functions import check_own_functions
from rnnqc.passes.normalize.share_weights import share_weights, source_of
from rnnqc.proto.inlining import FunctionKey, functions_with, inlined, key_of
from rnnqc.proto.version_conversion import NOT_CONVERTED, convert_version

TARGET_OPSET = 17
MINIMUM_OPSET = NOT_CONVERTED
OLDEST_OPSET = 7
IR_VERSIONS = (10, 13)
FIRST_IR_WITH_FREE_INITIALIZERS = 4


class Canonicalize(Pass):
    """Normalizes the model around its recurrent nodes.

    1. Model-local functions that contain recurrent nodes are inlined, as are those that contain other operators with
       weights: unrecognized recurrences, linear layers, embeddings, convolutions, quantized ones too.
    2. Operator sets below 13 are converted to 17 (the bodies of cells need 13); others stay. The IR version becomes
       10 to 13: functions with overloads need 10, onnxruntime refuses more than 13.
    3. Constant expressions that make W, R, B or P become initializers.
    4. Layout 1 (unsupported by onnxruntime) becomes layout 0 between Transposes.

           Before: LSTM(X [B,T,I], layout=1) -> Y [B,T,D,H], Y_h [B,D,H]
           After:  Transpose -> LSTM(layout=0) -> Transpose
    5. Unnamed nodes get a name, recurrent nodes with equal names get different ones; graphs are sorted topologically.
    6. Up to IR version 3 every initializer is listed as a graph input; later versions treat that as a default that a
       run may replace, so these inputs are removed.
    7. MatMul and Gemm with equal constant weights read one value.

           Before: MatMul(x, Identity(W)), MatMul(y, V), with V equal to W
           After:  MatMul(x, W), MatMul(y, W)

    Bit-exact unless 2, 3 or 6 applies: onnxruntime multiplies constants in another order than
    values.
    """

    info = PassInfo(
        name="canonicalize",
        summary="make attributes and optional inputs of recurrent nodes explicit",
        numerics=Close(1e-6),
        sets=frozenset({Property.CANONICAL}),
    )

    def __init__(self, *, keep_codes: bool = False) -> None:
        """Creates the pass.

        Args:
            keep_codes: Whether step 3 keeps W and R that are stored as integers.
        """
        self.keep_codes = keep_codes

    def run(self, model: Model) -> PassResult:
        """Applies the steps."""
        check_own_functions(model.functions, model.source)
        remarks: list[Remark] = []
        statistics = {"functions": 0, "folded": 0, "layouts": 0, "names": 0, "shared": 0}
        changed = self._inline(model, statistics)
        converted = self._convert(model, remarks)
        changed |= converted
        old_inputs = model.ir_version < FIRST_IR_WITH_FREE_INITIALIZERS and _unlist_initializers(model)
        changed |= old_inputs
        clamped = min(max(model.ir_version, IR_VERSIONS[0]), IR_VERSIONS[1])
        changed |= clamped != model.ir_version
        model.ir_version = clamped
        changed |= model.sort()
        seen: set[tuple[str, str]] = {("", "")}
        for path, graph in list(model.paths()):
            for node in list(graph.nodes):
                if is_recurrent(node) and (path, node.name) in seen:
                    node.name = model.fresh_name(node.name)
                    statistics["names"] += 1
                seen.add((path, node.name))
                if not node.name:
                    first = next((v.name for v in node.outputs if v.name), "")
                    node.name = model.fresh_name(f"{first or path}:{node.op}")
                    statistics["names"] += 1
                if is_recurrent(node):
                    statistics["folded"] += self._fold_weights(model, node)
                if is_recurrent(node) and attribute(node, "layout", 0) == 1:
                    self._transpose_layout(model, graph, node)
                    statistics["layouts"] += 1
        statistics["shared"] = share_weights(model)
        changed |= any(statistics.values())
        model.infer_shapes()
        same_kernels = not (converted or old_inputs or statistics["folded"])
        return PassResult(changed, tuple(remarks), statistics, Bitwise() if same_kernels else None)

    def keeps(self, node: Node) -> bool:
        """Whether a node is reported even if nothing uses it."""
        return is_recurrent(node)

    def _inline(self, model: Model, statistics: dict[str, int]) -> bool:
        # onnx's version converter drops functions: before a conversion all are inlined.
        convert = model.opset < MINIMUM_OPSET
        keys = [key_of(f) for f in model.functions]
        inner = keys if convert else _functions_with_weights(model.functions)
        if not inner:
            return False
        statistics["functions"] = len(inner)
        model.reload(inlined(model.proto, inner))
        return True

    def _convert(self, model: Model, remarks: list[Remark]) -> bool:
        if model.opset >= MINIMUM_OPSET:
            return False
        if model.opset < OLDEST_OPSET:
            raise CompileError(
                f"{model.source}: operator set ai.onnx {model.opset} is too old.",
                supported=f"{OLDEST_OPSET} and later: onnxruntime runs no older recurrent layers, onnx converts none",
                action=f"export the model again, with operator set {MINIMUM_OPSET} to 20 if the exporter has it",
            )
        original = model.proto
        converted = convert_version(original, model.opset, TARGET_OPSET, f"{model.source}:")
        _restore(original, converted)
        old = model.opset
        model.reload(converted)
        assert model.opset == TARGET_OPSET
        remarks.append(
            self.remark(Outcome.NOTE, model.source, "model", f"converted from operator set {old} to {TARGET_OPSET}.")
        )
        return True

    def _fold_weights(self, model: Model, node: Node) -> int:
        folded = 0
        for k in (W, R, B, P):
            value = input_or_none(node, k)
            if value is None or isinstance(value, Constant):
                continue
            if self.keep_codes and k in (W, R) and WEIGHTS_TAG in info(node).metadata:
                continue
            root, turns = source_of(value)
            if isinstance(root, Constant) and not turns:  # a copy, as PyTorch writes for weights that layers share
                node.inputs[k] = root
                folded += 1
                continue
            array = constant_array(value)
            if array is None:
                nodes = constant_expression(value)
                array = evaluate_nodes(model, nodes, value) if nodes is not None else None
            if array is not None:
                node.inputs[k] = model.add_initializer(f"{value.name}.constant", np.asarray(array))
                folded += 1
        return folded

    def _transpose_layout(self, model: Model, graph: Graph, node: Node) -> None:
        before = Builder(model, prefix=node.name)
        for k, name in ((0, "X"), (5, "initial_h"), (6, "initial_c")):
            value = input_or_none(node, k)
            if value is not None:
                node.inputs[k] = before.op("Transpose", [value], f"{name}.time_first", perm=[1, 0, 2])
        after = Builder(model, prefix=node.name)
        for k, (name, perm) in enumerate((("Y", [2, 0, 1, 3]), ("Y_h", [1, 0, 2]), ("Y_c", [1, 0, 2]))):
            target = output_or_none(node, k)
            if target is not None:
                inner = after.value(f"{name}.time_first")
                node.outputs[k] = inner
                after.add("Transpose", [inner], [target], f"{name}.batch_first", perm=perm)
        del node.attrs["layout"]
        model.insert_nodes(graph, node, before.nodes)
        model.insert_nodes_after(graph, node, after.nodes)


_WEIGHTS = frozenset({"MatMul", "Gemm", "Einsum", "Gather", "Conv", "ConvTranspose"})


def _functions_with_weights(functions: Iterable[onnx.FunctionProto]) -> list[FunctionKey]:
    """Functions that may contain a recurrence or operators with weights, directly or through a call.

    Functions of rnnqc's own operators contain matmuls and gates, too, but stay, as do those of known layers.
    """
    held = [f for f in functions if type_of(f.name, f.domain) is None]
    recurrent = functions_with(held, lambda domain, op: _is(CELL_TYPES, domain, op) or is_foreign(domain, op))
    others = functions_with(held, lambda d, op: _is(_WEIGHTS, d, op) or (d, op) in QUANTIZED_PRODUCTS)
    return list(dict.fromkeys([*recurrent, *(key for key in others if key[0] != DOMAIN)]))


def _is(operators: Collection[str], domain: str, op: str) -> bool:
    return domain in ("", "ai.onnx") and op in operators


def _restore(original: onnx.ModelProto, converted: onnx.ModelProto) -> None:
    """Restores what the version converter drops: metadata, documentation, producer."""
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(converted, name, getattr(original, name))
    del converted.metadata_props[:]
    converted.metadata_props.extend(original.metadata_props)
    converted.graph.doc_string = original.graph.doc_string
    del converted.graph.metadata_props[:]
    converted.graph.metadata_props.extend(original.graph.metadata_props)
    _restore_nodes(original.graph, converted.graph)
    names = {v.name: v for v in [*original.graph.input, *original.graph.output]}
    for value in [*converted.graph.input, *converted.graph.output]:
        if value.name in names:
            value.CopyFrom(names[value.name])


def _restore_nodes(original: onnx.GraphProto, converted: onnx.GraphProto) -> None:
    """Restores documentation and metadata of nodes that compute the same value with the same operator, at any depth."""
    pending = [(original, converted)]
    while pending:
        before, after = pending.pop()
        makers = {n.output[0]: n for n in before.node if n.output}
        for node in after.node:
            source = makers.get(node.output[0]) if node.output else None
            if source is None or source.op_type != node.op_type:
                continue
            node.doc_string = source.doc_string
            del node.metadata_props[:]
            node.metadata_props.extend(source.metadata_props)
            graphs = {a.name: a.g for a in source.attribute if a.type == onnx.AttributeProto.GRAPH}
            pending.extend((graphs[a.name], a.g) for a in node.attribute if a.name in graphs)


def _unlist_initializers(model: Model) -> bool:
    """Removes initializers from the lists of graph inputs; returns whether there were any."""
    found = False
    for graph in model.graphs():
        record = graph_info(graph)
        kept = [name for name in record.input_order if name not in record.initializers]
        found |= len(kept) != len(record.input_order)
        record.input_order = kept
    return found
