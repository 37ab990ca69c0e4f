"""Models of operators that only move elements, at random."""

from __future__ import annotations

import numpy as np
import onnx
from hypothesis import strategies as st

from tests.runs.sessions import Array

SHAPES = ((2, 3, 4), (1, 6, 2), (12,), (4, 1, 3), (2, 3))


@st.composite
def random_views(draw: st.DrawFn, type_: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    """Chains and bundles of views of up to three inputs; outputs are views, or the negatives of some.

    Those of int64 also move constants, which may be operands as well.
    """
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    values = [(f"x{k}", np.zeros(s)) for k, s in enumerate(shapes)]
    inputs = [onnx.helper.make_tensor_value_info(n, type_, a.shape) for n, a in values]
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, onnx.TensorProto] = {}
    if type_ == onnx.TensorProto.INT64:
        values += [(_constant(constants, [k]), np.array([k])) for k in (0, 1, 2)]
    for _ in range(draw(st.integers(1, 8))):
        _add_view(draw, values, nodes, constants)
    made = [name for node in nodes for name in node.output] or ["x0"]
    chosen = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    given_away = [name != "x0" and draw(st.booleans()) for name in chosen]
    names = [name if leaves else f"y{k}" for k, (name, leaves) in enumerate(zip(chosen, given_away, strict=True))]
    for k, (name, leaves) in enumerate(zip(chosen, given_away, strict=True)):
        if not leaves:
            nodes.append(onnx.helper.make_node("Neg", [name], [f"y{k}"], name=f"neg{k}"))
    outputs = [onnx.helper.make_tensor_value_info(name, type_, None) for name in names]
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, list(constants.values()))
    return onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 17)])


def feeds_of_views(proto: onnx.ModelProto) -> dict[str, Array]:
    """Another number in every element of the inputs."""
    rng = np.random.default_rng(0)
    types = {i.name: i.type.tensor_type for i in proto.graph.input}
    shapes = {name: [d.dim_value for d in t.shape.dim] for name, t in types.items()}
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(t.elem_type) for name, t in types.items()}
    return {name: (1000 * rng.standard_normal(shape)).astype(dtypes[name]) for name, shape in shapes.items()}


def _constant(constants: dict[str, onnx.TensorProto], numbers: int | list[int]) -> str:
    """The name of a constant, one for equal ones."""
    array = np.asarray(numbers, np.int64)
    name = "_".join(["c", *map(str, array.shape), *map(str, array.ravel())])
    constants.setdefault(name, onnx.numpy_helper.from_array(array, name))
    return name


def _add_view(
    draw: st.DrawFn,
    values: list[tuple[str, Array]],
    nodes: list[onnx.NodeProto],
    constants: dict[str, onnx.TensorProto],
) -> None:
    """Adds an operator that moves one of the values, or some of them."""
    name, array = draw(st.sampled_from(values))
    axis = draw(st.integers(0, array.ndim - 1)) if array.ndim else 0
    op = draw(st.sampled_from(["Reshape", "Transpose", "Unsqueeze", "Slice", "Gather", "Split", "Concat"]))
    out, operands, attributes, sources = f"t{len(nodes)}", [], {}, [name]
    made: list[Array]
    if op == "Reshape":
        sizes = draw(st.sampled_from([[-1], [1, -1], [-1, 2], [-1, 3], [2, -1, 1]]))
        if array.size % abs(int(np.prod(sizes))):
            return
        operands, made = [sizes], [array.reshape(sizes)]
    elif op == "Transpose":
        if not array.ndim:
            return
        order = draw(st.permutations(range(array.ndim)))
        attributes, made = {"perm": order}, [array.transpose(order)]
    elif op == "Unsqueeze":
        operands, made = [[axis]], [np.expand_dims(array, axis)]
    elif not array.ndim or not array.size or array.ndim > 4:
        return
    elif op == "Slice":
        start, end = sorted(draw(st.lists(st.integers(0, array.shape[axis]), min_size=2, max_size=2, unique=True)))
        step = draw(st.sampled_from([1, 2]))
        operands, made = [[start], [end], [axis], [step]], [np.take(array, range(start, end, step), axis)]
    elif op == "Gather":
        where = st.integers(0, array.shape[axis] - 1)
        index = draw(st.one_of(where, st.lists(where, min_size=1, max_size=3)))
        operands, attributes, made = [index], {"axis": axis}, [np.take(array, index, axis)]
    elif op == "Split":
        if array.shape[axis] < 2:
            return
        first = draw(st.integers(1, array.shape[axis] - 1))
        operands, attributes = [[first, array.shape[axis] - first]], {"axis": axis}
        made = np.split(array, [first], axis)
    else:
        others = [n for k, n in enumerate(array.shape) if k != axis]
        fitting = [v for v in values if v[1].ndim == array.ndim and np.delete(v[1].shape, axis).tolist() == others]
        chosen = draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=3))
        sources, attributes = [n for n, _ in chosen], {"axis": axis}
        made = [np.concatenate([a for _, a in chosen], axis)]
    names = [f"{out}_{k}" for k in range(len(made))]
    given_ = [_constant(constants, o) for o in operands]
    nodes.append(onnx.helper.make_node(op, [*sources, *given_], names, name=out, **attributes))
    values += zip(names, made, strict=True)
