"""Values inside a cell as standard operators compute them: of its form integer with the loop unrolled, step by step.

An account of a cell's tensors that knows nothing of the numpy references: what `rnnqc dump` records there has to be
what the nodes of a lowered model compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import rnnqc
from rnnqc.cells.types import CELL_TYPES
from rnnqc.passes.graph.point_names import alias
from rnnqc.tracing.tensors import Tensor
from tests.pages.dumped import Steps
from tests.runs.sessions import options, run

Array = npt.NDArray[Any]


def unrolled_values(model: onnx.ModelProto, feeds: Mapping[str, Array], cell: str) -> dict[str, dict[int, Array]]:
    """By name without path, the values of each step that computes one; steps are in the order of the loop."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    names = [o for n in model.graph.node for o in n.output if o.startswith(f"{cell}/step_")]
    exposed.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    made = run(rnnqc.session(exposed, native=False, options=options("ORT_DISABLE_ALL", 1)), dict(feeds))
    values: dict[str, dict[int, Array]] = {}
    for name in names:
        plain, step = alias(f"/{name.removeprefix(f'{cell}/')}")
        values.setdefault(plain[1:].rpartition("/")[2], {}).setdefault(step, made[name])
    return values


def expected_values(op: str, steps: Steps) -> Iterator[tuple[str, Array]]:
    """The values of the nodes, by name, that follow from the tensors `[T,B,K]`."""

    def whole(tensor: Tensor) -> Array:
        assert tensor.codes is not None and tensor.zero_point is not None
        return tensor.codes.astype(np.int64) - tensor.zero_point

    gates = CELL_TYPES[op].gates
    joint = gates[:2] if op == "GRU" else gates
    for name, tensor in steps.items():
        if tensor.codes is not None:
            yield f"{name}.multiples", whole(tensor)
        if name.endswith(".product"):
            yield name, whole(tensor)
    for name in ("cell_state.kept", "cell_state.added", "hidden_state.kept", "hidden_state.added"):
        if name in steps and steps[name].codes is None:
            state = steps[name.partition(".")[0]]  # nodes compute in units of a state that has codes, powers of two
            yield name, steps[name].values / (np.float32(1) if state.scale is None else state.scale)
    if "hidden_state" in steps and steps["hidden_state"].codes is None:
        yield "hidden_state.sum", steps["hidden_state"].values
    if op == "LSTM":
        yield "hidden.value", steps["hidden.value"].values
        yield "hidden.squashed.values", steps["hidden.activation"].values
        if steps["cell_state"].codes is not None:
            yield "cell_state.rounded", whole(steps["cell_state"])
    for together, part in (("preactivation", "preactivation"), ("gates.values", "activation")):
        held = [steps.get(f"{g}.{part}") for g in joint]
        # Gate f = 1 - i has no pre-activation, and its look-up is not used.
        if all(t is not None for t in held) and all(f"{g}.preactivation" in steps for g in joint):
            yield together, np.concatenate([t.values for t in held if t is not None], -1)
    for together, part in (("preactivation.multiples", "acc"), ("hidden_product.multiples", "hidden_product")):
        held = [steps.get(f"{g}.{part}") for g in joint]
        if all(t is not None and t.codes is not None for t in held):
            yield together, np.concatenate([whole(t) for t in held if t is not None], -1)
    for gate in gates:
        for name, part in (("product", "preactivation"), ("sum", "preactivation"), ("values", "activation")):
            if f"{gate}.{part}" in steps and (gate, name) != ("cell_gate", "values"):  # may be in units of the state
                yield f"{gate}.{name}", steps[f"{gate}.{part}"].values
    if "reset.hidden.value" in steps:
        yield "reset.hidden", steps["reset.hidden.value"].values


def assert_equals_nodes(op: str, steps: Steps, values: Mapping[str, Mapping[int, Array]], reverse: bool) -> set[str]:
    """Compares the tensors of a cell with the values of its nodes; the names of what was compared."""
    compared = set()
    # With peepholes these are the parts of sums.
    parts = [n.removesuffix(".sum") for n in values if n.endswith("_gate.sum")]
    left_out = {*(f"{gate}.product" for gate in parts), *(["preactivation"] if parts else [])}
    if "cell_state.multiples" in values:
        left_out.add("cell_state.rounded")  # before it is limited
    for name, array in expected_values(op, steps):
        for step, value in ({} if name in left_out else values.get(name, {})).items():
            expected = array[len(array) - 1 - step if reverse else step]
            if value.size != expected.size:  # products of 16-bit codes, in two parts
                continue
            found = value.reshape(expected.shape).astype(expected.dtype)
            # The cell gate, the last one, may be in units of the cell state.
            width = 3 * expected.shape[-1] // 4 if (op, name) == ("LSTM", "gates.values") else None
            assert np.array_equal(expected[..., :width], found[..., :width]), f"{name}, step {step}"
            compared.add(name)
    return compared
