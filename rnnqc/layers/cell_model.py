"""Models of one step of a recurrent cell: identifies the input x, and the outputs that become states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from rnnqc.data.feeds import true_inputs
from rnnqc.data.state_pairs import state_pairs
from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import reads
from rnnqc.proto.shape_inference import infer_shapes

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
_MOST_INPUTS = 8
Values = Sequence[onnx.ValueInfoProto]


@dataclass(frozen=True)
class CellModel:
    """A model of one step.

    Attributes:
        proto: The model.
        x: Its input other than the states.
        states: For each state `[B,H]` the input before and the output after the step.
        widths: H of each state.
        steps: The other outputs, one value for each step.
    """

    proto: onnx.ModelProto
    x: onnx.ValueInfoProto
    states: Sequence[tuple[onnx.ValueInfoProto, onnx.ValueInfoProto]]
    widths: Sequence[int]
    steps: Values


def read_cell(proto: onnx.ModelProto, state: Mapping[str, str] | Iterable[str] | None) -> CellModel:
    """Finds the states of a cell.

    Args:
        proto: A model of one step.
        state: For each input that is a state the output that becomes it; by default the inputs after the first are the
            states, and the first outputs are their next values, in order.

    Raises:
        CompileError: It is not a cell: too few inputs or outputs, states of unknown width, or of another shape after
            the step.
        UsageError: `state` names no input or output of it.
    """
    inputs, outputs = true_inputs(proto), list(proto.graph.output)
    pairs = state_pairs(state, proto) if state else _pairs_in_order(inputs, outputs)
    named = {v.name: v for v in [*inputs, *outputs]}
    others = [i for i in inputs if i.name not in pairs]
    if len(others) > 1:
        others = [i for i in others if i.name in _read(proto)]
    if len(others) != 1:
        raise CompileError(
            f"{len(others)} inputs are no states: {[i.name for i in others]}.",
            supported="a cell with one input x besides its states",
            action="name the states (--state IN:OUT), and make the rest initializers",
        )
    if len(set(pairs.values())) < len(pairs):
        raise CompileError(f"states {pairs} take the same output.", supported="an output for each state")
    found = _inferred_outputs(proto)
    widths = [_width(named[before], found[after]) for before, after in pairs.items()]
    steps = [o for o in outputs if o.name not in set(pairs.values())]
    return CellModel(proto, others[0], [(named[i], named[o]) for i, o in pairs.items()], widths, steps)


def fitting_states(proto: onnx.ModelProto) -> Iterator[dict[str, str]]:
    """Yields, for each input that may be x, states that make the model a cell.

    Yields:
        For each other input, by name, the first unused output of its shape.
    """
    inputs, read = true_inputs(proto), _read(proto)
    if not 2 <= len(inputs) <= _MOST_INPUTS:
        return
    outputs = list(_inferred_outputs(proto).values())
    for x in inputs:
        pairs = _pairs_by_shape([i for i in inputs if i is not x and i.name in read], outputs)
        if pairs:
            yield pairs


def _read(proto: onnx.ModelProto) -> set[str]:
    """Returns values with readers; torch's dynamo exporter keeps unused inputs (the length of one step)."""
    return {o.name for o in proto.graph.output}.union(*(reads(n) for n in proto.graph.node))


def _pairs_in_order(inputs: Values, outputs: Values) -> dict[str, str]:
    count = len(inputs) - 1
    if count < 1 or len(outputs) < count:
        raise CompileError(
            f"{len(inputs)} input(s) and {len(outputs)} output(s).",
            supported="inputs x, h (and more states), outputs h (and the other states) after the step",
            action="export one step of the cell, or name its states (--state IN:OUT)",
        )
    return {i.name: o.name for i, o in zip(inputs[1:], outputs, strict=False)}


def _pairs_by_shape(inputs: Values, outputs: Values) -> dict[str, str]:
    """Pairs each input with an output of its shape; empty if one has none."""
    pairs: dict[str, str] = {}
    for before in inputs:
        for after in outputs:
            if after.name not in pairs.values() and _may_become(before, after):
                pairs[before.name] = after.name
                break
        else:
            return {}
    return pairs


def _may_become(before: onnx.ValueInfoProto, after: onnx.ValueInfoProto) -> bool:
    try:
        _width(before, after)
    except CompileError:
        return False
    return True


def _inferred_outputs(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Returns the outputs with shapes inferred from the inputs; with declared ones if those contradict each other."""
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        proto = infer_shapes(proto)
    return {o.name: o for o in proto.graph.output}


def _width(before: onnx.ValueInfoProto, after: onnx.ValueInfoProto) -> int:
    """Returns the width H of a state `[B,H]`, an input.

    Raises:
        CompileError: It has no such shape, or its next value `after` has another shape or width.
    """
    kind, dims = before.type.tensor_type.elem_type, before.type.tensor_type.shape.dim
    if kind not in _FLOATS or len(dims) != 2 or dims[1].dim_value <= 0:
        shown = [d.dim_value or d.dim_param or "?" for d in dims]
        found = f"{_type_text(before)} of shape {shown}" if kind else _type_text(before)
        raise CompileError(
            f"state {before.name!r} is {found}.",
            supported="float states [B, H] with a known H",
            action="export the cell with states of rank 2; where it needs others, it can Unsqueeze and Squeeze them",
        )
    other = after.type.tensor_type
    if other.elem_type != kind:
        raise CompileError(
            f"state {before.name!r} is {_type_text(before)}, and {after.name!r} {_type_text(after)}.",
            supported="states that keep their type",
            action="name the states and what becomes of them (--state IN:OUT)",
        )
    if other.HasField("shape"):
        width = other.shape.dim[1].dim_value if len(other.shape.dim) == 2 else 0
        if len(other.shape.dim) != 2 or width not in (0, dims[1].dim_value):
            has = f"{width} after the step" if width else f"has {len(other.shape.dim)} axes after the step"
            raise CompileError(
                f"state {before.name!r} has {dims[1].dim_value} units, and {after.name!r} {has}.",
                supported="states that keep their shape",
                action="name the states and what becomes of them (--state IN:OUT)",
            )
    return int(dims[1].dim_value)


def _type_text(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    return helper.tensor_dtype_to_string(kind) if kind else "no tensor"
