"""Reads embeddings from int8 tables."""

from __future__ import annotations

import numpy as np

from rnnqc.errors import Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.ir import Graph, Model, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.rest_weights import WeightUse
from rnnqc.passes.base import Pass, PassInfo, PassResult, StoredWeight
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.invariants import Property
from rnnqc.passes.rest.check_int8 import EmbeddingsCheck
from rnnqc.passes.rest.int8_weights import Int8Weight, Int8Weights

FORM = "int8 rows"


class QuantizeEmbeddings(Pass):
    """Stores embedding tables as int8 rows with a scale each, and dequantizes the rows that are read.

    Before: `Gather(table float32 [V,D], indices)`

    After: `Mul(Cast(Gather(table int8 [V,D], indices)), Gather(Cast(scale float16 [V,1]), indices))`

    Scales are float32 if one of them is too small or too large for float16, or if the table is also the weight of a
    linear layer.

    It is one float32 multiplication of exact integers: the same bits in every version of onnxruntime, at every
    optimization level. onnxruntime cannot fold it before indices are known, so the float table never exists in memory.
    Negative and out-of-range indices behave as before. A cell whose input consists of such rows takes them and their
    scales instead of the floats (InsertQcdq, FoldScales).

    A Gather stays if its table is not constant, not float32, not finite, too small to gain (see
    `rnnqc.passes.analysis.rest_weights`), or also read as floats. With another axis than 0, or if all indices into the
    table are constant, it is left to StoreWeights, which reports every weight that stays float. A table that is also
    the weight of a linear layer is stored once.
    """

    info = PassInfo(
        name="quantize-embeddings",
        summary="read embeddings from int8 rows with a scale each",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(self, weights: Int8Weights | None = None) -> None:
        """A pass that stores a table once with the passes that share `weights`."""
        self._weights = weights or Int8Weights()

    def constant_check(self, model: Model) -> ConstantCheck:
        """Checks the int8 rows and their scales against the float tables."""
        return EmbeddingsCheck(w for w in self._weights.candidates(model) if not self._weights.is_half(w))

    def run(self, model: Model) -> PassResult:
        """Quantizes the tables of every graph."""
        homes = {id(n): g for g in model.graphs() for n in g.nodes}
        stored: dict[str, StoredWeight] = {}
        remarks: list[Remark] = []
        for weight in self._weights.candidates(model):
            uses = weight.row_readers
            if weight.refusal[0] or not uses or self._weights.is_half(weight):
                continue
            table = self._weights.of(model, weight)
            for use in uses:
                _read_rows(model, homes[id(use.node)], use, table)
                stored[use.path] = table.stored(FORM)
            remarks += self._weights.unheard(self, uses)
        return PassResult(bool(stored), tuple(remarks), {"embeddings": len(stored)}, stored=stored)


def _read_rows(model: Model, graph: Graph, use: WeightUse, table: Int8Weight) -> None:
    """Makes a Gather read int8 rows, and dequantizes them."""
    gather = use.node
    indices, made = gather.inputs[1], gather.outputs[0]
    b = Builder(model, prefix=safe_name(gather.name))
    rows = b.value("int8", np.int8)
    gather.inputs[0] = table.values
    gather.outputs.clear()
    gather.outputs.append(rows)
    scale = b.op("Gather", [table.scales_of_rows(model), indices], "scale", axis=0)
    b.add("Mul", [b.cast(rows, np.float32, "int8.cast"), scale], [made], "floats")
    model.insert_nodes_after(graph, gather, b.nodes)
