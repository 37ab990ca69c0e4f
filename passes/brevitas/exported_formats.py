"""Finds the number formats of the values around exported cells."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rnnqc.cells.fixed_point_numbers import FixedPointQuantizer
from rnnqc.errors import NotHandled
from rnnqc.formats.qonnx import QonnxQuantizer
from rnnqc.formats.rounding import QONNX_ONLY
from rnnqc.ir import Value, constant_array
from rnnqc.passes.fold.fold_quant_lstm import check_one_scale, grid_of
from rnnqc.passes.graph.nodes.quant_operators import QuantLstm, check_finite, is_quant, read_quant
from rnnqc.passes.graph.values.layout_ops import MOVERS, sources_of
from rnnqc.passes.render.chain_codes import NEAREST

_MOVED = {**MOVERS, "Split": (0,)}


@dataclass
class KnownFormats:
    """The known formats of values.

    Attributes:
        known: The quantizer of each cell output, by name.
    """

    known: dict[str, QonnxQuantizer] = field(default_factory=dict)

    def of(self, value: Value, what: str) -> QonnxQuantizer:
        """Returns the quantizer of `value`, which comes from quantizers and cells through layout operators.

        Raises:
            NotHandled: A part of it has no quantizer, or parts have different ones.
        """
        found: QonnxQuantizer | None = None
        for source, grid in sources_of(value, self._known, _MOVED):
            if grid is None:
                node = source.inputs[0] if len(source.inputs) == 1 else None
                made = f"{source.name!r}" + (f" is made by {node.op}" if node is not None else "")
                raise NotHandled(f"{what} is not quantized.", made, "export the model with io_quant set")
            if found is not None and not found.same_format(grid):
                raise NotHandled(f"{what} has several scales or zero points.", f"{value.name!r}", "share io_quant")
            found = found or grid
        assert found is not None
        check_one_scale(what, found)
        return found

    def _known(self, value: Value) -> QonnxQuantizer | None:
        """Returns the quantizer of an output of a cell or a quantizer."""
        node = value.inputs[0] if len(value.inputs) == 1 else None
        grid = self.known.get(value.name)
        return read_quant(node) if grid is None and node is not None and is_quant(node) else grid


def input_of(node: QuantLstm, grids: KnownFormats) -> tuple[Value, FixedPointQuantizer]:
    """Returns the input of the cell and its quantizer; the cell absorbs a Quant node directly before it."""
    quantizer = grids.of(node.x, "its input")
    producer = node.x.inputs[0] if node.x.inputs else None
    if producer is not None and is_quant(producer) and quantizer.rounding not in QONNX_ONLY:
        return producer.inputs[0], grid_of("input", quantizer, unsigned=True)
    return node.x, grid_of("input", quantizer, unsigned=True, on_grid=True)


def state_of(value: Value, own: QonnxQuantizer, what: str, grids: KnownFormats) -> Value | None:
    """Returns an initial state for a cell that applies its own quantizer; None for zeros."""
    array = constant_array(value)
    nearest = own.rounding.value in NEAREST
    if array is not None:
        check_finite(what.removeprefix("the "), array)
        if not array.any():
            return None
        if nearest and np.array_equal(own(array), array):
            return value
        raise NotHandled(
            f"{what} is not quantized.", "constants that are not quantized values", "export zeros, or pass the states"
        )
    grid = grids.of(value, what)
    producer = value.inputs[0] if value.inputs else None
    same = grid.same_format(own)
    if same and grid.rounding is own.rounding and producer is not None and is_quant(producer):
        return producer.inputs[0]
    if same and nearest:
        return value
    action = "use a rounding to nearest" if same else "quantize it as the cell does"
    raise NotHandled(
        f"{what} would be rounded twice." if same else f"{what} has another scale or zero point.", what, action
    )
