"""Models with an embedding, a convolution and linear layers around a recurrent layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from rnnqc.formats.format import Format
from rnnqc.formats.scales import symmetric_scale
from tests.runs.sessions import Array
from tests.subjects.protos import parse

TOKENS, WIDTH, CHANNELS = 60, 16, 24
_TEXT = """
<ir_version: 8, opset_import: ["" : {opset}]>
whole (int64[T,B] tokens) => ({outputs})
{{
    embedded = Gather (table, tokens)
    y = LSTM <hidden_size = 16> (embedded, w, r, bias)
    {head}
}}
"""
_HEAD = """
    axes = Constant <value_ints = [1]> ()
    h = Squeeze (y, axes)
    rows = Transpose <perm = [1, 2, 0]> (h)
    filtered = Conv <pads = [1, 1]> (rows, kernel, kernel_bias)
    columns = Transpose <perm = [2, 0, 1]> (filtered)
    features = MatMul (columns, projection)
    decoder = Transpose <perm = [1, 0]> ({decoder})
    logits = MatMul (features, decoder)
"""
AXES = {"table": 0, "kernel": 0, "projection": 1, "decoder_table": 0}
"""The weights around the LSTM, and the axis of their output channels or rows."""


@dataclass(frozen=True)
class WholeModel:
    """Tokens `[T,B]` through embedding, LSTM, convolution and projection to logits.

    Attributes:
        tied: Whether the decoder's weight is the embedding's table.
        opset: Operator set.
        head: Whether there is anything behind the LSTM.
    """

    tied: bool = True
    opset: int = 17
    head: bool = True

    def model(self) -> onnx.ModelProto:
        """The float model."""
        rng = np.random.default_rng(5)

        def draw(*shape: int) -> Array:
            return (rng.standard_normal(shape) * 0.4).astype(np.float32)

        weights = {
            "table": draw(TOKENS, WIDTH), "w": draw(1, 64, WIDTH), "r": draw(1, 64, WIDTH), "bias": draw(1, 128),
        }  # fmt: skip
        if not self.head:
            return parse(_TEXT.format(opset=self.opset, outputs="float[T,1,B,16] y", head=""), **weights)
        weights |= {"kernel": draw(CHANNELS, WIDTH, 3), "kernel_bias": draw(CHANNELS)}
        weights |= {"projection": draw(CHANNELS, WIDTH)}
        weights |= {} if self.tied else {"decoder_table": draw(TOKENS, WIDTH)}
        head = _HEAD.format(decoder="table" if self.tied else "decoder_table")
        outputs = "float[T,B,60] logits, float[T,B,16] embedded"
        return parse(_TEXT.format(opset=self.opset, outputs=outputs, head=head), **weights)

    @staticmethod
    def feeds(seed: int = 0) -> dict[str, Array]:
        """Tokens, negative ones among them."""
        rng = np.random.default_rng(seed)
        return {"tokens": rng.integers(-TOKENS, TOKENS, (5, 3))}


def exact_model() -> onnx.ModelProto:
    """A convolution and a linear layer of whole numbers, whose sums are exact in any order.

    int8 holds their weights exactly: the largest of each channel is 127.
    """
    rng = np.random.default_rng(3)
    kernel, matrix = (rng.integers(-126, 127, s).astype(np.float32) for s in ((24, 6, 3), (24, 40)))
    kernel[:, 0, 0] = matrix[0] = 127.0
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    exact (float[N,6,8] x) => (float[N,8,40] y)
    {
        filtered = Conv <pads = [1, 1]> (x, kernel)
        rows = Transpose <perm = [0, 2, 1]> (filtered)
        y = MatMul (rows, matrix)
    }
    """
    return parse(text, kernel=kernel, matrix=matrix)


def exact_feeds() -> dict[str, Array]:
    """For `exact_model`: sums stay below 2^24."""
    return {"x": np.random.default_rng(4).integers(-3, 4, (2, 6, 8)).astype(np.float32)}


def rounded_to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the floats that int8 values of the weights around the LSTM stand for."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.name in AXES:
            array, axis = numpy_helper.to_array(tensor), AXES[tensor.name]
            tensor.CopyFrom(numpy_helper.from_array(int8_format(array, axis).fake_quantize(array), tensor.name))
    return made


def int8_format(array: Array, axis: int) -> Format:
    """Symmetric int8 with a scale for each channel."""
    others = tuple(k for k in range(array.ndim) if k != axis)
    scale = symmetric_scale(np.abs(array).max(axis=others), 8)
    return Format(8, True, narrow=True, axis=axis, scale=tuple(map(float, scale.astype(np.float32))))
