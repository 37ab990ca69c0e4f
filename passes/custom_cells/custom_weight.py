"""The quantized weights of a custom cell's matmul, as its node reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats.format import Format
from rnnqc.formats.point_format import PointFormat
from rnnqc.ir import Constant, Graph, Model, Value
from rnnqc.passes.analysis.custom_products import CustomProduct
from rnnqc.passes.formats.quantized_parameters import weight_codes
from rnnqc.passes.qcdq.emit_qcdq import WIDEST

MIDDLE = 128
"""The zero point of values with per-row dynamic scales, and the offset that makes signed bytes unsigned."""
WIDE_MIDDLE = 2**15
BYTE = 255
LARGEST_SUM = 2**31


@dataclass(frozen=True)
class CustomWeight:
    """The weights of a matmul.

    Attributes:
        format: Their format.
        codes: `[K,N]`: for an integer matmul bytes, offset to be unsigned; otherwise the quantized values.
        scale: `[N]` or one number.
        zero_point: The zero points, stored in the same form as `codes`.
        array: The stored quantized values.
        byte_count: Bytes per weight; two are stored side by side as `[K,2N]`, high bytes first; 0 if `codes` are not
            bytes.
        nbytes: Size of quantized values and scales, without those that another matmul stored before.
    """

    format: Format
    codes: Value
    scale: Value
    zero_point: Value
    array: npt.NDArray[Any]
    byte_count: int
    nbytes: int


class CustomWeights:
    """The arrays of the quantized weights in one model: equal arrays in a graph are stored once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._held: dict[tuple[int, str, tuple[int, ...], bytes], Constant] = {}

    def add(self, name: str, array: npt.NDArray[Any], graph: Graph) -> tuple[Constant, int]:
        """Returns the constant that holds an array, and the number of bytes added to the graph."""
        key = (id(graph), array.dtype.str, array.shape, array.tobytes())
        grows = key not in self._held
        if grows:
            self._held[key] = self._model.add_initializer(name, array, graph)
        return self._held[key], array.nbytes if grows else 0


def store_weight(
    weights: CustomWeights,
    graph: Graph,
    path: str,
    product: CustomProduct,
    point: PointFormat,
    moment: Any,
    *,
    integer: bool,
) -> CustomWeight:
    """Adds the quantized weights of a matmul to its graph.

    Args:
        weights: The quantized weights that the model has already.
        graph: The graph.
        path: The path of the quantization point.
        product: The matmul.
        point: The format of its weights.
        moment: The second moments of its left operand, or None.
        integer: Whether the matmul is one of integers.
    """
    format_, codes = point.complete, weight_codes(point, product.weights, moment)
    scale, zero_point = format_.linear_parameters()
    stored, byte_count = codes, 0
    if integer and format_.bits <= WIDEST:
        raised = MIDDLE if format_.signed else 0
        stored, zero_point = (np.asarray(a.astype(np.int16) + raised).astype(np.uint8) for a in (codes, zero_point))
        byte_count = 1
    elif integer and len(codes) * BYTE * BYTE < LARGEST_SUM:
        raised = WIDE_MIDDLE if format_.signed else 0
        wide = (codes.astype(np.int32) + raised, np.broadcast_to(zero_point, codes.shape[1]).astype(np.int32) + raised)
        stored, zero_point = (np.concatenate([a >> 8, a & BYTE], axis=-1).astype(np.uint8) for a in wide)
        byte_count = 2
    arrays = {
        "codes": stored,
        "scale": scale,
        "zero_point": np.asarray(zero_point).astype(stored.dtype),
    }
    added = {k: weights.add(f"{path}.{k}", a, graph) for k, a in arrays.items()}
    held, grown = ({k: part[n] for k, part in added.items()} for n in (0, 1))
    nbytes = grown["codes"] + grown["scale"]
    return CustomWeight(format_, **held, array=stored, byte_count=byte_count, nbytes=nbytes)
