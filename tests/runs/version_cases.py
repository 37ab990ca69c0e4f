"""Lowered models for comparing versions of onnxruntime: small, of every kind of cell, body and signature."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import onnx

import rnnqc
from rnnqc.cells.fused_nodes import PLACES, given_inputs, input_names
from rnnqc.cells.linear_nodes import KINDS
from rnnqc.cells.types import fused_type
from tests.generate.layers import RecurrentCase, stacked_model
from tests.generate.recurrences import RecurrenceCase
from tests.native.quant_linear_cases import linear_case
from tests.runs.sessions import Array
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm
from tests.subjects.custom_layers import cutting_layer, feeds_of
from tests.subjects.embedded_layers import embedded, tokens
from tests.subjects.fused_patterns import PATTERNS, patterned_layer
from tests.subjects.layers_of_parts import of_parts
from tests.subjects.packed_streams import cut_caches, packed_feeds, packed_step, packed_stream
from tests.subjects.whole_models import WholeModel, exact_feeds, exact_model

ALIKE = (
    *("GRU with Y", "RNN with Y", "LSTM with Y_c", "LSTM with Y Y_h", "LSTM with Y Y_c", "LSTM with Y_h Y_c"),
    *("GRU, symbolic", "RNN, symbolic", "GRU with a state", "RNN with a state", "RNN on grids", "RNN with codebooks"),
    *("GRU with int", "RNN with int", "GRU in both", "RNN in both", "GRU of earlier", "RNN of earlier"),
    *("GRU, integer form", "RNN, integer form", "GRU, unrolled", "RNN, unrolled", "GRU behind", "RNN behind"),
    *("GRU that reads", "RNN that reads"),
    *("directions, integer form", "set 14", "gelu by", "half first", "silu", "quick", "quotient", "rows, by"),
)
"""Parts of the names of cases that resemble another case, with another cell type or set of outputs."""
SMALL = RecurrentCase(T=3, B=2, I=3, H=4)


@dataclass(frozen=True)
class VersionCase:
    """A float model, how it is lowered, and what it is fed with."""

    name: str
    model: onnx.ModelProto = field(repr=False)
    feeds: dict[str, Array] = field(repr=False)
    lowering: dict[str, Any] = field(default_factory=dict)

    def lowered(self) -> onnx.ModelProto:
        """The model that sessions are made of."""
        lowering = dict(self.lowering)
        earlier = lowering.pop("earlier", False)
        if lowering.pop("calibrated", False):
            lowering["calibration"] = [self.feeds]
        proto = rnnqc.lower(self.model, **lowering).proto
        return as_in_earlier_files(proto) if earlier else proto


class LinearLayer(VersionCase):
    """A model with a linear layer, lowered already."""

    def lowered(self) -> onnx.ModelProto:
        """The model itself."""
        return self.model


def version_cases(*, every: bool = True) -> Iterator[VersionCase]:
    """All of them, or those that cover every kind of cell, body and signature."""
    return (case for case in _all_cases() if every or not any(part in case.name for part in ALIKE))


def _all_cases() -> Iterator[VersionCase]:
    for op, outputs in (("LSTM", ("Y", "Y_h", "Y_c")), ("GRU", ("Y", "Y_h")), ("RNN", ("Y", "Y_h"))):
        for count in range(1, len(outputs) + 1):
            for subset in combinations(outputs, count):
                yield _case(f"{op} with {' '.join(subset)}", SMALL.replace(op=op, outputs=subset))
        both = SMALL.replace(op=op, direction="bidirectional")
        yield _case(f"{op} in both directions", both)
        yield _case(f"{op}, symbolic sizes", SMALL.replace(op=op, dynamic_time=True, dynamic_batch=True))
        yield _case(f"{op} with states and lengths", both.replace(lens=(3, 2), initial_h=True, initial_c=op == "LSTM"))
        yield _case(f"{op} with a state", SMALL.replace(op=op, initial_h=True))
        yield _case(f"{op} with int4", both, recipe="w4a8")
        yield _case(f"{op} with int5", both, recipe="w5a8")
        yield _case(f"{op} with int6", both, recipe="w6a8")
        yield _case(f"{op} with codebooks", both, recipe="w4a8-uneven")
        yield _case(f"{op} on grids", both, recipe="pow2-int8", calibrated=True)
        behind = both.replace(lens=(3, 2), initial_h=True)
        feeds, lowering = tokens(behind, 0), {"rest": "int8"}
        yield VersionCase(f"{op} behind an embedding", embedded(behind, "transposed"), feeds, lowering)
        parts = SMALL.replace(op=op, I=5)
        yield VersionCase(f"{op} that reads parts", of_parts(parts, 3, factor=True), parts.feeds())
        yield _case(f"{op} of earlier files", SMALL.replace(op=op, initial_h=True, outputs=("Y_h",)), earlier=True)
        yield _case(f"{op}, integer form", both, form="integer")
        yield _case(f"{op}, unrolled", SMALL.replace(op=op), form="integer", unroll=True)
    yield _case("GRU, linear before reset", SMALL.replace(op="GRU", linear_before_reset=True, initial_h=True))
    many = SMALL.replace(op="GRU", T=32, I=16, H=8)
    yield _case("GRU, many rows", many)
    yield _case("GRU, many rows on grids", many, recipe="pow2-int8", calibrated=True)
    layer = linear_case((2, 20), 40, 24, kind=KINDS[0])
    yield LinearLayer("linear layer of many rows", layer.model(17, function=True), layer.feeds())
    yield _case("LSTM with peepholes", SMALL.replace(peepholes=True))
    yield _case("LSTM of 16-bit codes", SMALL, recipe="int16")
    yield _case("LSTM as onnxruntime's own operator", SMALL.replace(lens=(3, 2), peepholes=True), form="ort")
    for placement in ("if", "loop", "scan"):
        yield _case(f"LSTM in {placement}", SMALL.replace(placement=placement))
    layers = [SMALL.replace(direction="bidirectional"), SMALL.replace(I=8, direction="bidirectional", seed=1)]
    feeds = {"X": SMALL.feeds()["X"]}
    for name, lowering in (
        ("", {}),
        (", integer form", {"form": "integer"}),
        (" with static codes", {"recipe": "int8-static", "calibrated": True}),
    ):
        yield VersionCase(f"two layers in both directions{name}", stacked_model(layers), feeds, lowering)
    for kind in KINDS:
        layer = linear_case((2, 3), 40, 33, kind=kind)
        for opset in (14, 17, 20) if kind is KINDS[0] else (17,):
            yield LinearLayer(f"{kind.name} in operator set {opset}", layer.model(opset, function=True), layer.feeds())
    for form in ("fused", "integer"):
        lowering = {"rest": "int8", "form": form}
        yield VersionCase(f"int8 embedding, {form}", WholeModel(head=False).model(), WholeModel.feeds(), lowering)
    yield VersionCase("packed states", packed_stream(), packed_feeds(3), {"rest": "int8"})
    for name, moving in (("a packed step", packed_step()), ("cut caches", cut_caches())):
        yield VersionCase(name, moving, feeds_of(moving, 0))
    yield VersionCase("int8 storage", exact_model(), exact_feeds(), {"rest": "int8"})
    for recipe in ("pow2-int16", "int8"):
        custom = RecurrenceCase(op="highway", form="scan", time=3, batch=2).model()
        lowering = {"recipe": recipe, "calibrated": True}
        yield VersionCase(f"custom cell, {recipe}", custom, feeds_of(custom, 0), lowering)
    cutting = cutting_layer()
    yield VersionCase("custom cell that cuts two values", cutting, feeds_of(cutting, 0, 3, 2))
    for pattern in PATTERNS:
        patterned = patterned_layer(pattern)
        yield VersionCase(f"custom cell with {pattern}", patterned, feeds_of(patterned, 0, 3, 2))
    lstm = random_lstm(3, 3, 4)
    drawn = draw_feeds(lstm, 0, states=True, pow2=False)
    yield VersionCase("LSTM of Brevitas", one_cell(lstm, drawn), drawn)


def as_in_earlier_files(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the operators that files had before their functions had names of their own: inputs with gaps."""
    for function in model.functions:
        type_ = fused_type(function.name)
        if type_ is None:
            continue
        for node in model.graph.node:
            if node.op_type == function.name:
                given = given_inputs(node, input_names(type_))
                places = [a for a in node.attribute if a.name == PLACES]
                for attribute in places:
                    node.attribute.remove(attribute)
                last = max(input_names(type_).index(n) for n in given)
                names = input_names(type_)[: last + 1]
                node.op_type = type_.fused
                node.input[:] = [given.get(n, "") for n in names]
                function.input[:] = names
        function.name = type_.fused
    return model


def _case(name: str, layer: RecurrentCase, **lowering: Any) -> VersionCase:
    return VersionCase(name, layer.model(), layer.feeds(), lowering)
