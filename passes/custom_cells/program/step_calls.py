"""Operators of a custom cell's step that its program lets onnxruntime compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from rnnqc.ir import Node, attribute
from rnnqc.passes.custom_cells.program.step_reader import StepReader
from rnnqc.passes.custom_cells.program.step_values import BATCH, StepValue, joined_dims, refusal

_OF_NUMBERS = (
    "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "LeakyRelu", "Log",
    "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
)  # fmt: skip
_OF_PAIRS = ("Mod", "PRelu", "Pow")
_OF_ROWS = ("LogSoftmax", "Softmax")
_REDUCTIONS = {
    "ReduceL2": 13, "ReduceMax": 13, "ReduceMean": 13, "ReduceMin": 13, "ReduceSum": 11, "ReduceSumSquare": 13,
}  # fmt: skip
"""Reductions with the last operator version that has axes as an attribute: in programs axes are not operands."""
_UNREAD = "stash_type"
"""An attribute of LayerNormalization that onnxruntime's float kernel does not have."""


def called(reader: StepReader, node: Node, version: int = 0) -> tuple[object, ...]:
    """Returns the first words of an instruction that calls the operator of a node.

    Args:
        reader: The reader of the step.
        node: The node.
        version: The version of the operator; 0 for that of the model's operator set.
    """
    return "call", node.op, version or onnx.defs.get_schema(node.op, reader.opset).since_version


def call_operand(reader: StepReader, node: Node, position: int) -> int:
    """Returns the number of an operand as onnxruntime gets it in the loop: constants stay constants of the node."""
    per_row = reader.of(node, node.inputs[position]).per_row
    return reader.operand(node, position) if per_row else reader.program.constant(node, node.inputs[position])


def _of_number(reader: StepReader, node: Node) -> StepValue:
    held = reader.rows(node)
    reader.typed(node, 0, "f32")
    return reader.program.make("f32", held.dims, *called(reader, node), reader.operand(node, 0), *_words(reader, node))


def _of_pair(reader: StepReader, node: Node) -> StepValue:
    values = [reader.typed(node, k, "f32") for k in range(2)]
    dims = joined_dims(node, values)
    if any(v.flat for v in values) or len(dims) != 2 or (node.op == "PRelu" and values[0].dims != dims):
        raise refusal(node, "its operands are no rows.")
    operands = [call_operand(reader, node, k) for k in range(2)]
    return reader.program.make("f32", dims, *called(reader, node), *operands, *_words(reader, node))


def _of_row(reader: StepReader, node: Node) -> StepValue:
    if attribute(node, "axis", -1) not in (1, -1):
        raise refusal(node, "it does not work along rows.")
    return _of_number(reader, node)


def _reduction(reader: StepReader, node: Node) -> StepValue:
    reader.rows(node)
    reader.typed(node, 0, "f32")
    axes = reader.numbers(node, 1, "its axis") if len(node.inputs) > 1 else attribute(node, "axes", None)
    if axes is None or [int(a) % 2 for a in axes] != [1]:
        raise refusal(node, "it does not reduce rows.")
    dims = (BATCH, 1) if attribute(node, "keepdims", 1) else (BATCH,)
    index = reader.operand(node, 0)
    if node.op == "ReduceMax" and [n.op for n in node.inputs[0].inputs] == ["Abs"]:
        return reader.program.make("f32", dims, "largest", index)  # onnxruntime may return either zero
    words = called(reader, node, _REDUCTIONS[node.op])
    return reader.program.make("f32", dims, *words, index, "axes=l:1", "keepdims=i:1")


def _layer_normalization(reader: StepReader, node: Node) -> StepValue:
    held = reader.rows(node)
    axis = attribute(node, "axis", -1)
    if axis not in (1, -1) or any(v.name for v in node.outputs[1:]) or held.columns < 2:
        raise refusal(node, "it does not normalize rows of several numbers.")
    for position in range(1, len(node.inputs)):
        parameter = reader.typed(node, position, "f32")
        if parameter.array is None or parameter.dims != (held.columns,):
            raise refusal(node, "its scale or bias is no constant row.")
    operands = [reader.operand(node, k) for k in range(len(node.inputs))]
    return reader.program.make("f32", held.dims, *called(reader, node), *operands, *_words(reader, node))


CALLS: dict[str, Callable[[StepReader, Node], StepValue]] = {
    **dict.fromkeys(_OF_NUMBERS, _of_number),
    **dict.fromkeys(_OF_PAIRS, _of_pair),
    **dict.fromkeys(_OF_ROWS, _of_row),
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "LayerNormalization": _layer_normalization,
}
"""Functions that write the instruction of an operator, by operator.

Each raises `NotHandled` for a node that programs do not support.
"""


def _words(reader: StepReader, node: Node) -> list[str]:
    """Returns all attributes of a called operator, with defaults: onnxruntime's kernels require them."""
    values = dict(node.attrs)
    for name, held in onnx.defs.get_schema(node.op, reader.opset).attributes.items():
        if held.default_value.name and name != _UNREAD:
            values.setdefault(name, onnx.helper.get_attribute_value(held.default_value))
    words = []
    for name, value in values.items():
        text = value.decode() if isinstance(value, bytes) else value
        if isinstance(text, float):
            words.append(f"{name}=f:{int(np.float32(text).view(np.uint32)):x}")
        elif isinstance(text, int):
            words.append(f"{name}=i:{text}")
        elif isinstance(text, str) and text.isalnum():
            words.append(f"{name}=s:{text}")
        else:
            raise refusal(node, f"its attribute {name!r} is no number.")
    return words
