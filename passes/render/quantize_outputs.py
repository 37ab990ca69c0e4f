"""Quantizes outputs of the model that are hidden or cell states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rnnqc.cells.base import Cell
from rnnqc.cells.stages import QuantizedCell, points_of
from rnnqc.errors import CompileError, Outcome, Remark, UsageError
from rnnqc.evaluation.numerics import Lossy
from rnnqc.formats.format import Format
from rnnqc.formats.quantized_outputs import OUTPUTS_KEY, described_outputs, outputs_text, read_outputs
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Model, Value, Variable, display_name, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.values.layout_ops import sources_of
from rnnqc.passes.qcdq.emit_qcdq import emit_codes, has_operators
from rnnqc.passes.qcdq.emit_rounding import emit_rounding

Source = tuple[Cell, str]
"""A cell, and the point that its states belong to."""
HIDDEN, CELL_STATE = "hidden", "cell_state"
SUPPORTED = "outputs that consist of hidden states, or of cell states, of quantized layers, moved but not changed"


class QuantizeOutputs(Pass):
    """Quantizes outputs that consist of states with one number format.

    Before: `QuantLSTMCell -> Squeeze -> y`, float

    After: `QuantLSTMCell -> Squeeze -> QuantizeLinear -> y`, int8, with its scale and zero point in the metadata

    Brevitas' layers have such outputs with `return_quant_tensor=True`. The quantized values are those that the
    recurrence reads. If states leave the cell rounded (recipe key `rounded_output`), their dequantized values equal the
    float output bit by bit.
    """

    info = PassInfo(
        name="quantize-outputs",
        summary="make quantized values of outputs that are hidden or cell states",
        numerics=Lossy(0.0),
    )

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(dict.fromkeys(names))

    def run(self, model: Model) -> PassResult:
        """Quantizes the named outputs.

        Raises:
            UsageError: The model has no such output.
            CompileError: An output is not made of states, or they have no common format.
        """
        known = {v.name: v for v in model.graph.outputs}
        formats = read_outputs(model.metadata)
        remarks: list[Remark] = []
        for name in self.names:
            if name not in known:
                raise UsageError(
                    f"Output {name!r} cannot be quantized: the model has none of this name.",
                    supported=", ".join(known),
                )
            if name in formats:
                continue
            held = _format_of(model, name, known[name])
            formats[name] = held
            _quantize(model, known[name], held)
            (reason,) = described_outputs({name: held})
            remarks.append(self.remark(Outcome.NOTE, "quantized output", "", reason))
        if remarks:
            model.metadata[OUTPUTS_KEY] = outputs_text(formats)
        return PassResult(bool(remarks), tuple(remarks), {"outputs": len(remarks)})


def _format_of(model: Model, name: str, value: Value) -> Format:
    """Returns the common format of all states in an output.

    Raises:
        CompileError: There is none.
    """
    held: dict[str, Format] = {}
    for source, found in sources_of(value, lambda v: _states(model).get(v.name)):
        if found is None:
            raise CompileError(
                f"Output {name!r} cannot be quantized: {_what(source)} is in it, which has no number format.",
                supported=SUPPORTED,
                action="leave this output float, or make the states an output of their own",
            )
        cell, point = found
        static = points_of(cell).get(point)
        path = f"{cell.name}.{point}"
        if static is None or static.static is None:
            raise CompileError(
                f"Output {name!r} cannot be quantized: {path!r} has no format with one scale.",
                supported=SUPPORTED,
                action="choose a recipe in which it has one (brevitas-int8, distiller-*, pow2-*), or give it one with "
                f"--set '*.{point}.bits=8' '*.{point}.mode=static' and --calibration DATA",
            )
        held[path] = replace(static.static, rounding=Rounding.HALF_EVEN) if _is_on_grid(cell, point) else static.static
    first, *others = held.items()
    for path, other in others:
        if other != first[1]:
            raise CompileError(
                f"Output {name!r} cannot be quantized: {first[0]!r} has {_described(first[1])}, {path!r} has "
                f"{_described(other)}.",
                supported="states of one number format",
                action=f"give them one with --set '*.{path.rpartition('.')[2]}.share=outputs' and calibration data",
            )
    return first[1]


def _is_on_grid(cell: Cell, point: str) -> bool:
    """Whether states leave the cell as multiples of their scale, so that rounding to the nearest integer is exact."""
    return point == CELL_STATE or (isinstance(cell, QuantizedCell) and cell.rounds_output)


def _states(model: Model) -> dict[str, Source]:
    """Returns the states that leave cells, by the names of values."""
    found: dict[str, Source] = {}
    for cell in model.cells.values():
        found |= {v: (cell, HIDDEN) for v in (cell.y, cell.y_h) if v is not None}
        found |= {cell.y_c: (cell, CELL_STATE)} if cell.y_c is not None else {}
    return found


def _what(value: Value) -> str:
    """Describes a value that is not a state, for messages."""
    if len(value.inputs) == 1:
        return f"what operator {value.inputs[0].op!r} (node {display_name(value.inputs[0])!r}) makes"
    return f"value {value.name!r}"


def _described(held: Format) -> str:
    return f"{held.bits} bits, scale {held.scale[0]:.6g} and zero point {held.zero_point}"


def _quantize(model: Model, real: Value, held: Format) -> None:
    """Replaces an output by its quantized values, under the same name."""
    name, shape = real.name, shape_of(real)
    real.name = model.fresh_name(f"{name}/real")
    for key, cell in model.cells.items():
        model.cells[key] = cell.renamed(name, real.name)
    made = Variable(name, dtype=held.dtype, shape=shape)
    model.hold(made)
    b = Builder(model, prefix=name)
    if has_operators(b, held):
        emit_codes(b, "quantized", real, held)
    else:
        units = b.op("Div", [real, b.f32(held.scale_array(0))], "units")
        whole = emit_rounding(b, units, held.rounding, "codes")
        shifted = b.op("Add", [whole, b.f32(held.zero_point)], "shifted") if held.zero_point else whole
        limited = b.op("Clip", [shifted, b.f32(held.minimum), b.f32(held.maximum)], "clipped")
        b.cast(limited, held.dtype, "codes")
    b.nodes[-1].outputs[0] = made
    model.graph.nodes.extend(b.nodes)
    model.graph.outputs[:] = [made if v is real else v for v in model.graph.outputs]
