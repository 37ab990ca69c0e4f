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
HEAD = """
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
        head = HEAD.format(decoder="table" if self.tied else "decoder_table")
        outputs = "float[T,B,60] logits, float[T,B,16] embedded"
        return parse(_TEXT.format(opset=self.opset, outputs=outputs, head=head), **weights)

    @staticmethod
    def feeds(seed: int = 0) -> dict[str, Array]:
        """Tokens, negative ones among them."""
        rng = np.random.default_rng(seed)
        return {"tokens": rng.integers(-TOKENS, TOKENS, (5, 3))}


def exact_model() -> onnx.ModelProto:
    """A convolution and a linear layer of whole numbers, whose sums are exact in any order.

    int8 holds their weights exactly: they are -127, 0 and 127.
    """
    rng = np.random.default_rng(3)
    kernel, matrix = (127.0 * rng.integers(-1, 2, s).astype(np.float32) for s in ((24, 6, 3), (24, 40)))
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
    return {"x": np.random.default_rng(4).integers(-2, 3, (2, 6, 8)).astype(np.float32)}


def rounded_to_int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the floats that int8 values of the weights around the LSTM stand for."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    of_table = in_rows if any(t.name == "decoder_table" for t in model.graph.initializer) else in_float32_rows
    for tensor in made.graph.initializer:
        if tensor.name in AXES:
            array, axis = numpy_helper.to_array(tensor), AXES[tensor.name]
            rounded = of_table(array) if tensor.name == "table" else in_groups(array, axis)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return made


def in_groups(array: Array, axis: int) -> Array:
    """The floats that int8 values in groups with float16 scales stand for, group by group.

    Groups are pieces of the weights of one channel: of the flat row behind it where that is the first axis, else along
    the first axis. A scale reaches the largest magnitude of the group, of the channel or of all weights, or is the next
    power of two for the group, or up to an eighth more than the group needs.
    """
    made = np.empty_like(array)
    rows = made.reshape(array.shape[0], -1)
    given = array.reshape(rows.shape)
    for channel in range(array.shape[axis]):
        if axis == 0:
            places = [
                (channel, slice(k, k + _size(rows.shape[1]))) for k in range(0, rows.shape[1], _size(rows.shape[1]))
            ]
            for place in places:
                rows[place] = _group(given[place], given[channel], array)
            continue
        others = array.size // (array.shape[0] * array.shape[axis])
        step = _size(array.shape[0], others)
        for start in range(0, array.shape[0], step):
            where = [slice(None)] * array.ndim
            where[0], where[axis] = slice(start, start + step), slice(channel, channel + 1)
            made[tuple(where)] = _group(array[tuple(where)], array.take(channel, axis), array)
    return made


def _size(count: int, others: int = 1) -> int:
    """Returns the group size of a piece: its divisor from 4 to 64 with the smallest ratio to 8."""
    sizes = [d for d in range(1, count + 1) if count % d == 0 and 4 <= d * others <= 64]
    return min(sizes, key=lambda d: max(d * others / 8, 8 / (d * others)), default=count)


def _group(part: Array, channel: Array, whole: Array) -> Array:
    """One group: of several scales the one with the least squared error, see `in_groups`."""
    tried = []
    group, *others = (float(np.abs(values).max()) / 127 or 1.0 for values in (part, channel, whole))
    above = [group * (1 + k / 256) for k in range(1, 32)]
    for wanted in (group, *others, 2.0 ** int(np.ceil(np.log2(group))), *above):
        step = np.float32(_half_not_below(wanted))
        floats = np.clip(np.rint(part / step), -127, 127).astype(np.float32) * step
        tried.append((float(np.square(floats - part).astype(np.float64).sum()), floats))
    return np.asarray(min(tried, key=lambda t: t[0])[1])


def _half_not_below(wanted: float) -> np.float16:
    scale = np.float16(wanted)
    while float(scale) < wanted:
        scale = np.nextafter(scale, np.float16(np.inf))
    return scale


def in_rows(array: Array) -> Array:
    """The floats that int8 rows with a float16 scale each stand for: what an embedding reads."""
    made = np.empty_like(array)
    for row, given in zip(made, array, strict=True):
        step = np.float32(_half_not_below(float(np.abs(given).max()) / 127 or 1.0))
        row[...] = np.clip(np.rint(given / step), -127, 127).astype(np.int8) * step
    return made


def in_float32_rows(array: Array) -> Array:
    """The same with float32 scales: what an embedding reads whose table is the weight of a linear layer, too."""
    scale = symmetric_scale(np.abs(array).max(axis=tuple(range(1, array.ndim))), 8).astype(np.float32)
    return Format(8, True, narrow=True, axis=0, scale=tuple(map(float, scale))).fake_quantize(array)
