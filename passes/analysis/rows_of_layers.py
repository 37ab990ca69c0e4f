"""Analysis: dimensions that must be equal for a recurrent layer, the rows of its input and of its states."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rnnqc.data.binding import bind_dimensions, bound_model
from rnnqc.errors import CompileError, located
from rnnqc.ir import Model, Node, Value, attribute, input_or_none, shape_of
from rnnqc.passes.base import Pass
from rnnqc.passes.graph.loops.loop_states import VIEWS
from rnnqc.passes.graph.nodes.lstm_node import INITIAL_C, INITIAL_H, X, is_recurrent
from rnnqc.passes.manager import PassManager
from rnnqc.passes.recover.recognize_steps import RecognizeSteps
from rnnqc.passes.recover.widen_steps import WidenSteps
from rnnqc.proto.given import Given

_MARK = 1_000_003
"""A size that stands for a dimension of unknown size, so that shape inference shows where it goes."""

Size = int | str | None


def dimensions_to_bind(
    source: Given, dims: Mapping[str, int], bind: Mapping[str, Any], normal_form: Sequence[Pass]
) -> dict[str, int]:
    """Returns the sizes bound by name, and those of the dimensions that must be equal to these.

    Args:
        source: The model.
        dims: The bound sizes.
        bind: The bound values of inputs.
        normal_form: Passes that recover its layers.

    Raises:
        CompileError: Dimensions of a layer are bound to unequal sizes, or a name is not a dimension or input.
    """
    if not dims:
        return {}
    bound_model(source, dims, bind)
    model = Model.load(source)
    with located(model.source):
        return rows_bound(model, dims, normal_form)


def rows_bound(model: Model, dims: Mapping[str, int], normal_form: Sequence[Pass]) -> dict[str, int]:
    """Returns sizes by dimension name: the bound ones, and the same for every dimension that must be equal to one.

    Exporters name the rows of each input separately: for example unk__59 and unk__60 by Keras.

    Args:
        model: The model, its dimensions unbound. It is modified and cannot be used afterwards.
        dims: The bound sizes.
        normal_form: Passes that recover its layers.

    Raises:
        CompileError: Dimensions that must be equal are bound to unequal sizes.
    """
    PassManager(normal_form).run(model)
    model.infer_shapes()
    steps = [rows for p in normal_form if isinstance(p, RecognizeSteps | WidenSteps) for rows in p.rows]
    known = _open_dimensions(model)
    firsts = [rows[0] for rows in (*_rows_of_layers(model), *steps)]
    bound = dict(dims)
    done: set[str] = set()
    for number, name in enumerate([d for d in firsts if isinstance(d, str) and d in known] + list(dims)):
        if name in done:
            continue
        equal = _equal_to(model, name, _MARK + number, steps)
        done |= equal
        given = [n for n in dims if n in equal]
        if given:
            _check(given, dims)
            bound |= dict.fromkeys(sorted(equal - {*given}), dims[given[0]])
    return bound


def _open_dimensions(model: Model) -> set[str]:
    return {d for v in model.graph.inputs for d in shape_of(v) or () if isinstance(d, str)}


def _check(given: Sequence[str], dims: Mapping[str, int]) -> None:
    """Raises CompileError if dimensions that must be equal are bound to unequal sizes."""
    if len({dims[n] for n in given}) > 1:
        raise CompileError(
            f"{_options({n: dims[n] for n in given})}: a recurrent layer needs as many rows of input as of states.",
            supported="one number of rows for a layer",
            action=f"for example {_options(dict.fromkeys(given, dims[given[0]]))}",
        )


def _options(dims: Mapping[str, int]) -> str:
    return " ".join(f"--dim {shlex.quote(n)}={size}" for n, size in dims.items())


def _equal_to(model: Model, name: str, mark: int, steps: Sequence[Sequence[Size]]) -> set[str]:
    """The names of dimensions that must be equal to `name`; the model gets the size `mark` for them."""
    found, new = set[str](), {name}
    while new:
        bind_dimensions(model, dict.fromkeys(sorted(new), mark))
        found |= new
        model.infer_shapes()
        known = _open_dimensions(model)
        groups = [*_rows_of_layers(model), *steps]
        new = {d for g in groups if mark in g or found & set(g) for d in g if isinstance(d, str) and d in known}
    return found


def _rows_of_layers(model: Model) -> Iterator[list[Size]]:
    """Yields for each layer the row counts of its input and states."""
    for node in (n for g in model.graphs() for n in g.nodes if is_recurrent(n)):
        batch = 0 if attribute(node, "layout", 0) else 1
        shape = shape_of(node.inputs[X])
        sizes = [shape[batch] if shape is not None and len(shape) == 3 else None]
        yield [*sizes, *(_rows_of_state(node, k) for k in (INITIAL_H, INITIAL_C))]


def _rows_of_state(node: Node, k: int) -> Size:
    """The rows of an initial state, before rnnqc has repeated them for the rows of the input."""
    value: Value | None = input_or_none(node, k)
    while value is not None and len(value.inputs) == 1 and value.inputs[0].op in (*VIEWS, "Expand"):
        value = input_or_none(value.inputs[0], 0)
    shape = shape_of(value)
    if shape is None or len(shape) < 2 or shape[-1] != attribute(node, "hidden_size", shape[-1]):
        return None
    rows = [d for d in shape[:-1] if d != 1]
    return rows[0] if len(rows) == 1 else None
