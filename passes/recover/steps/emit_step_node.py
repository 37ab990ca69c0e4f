"""Writes the node of a recognized step, and the views between its layouts and those of the step."""

from __future__ import annotations

import shlex
from dataclasses import replace

import numpy as np

from rnnqc.errors import NotHandled
from rnnqc.ir import Constant, Graph, Model, Value, Variable, display_name, output_number
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Index, unknown
from rnnqc.passes.recover.rows.row_algebra import Atom, Floats
from rnnqc.passes.recover.rows.row_reader import RowReader
from rnnqc.passes.recover.steps.step_matcher import FoundStep
from rnnqc.passes.recover.steps.step_weights import StepNode

STAYS = (
    "export the layer as an ONNX LSTM, GRU or RNN node (torch.nn.LSTM over one element; Keras: without Masking and "
    "mask_zero=True, for sequences of one length), or let the step stay float"
)
"""Advice for a step that stays float."""


def _batch(reader: RowReader, value: Value) -> int | str | None:
    """The number of rows of a value; for a state of a loop its number in the first iteration, if its own is unknown.

    A step keeps the rows of its state, unless its input has more; `rows_differ` detects that.
    """
    shape = reader.shape(value)
    size = None if shape is None else next((d for d in shape[:-1] if d != 1), 1)
    first = reader.first.get(id(value))
    return first if isinstance(first, int) and not isinstance(size, int) else size


def rows_of_step(reader: RowReader, node: StepNode) -> list[int | str | None]:
    """Returns the row counts of the parts of a step's input and of its states; in a loop those of iteration 0."""
    values = [v for v in (*node.x, node.h, node.c) if v is not None]
    return [reader.first.get(id(v)) or _batch(reader, v) for v in values]


def _first(node: StepNode) -> Value:
    """The value that determines the number of rows of the step."""
    value = node.x[0] if node.x else node.h
    assert value is not None
    return value


def with_zeros(reader: RowReader, step: FoundStep, node: StepNode) -> StepNode:
    """Returns the node with explicit zeros as states where their rows may differ from the input's: they decide."""
    indices = reader.indices
    size = _batch(reader, _first(node))
    rows = Index(size) if isinstance(size, int) else unknown(size) if size is not None else None

    def kept(value: Value | None, atom: Atom | None) -> Value | None:
        zeros = atom.value if atom is not None else None
        if value is not None or zeros is None or reader.constants.array(zeros) is not None:
            return value
        held = indices.rows(zeros)
        return None if held is not None and held in (rows, Index(1)) else zeros

    return replace(node, h=kept(node.h, step.hidden), c=kept(node.c, step.cell))


def rows_differ(model: Model, reader: RowReader, step: FoundStep, node: StepNode) -> bool:
    """Whether the states may differ from the input in their number of rows; raises NotHandled if that is a guess."""
    values = [v for v in (*node.x, node.h, node.c) if v is not None]
    sizes = [_batch(reader, v) for v in values]
    for atom in (step.hidden, step.cell):  # zero states determine the number of rows, too
        rows = _batch(reader, atom.value) if atom is not None and atom.value is not None else None
        if sizes[0] == 1 and rows not in (1, None):
            found = f"{values[0].name!r} and {rows} rows"
            raise NotHandled("one input row is used with several rows of a state.", found, _bind(model, reader, node))
    if None not in sizes and len(set(sizes)) == 1:
        return False
    inputs = {id(v) for v in model.graph.inputs}
    for value, size in zip(values, sizes, strict=True):
        if id(value) in inputs and (size is None or size != sizes[0] or sizes[0] is None):
            raise NotHandled(
                "its input and states are not declared to have the same number of rows.",
                ", ".join(f"{v.name!r} {reader.shape(v)}" for v in values),
                _bind(model, reader, node),
            )
    if len({_batch(reader, v) for v in node.x}) > 1:
        raise NotHandled(
            "the parts of its input have different numbers of rows.", ", ".join(repr(v.name) for v in node.x)
        )
    return True


def _bind(model: Model, reader: RowReader, node: StepNode) -> str:
    """The options that bind a step to one number of rows, or may do so; "" if no open size is a dimension of inputs."""
    sizes = rows_of_step(reader, node)
    names = [n for d in dict.fromkeys(sizes) if (n := model.given_name(d))]
    size = next((d for d in sizes if isinstance(d, int)), 1)
    others = [d for d in sizes if d not in (*names, size)]
    if not names or any(isinstance(d, int) for d in others):
        return ""
    options = " ".join(f"--dim {shlex.quote(n)}={size}" for n in names)
    more = f", from which the other sizes may follow; else {STAYS}" if others else ""
    return f"{options} (or another number of rows, the streams of a call){more}"


class StepWeights:
    """Initializers of packed weights; equal ones are shared."""

    def __init__(self, model: Model, constants: Constants) -> None:
        self.model, self.constants = model, constants
        self._held: dict[object, Constant] = {}

    def stored(self, name: str, array: Floats) -> Value:
        """Returns the initializer of a matrix or vector, with a leading direction axis."""
        whole = np.ascontiguousarray(array[np.newaxis])
        key = self.constants.key(whole)
        if key not in self._held:
            self._held[key] = self.model.add_initializer(name, whole)
        return self._held[key]


def _nothing(b: Builder, reader: RowReader, node: StepNode) -> Value:
    """The input `[1,B,1]` of a step without input: zeros, with the rows of its state."""
    state, rows = _first(node), _batch(reader, _first(node))
    if isinstance(rows, int):
        return b.model.constant(np.zeros((1, rows, 1)), np.float32)
    sizes = b.op("Shape", [b.op("Reshape", [state, b.i64([1, -1, node.attributes["hidden_size"]])], "rows")], "sizes")
    shape = b.op(
        "Concat", [b.op("Slice", [sizes, b.i64([0]), b.i64([2])], "sizes.rows"), b.i64([1])], "X.shape", axis=0
    )
    return b.op("Expand", [b.model.constant(0, np.float32), shape], "X")


def emit_step_node(
    model: Model, graph: Graph, reader: RowReader, node: StepNode, weights: StepWeights, expand: bool
) -> str:
    """Writes the node of a step into `graph`, returns its name; with `expand` its states get the rows of its input."""
    anchor = node.h_next.inputs[0]
    name = model.fresh_name(f"{display_name(anchor)}.{node.op.lower()}")
    b = Builder(model, prefix=name)
    hidden = node.attributes["hidden_size"]

    def lifted(value: Value, key: str) -> Value:
        shape = reader.shape(value)
        assert shape is not None
        if len(shape) == 2:
            return b.op("Unsqueeze", [value, b.i64([0])], key)
        if len(shape) == 3 and shape[0] == 1:
            return value
        return b.op("Reshape", [value, b.i64([1, -1, shape[-1]])], key)

    parts = [lifted(v, "X" if len(node.x) == 1 else f"X.{k}") for k, v in enumerate(node.x)] or [
        _nothing(b, reader, node)
    ]
    x = parts[0] if len(parts) == 1 else b.op("Concat", parts, "X", axis=2)

    def state(value: Value | None, key: str) -> Value | None:
        if value is None:
            return None
        made = lifted(value, key)
        if not expand:
            return made
        rows = b.op("Slice", [b.op("Shape", [x], f"{key}.X_shape"), b.i64([1]), b.i64([2])], f"{key}.rows")
        size = b.op("Concat", [b.i64([1]), rows, b.i64([hidden])], f"{key}.shape", axis=0)
        return b.op("Expand", [made, size], f"{key}.rows_of_X")

    def stored(key: str, array: Floats | None) -> Value | None:
        return None if array is None else weights.stored(f"{name}/{key}", array)

    inputs = [x, stored("W", node.W), stored("R", node.R), stored("B", node.B), None, state(node.h, "initial_h")]
    if node.op == "LSTM":
        inputs += [state(node.c, "initial_c"), stored("P", node.P)]
    while inputs[-1] is None:
        inputs.pop()
    views: list[tuple[Value, Value, list[int | str | None]]] = []
    targets = [v for v in (node.h_next, node.c_next) if v is not None]
    outputs: list[Value] = []
    for target, key in zip(targets, ("Y_h", "Y_c"), strict=False):
        shape = reader.shape(target)
        assert shape is not None
        old = target.inputs[0]
        old.outputs[output_number(old, target)] = b.value(f"{key}.replaced")
        outputs.append(target if len(shape) == 3 and shape[0] == 1 else b.value(key, np.float32))
        if outputs[-1] is not target:
            views.append((outputs[-1], target, shape))
    b.add(node.op, inputs, [Variable.empty(), *outputs], name, **node.attributes).name = name
    for value, target, shape in views:
        if len(shape) == 2:
            b.add("Squeeze", [value, b.i64([0])], [target], f"{value.name.rpartition('/')[2]}.rows")
        else:
            rows = [1 if d == 1 else -1 for d in shape[:-1]]
            b.add("Reshape", [value, b.i64([*rows, hidden])], [target], f"{value.name.rpartition('/')[2]}.rows")
    model.insert_nodes(graph, anchor, b.nodes)
    return name
