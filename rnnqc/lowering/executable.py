"""Converts models that onnxruntime cannot run, or that bring their own quantization, to ones that it runs."""

from __future__ import annotations

import numpy as np
import onnx

from rnnqc.cells.forms import QCDQ
from rnnqc.cells.types import CELL_TYPES, LSTM
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.formats.qonnx import DOMAINS
from rnnqc.ir import Model, Node, attribute, dtype_of, input_or_none
from rnnqc.passes import PassManager, WidenProducts
from rnnqc.passes.graph.float16_products import transposed_float16_products
from rnnqc.passes.graph.nodes.lstm_node import W, is_recurrent
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP, QUANT_OPS, TRUNC_OP, is_quant, is_quant_lstm, is_trunc
from rnnqc.passes.normalize.read_weight_codes import has_weight_codes
from rnnqc.passes.normalize.repair_lstm_export import squeezes_wrong_axis
from rnnqc.passes.pipeline import EXPORTED, exported_passes
from rnnqc.proto.graph_walks import blocks_of

NOT_KEPT = (
    "the model's own quantization is kept without a recipe, and this layer has none of 8 bits and a scale per channel.",
    "no recipe",
    "--recipe int8 quantizes it",
)
"""Reason, cause and action for a layer that stays float while the model's own quantization is kept."""


def brings_its_own(model: Model) -> bool:
    """Whether the model has quantizers, or recurrent layers with quantized weights, and no cells of rnnqc."""
    nodes = (n for g in model.graphs() for n in g.nodes)
    return not model.cells and any(is_quant_lstm(n) or is_quant(n) or is_trunc(n) or has_weight_codes(n) for n in nodes)


@refusing_invalid_models
def executable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model that onnxruntime can run; the same object if it already can.

    Operators of Brevitas exports become form qcdq: the earliest form that runs and the closest to Brevitas, hence the
    reference for comparisons. A model whose recurrent nodes onnxruntime refuses, for their layout or float64, becomes
    normal form. Float16 matmuls that crash onnxruntime compute in float32.
    """
    return without_crashes(_in_known_operators(proto))


def _in_known_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    nodes = [n for block in blocks_of([proto.graph, *proto.functions]) for n in block.node]
    exported = any(n.domain in DOMAINS and n.op_type in (CELL_OP, *QUANT_OPS, TRUNC_OP) for n in nodes)
    if not exported and not any(n.op_type in CELL_TYPES for n in nodes):
        return proto
    read = Model.load(proto)
    if any(is_recurrent(n) and dtype_of(input_or_none(n, W)) is None for g in read.graphs() for n in g.nodes):
        read.infer_shapes()  # for computed weights
    in_functions = any(n.op_type in CELL_TYPES for b in blocks_of(proto.functions) for n in b.node)
    if not exported and not in_functions and not any(_is_refused(n) for g in read.graphs() for n in g.nodes):
        return proto
    PassManager(exported_passes(QCDQ, unroll=False), given=EXPORTED).run(read)
    return read.proto


def without_crashes(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with float16 matmuls behind a Transpose in float32; the same object if there are none."""
    operators = {n.op_type for block in blocks_of([proto.graph]) for n in block.node}
    if not {"MatMul", "Transpose"} <= operators:
        return proto
    read = Model.load(proto)
    if not transposed_float16_products(read):
        return proto
    PassManager([WidenProducts()]).run(read)
    return read.proto


def _is_refused(node: Node) -> bool:
    """Whether onnxruntime refuses this recurrent node but runs its normal form."""
    if not is_recurrent(node):
        return False
    refused = attribute(node, "layout", 0) or dtype_of(input_or_none(node, W)) == np.float64
    return bool(refused or (node.op == LSTM.op and squeezes_wrong_axis(node)))
