"""Protobuf models in tests: a model with every feature of ONNX, and a comparison of two models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


def parse(text: str, /, **initializers: Array) -> onnx.ModelProto:
    """A model from ONNX text, with `initializers` added to the main graph."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in initializers.items())
    return model


def of_nodes(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str] | None],
    outputs: Mapping[str, Sequence[int | str] | None],
    initializers: Mapping[str, Array] | None = None,
    ir_version: int = 8,
) -> onnx.ModelProto:
    """A model of these nodes in operator set 17; inputs and outputs are of floats, given by name with their shapes."""
    given, made = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in values.items()]
        for values in (inputs, outputs)
    )
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "g", given, made, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


def set_node_attribute(node: onnx.NodeProto, name: str, value: object) -> None:
    """Gives a node an attribute, in the place of one of that name."""
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def keep_outside(model: onnx.ModelProto, name: str, **entries: str) -> onnx.ModelProto:
    """The model with the data of an initializer in a file, which `entries` describe."""
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return model


def differences(before: Message, after: Message, path: str = "") -> list[str]:
    """Every field in which two messages differ; unset and empty texts are the same."""
    left = {f.name: v for f, v in before.ListFields() if v not in ("", b"")}
    right = {f.name: v for f, v in after.ListFields() if v not in ("", b"")}
    found: list[str] = []
    for name in sorted(left.keys() | right.keys()):
        where = f"{path}.{name}"
        if name not in left or name not in right:
            found.append(f"{where}: only {'before' if name in left else 'after'}")
            continue
        a, b = left[name], right[name]
        if isinstance(a, Message):
            found += differences(a, b, where)
        elif isinstance(a, str | bytes | int | float):
            found += [] if a == b or a != a else [f"{where}: {a!r} became {b!r}"[:200]]
        elif len(a) != len(b):
            found.append(f"{where}: {len(a)} entries became {len(b)}")
        else:
            for k, (x, y) in enumerate(zip(a, b, strict=True)):
                label = f"{where}[{getattr(x, 'name', '') or k}]"
                if isinstance(x, Message):
                    found += differences(x, y, label)
                elif x != y:
                    found.append(f"{label}: {x!r} became {y!r}")
    return found


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with what has no order (attributes, value_info, imports) sorted by name, "ai.onnx" called ""."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for entry in copy.opset_import:
        entry.domain = "" if entry.domain == "ai.onnx" else entry.domain
    _sort(copy.opset_import, "domain")
    pending: list[Any] = [copy.graph, *copy.functions]
    while pending:
        block = pending.pop()
        _sort(block.value_info, "name")
        for node in block.node:
            node.domain = "" if node.domain == "ai.onnx" else node.domain
            _sort(node.attribute, "name")
            pending += [a.g for a in node.attribute if a.HasField("g")]
    return copy


def _sort(field: Any, key: str) -> None:
    field.sort(key=lambda entry: getattr(entry, key))


def metadata(entries: Mapping[str, str]) -> list[onnx.StringStringEntryProto]:
    """Entries for a `metadata_props` field."""
    return [onnx.StringStringEntryProto(key=k, value=v) for k, v in entries.items()]


def _value(name: str, shape: Iterable[int | str | None], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape), doc_string=f"what {name} is")


def _branch(name: str, constant: float) -> onnx.GraphProto:
    """A branch that uses X of the graph around it, has documentation, metadata, an initializer and an annotation."""
    node = helper.make_node("Add", ["X", f"{name}_own"], [f"{name}_sum"], name=f"{name}_add", doc_string="inner node")
    node.metadata_props.extend(metadata({"inner": name}))
    last = helper.make_node("Identity", [f"{name}_sum"], [f"{name}_out"])
    own = numpy_helper.from_array(np.full((2, 3), constant, np.float32), f"{name}_own")
    graph = helper.make_graph(
        [node, last],
        name,
        [],
        [_value(f"{name}_out", ["N", 3])],
        [own],
        doc_string="a branch",
        value_info=[_value(f"{name}_sum", ["N", 3])],
    )
    graph.metadata_props.extend(metadata({"branch": name}))
    graph.quantization_annotation.add(tensor_name=f"{name}_sum").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value=f"{name}_own"
    )
    return graph


def _unusual_attributes() -> list[AttributeProto]:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "v"),
        numpy_helper.from_array(np.array([1, 4], np.int64), "i"),
        [2, 3],
    )
    tensor = numpy_helper.from_array(np.arange(3, dtype=np.float64), "t")
    described = helper.make_tensor_type_proto(TensorProto.FLOAT, ["N", None])
    attributes = [
        AttributeProto(name="tensor", type=AttributeProto.TENSOR, t=tensor),
        AttributeProto(name="tensors", type=AttributeProto.TENSORS, tensors=[tensor, tensor]),
        AttributeProto(name="sparse", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse),
        AttributeProto(name="sparse_list", type=AttributeProto.SPARSE_TENSORS, sparse_tensors=[sparse]),
        AttributeProto(name="described", type=AttributeProto.TYPE_PROTO, tp=described),
        AttributeProto(name="described_list", type=AttributeProto.TYPE_PROTOS, type_protos=[described]),
        helper.make_attribute("whole", 7),
        helper.make_attribute("real", 0.1),
        helper.make_attribute("wholes", [1, 2, 2**40]),
        helper.make_attribute("reals", [0.1, 1e-30]),
        helper.make_attribute("text", "ünïcode"),
        AttributeProto(name="empty", type=AttributeProto.INTS),
    ]
    return attributes


def _initializers() -> list[TensorProto]:
    rng = np.random.default_rng(5)
    reals = rng.standard_normal((2, 3)).astype(np.float32)
    kinds = {
        "BFLOAT16": (TensorProto.BFLOAT16, b"\x01\x3f\x02\x40\x03\xc0\x04\x41\x05\x3f\x06\x00"),
        "FLOAT8E4M3FN": (TensorProto.FLOAT8E4M3FN, bytes(range(6))),
        "FLOAT8E5M2": (TensorProto.FLOAT8E5M2, bytes(range(9, 15))),
        "INT4": (TensorProto.INT4, b"\x1f\x2e\x3d"),
        "UINT4": (TensorProto.UINT4, b"\xab\xcd\xef"),
    }
    packed = [
        TensorProto(name=name, data_type=kind, dims=[2, 3], raw_data=data, doc_string=f"some {name}")
        for name, (kind, data) in kinds.items()
    ]
    fields = [
        helper.make_tensor("typed_field", TensorProto.FLOAT, [2, 3], reals.ravel()),
        helper.make_tensor("texts", TensorProto.STRING, [2], [b"one", b"\xff"]),  # type: ignore[list-item]
        helper.make_tensor("complex", TensorProto.COMPLEX64, [1], [1 + 2j]),  # type: ignore[list-item]
        helper.make_tensor("halves", TensorProto.FLOAT16, [2], [0.5, 65504.0]),
        numpy_helper.from_array(np.zeros((0, 3), np.float32), "nothing_in_it"),
        numpy_helper.from_array(np.array(3, np.int64), "scalar"),
    ]
    for tensor in fields:
        tensor.metadata_props.extend(metadata({"of": tensor.name}))
    return [numpy_helper.from_array(reals, "listed_as_input"), *fields, *packed]


def rich_model() -> onnx.ModelProto:
    """A model that uses every field of ONNX that could get lost; it need not run."""
    choice = helper.make_node(
        "If",
        ["condition"],
        ["chosen"],
        name="choice",
        then_branch=_branch("then", 1.0),
        else_branch=_branch("else", 2.0),
    )
    next(a for a in choice.attribute if a.name == "then_branch").doc_string = "if so"
    strange = helper.make_node("Strange", ["chosen", "", "scalar"], ["first", "", "third"], domain="test.strange")
    strange.attribute.extend(_unusual_attributes())
    strange.doc_string = "a node of another domain"
    strange.metadata_props.extend(metadata({"b": "2", "a": "1"}))
    call = helper.make_node("Twice", ["first"], ["doubled"], name="call", domain="test.functions", overload="special")
    uses = helper.make_node("Take", ["doubled", "sparse", "listed_as_input", "INT4"], ["Z"], domain="test.strange")
    listed = _value("listed_as_input", [2, 3])
    batch = _value("X", ["N", 3])
    batch.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    batch.type.denotation = "IMAGE"
    batch.metadata_props.extend(metadata({"unit": "volt"}))
    unknown_rank = onnx.ValueInfoProto(name="third", doc_string="of unknown rank")
    unknown_rank.type.tensor_type.elem_type = TensorProto.FLOAT
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [None, 2])
    sequence = helper.make_value_info("list", helper.make_sequence_type_proto(element))
    optional = helper.make_value_info("maybe", helper.make_optional_type_proto(element))
    values = [_value("chosen", ["N", None]), _value("doubled", []), unknown_rank]
    values[0].metadata_props.extend(metadata({"value": "chosen"}))
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([3.0, 4.0], np.float32), "sparse"),
        numpy_helper.from_array(np.array([[0, 1], [1, 2]], np.int64), "sparse_indices"),
        [2, 3],
    )
    graph = helper.make_graph(
        [choice, strange, call, uses],
        "rich",
        [batch, _value("condition", [], TensorProto.BOOL), listed, sequence, optional],
        [_value("Z", ["N", "M"]), unknown_rank, batch],
        [*_initializers(), numpy_helper.from_array(np.ones(2, np.float32), "never_used")],
        doc_string="the graph",
        value_info=values[:2],
        sparse_initializer=[sparse],
    )
    graph.metadata_props.extend(metadata({"graph": "yes"}))
    annotation = graph.quantization_annotation.add(tensor_name="chosen")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scalar")
    function = helper.make_function(
        "test.functions",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"], doc_string="in a function")],
        [helper.make_opsetid("", 17)],
        overload="special",
        doc_string="adds a to itself",
    )
    function.metadata_props.extend(metadata({"function": "yes"}))
    other = onnx.FunctionProto()
    other.CopyFrom(function)
    other.overload = ""
    model = helper.make_model(
        graph,
        opset_imports=[
            helper.make_opsetid("", 17),
            helper.make_opsetid("test.strange", 3),
            helper.make_opsetid("test.functions", 1),
            helper.make_opsetid("never.used", 9),
        ],
        functions=[function, other],
        ir_version=10,
        producer_name="the tests",
        producer_version="1",
        doc_string="the model",
        model_version=42,
    )
    model.domain = "org.example"
    model.metadata_props.extend(metadata({"z": "first", "a": "second", "empty": ""}))
    return model
