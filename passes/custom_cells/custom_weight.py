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
"""Zero point of rows with dynamic scales, and the offset that makes signed bytes unsigned."""
WIDE_MIDDLE = 2**15
BYTE = 255
LARGEST_SUM = 2**31


@dataclass(frozen=True)
class CustomWeight:
    """The weights of a product.

    Attributes:
        format: Their format.
        codes: `[K,N]`: for an integer product bytes, of quantized values that are raised to begin at 0; otherwise the
            quantized values.
        scale: `[N]` or one number.
        zero_point: Of the quantized values as they are stored, in the same form.
        array: The quantized values.
        byte_count: How many bytes make up a weight, side by side `[K,2N]` if there are two: the high ones and the low
            ones; 0 if they are no bytes.
        nbytes: Size of quantized values and scales; what was stored before for another product is not counted.
    """

    format: Format
    codes: Value
    scale: Value
    zero_point: Value
    array: npt.NDArray[Any]
    byte_count: int
    nbytes: int


class CustomWeights:
    """The arrays of the quantized weights in one model: equal ones in a graph are stored once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._held: dict[tuple[int, str, tuple[int, ...], bytes], Constant] = {}

    def add(self, name: str, array: npt.NDArray[Any], graph: Graph) -> tuple[Constant, int]:
        """The constant that holds an array, and by how many bytes the graph has grown."""
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
    """Adds the weights of a product, as quantized values, to the graph that it stands in.

    Args:
        weights: What the model has already.
        graph: The graph.
        path: Of the quantization point.
        product: The product.
        point: The format of its weights.
        moment: Second moments of what they are multiplied with, or None.
        integer: Whether the product is one of integers.
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
