"""Runs a native cell step by step, and compares each step with the specification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.fixed_point_numbers import FixedPointNumbers
from rnnqc.cells.fused_nodes import CONFIGURATION, PLACES, input_names
from rnnqc.cells.stages import IntegerCell
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.scales import is_power_of_two
from rnnqc.passes.render.cell_function import DIRECTION_AXES
from rnnqc.tracing.places import Place
from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]
_CUT_ROUNDINGS = {Rounding.FLOOR.value, Rounding.CEIL.value, Rounding.TOWARD_ZERO.value}


def steps_alone(cell: IntegerCell) -> bool:
    """Whether a step can run alone: its float states must determine the quantized values that the loop carries.

    They do not in fixed-point arithmetic that truncates and whose scales are not powers of two
    (docs/quant_lstm_cell.md, *After the loop*).
    """
    numbers = cell.numbers
    if not isinstance(numbers, FixedPointNumbers) or not cell.type.cell_state:
        return True
    grids = [numbers.hidden, numbers.quantizer(cell.type, "cell_state")]
    return all(g.rounding not in _CUT_ROUNDINGS or is_power_of_two(g.scale) for g in grids)


class NativeSteps:
    """The native kernel of one cell, one step at a time.

    All steps run at once, as rows of one batch. Each starts from the reference states of the step before it, so a
    difference shows in the step that causes it and not in later ones.

    Args:
        place: The cell, fused.
        proto: The model.
        constants: Arrays of its constant inputs.
    """

    def __init__(self, place: Place, proto: onnx.ModelProto, constants: Mapping[str, Array]) -> None:
        assert place.node is not None
        cell = place.cell
        node = onnx.NodeProto()
        node.CopyFrom(place.node)
        node.overload, node.op_type = "", cell.type.fused
        kept = [a for a in node.attribute if a.name not in (CONFIGURATION, PLACES, "direction", *DIRECTION_AXES)]
        kept = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del node.attribute[:], node.input[:], node.output[:]
        node.attribute.extend(kept)
        names = input_names(cell.type)
        states = ["initial_h", "initial_c"] if cell.type.cell_state else ["initial_h"]
        given = {*constants, "X", "X_scale", *states} - ({"X_scale"} if "X_scale" not in place.inputs else set())
        last = max(k for k, n in enumerate(names) if n in given)
        node.input.extend(n if n in given else "" for n in names[: last + 1])
        self._outputs = ["Y_h", "Y_c"][: len(states)]
        node.output.extend(["", *self._outputs])
        self._states = states
        graph = onnx.GraphProto(name="step", node=[node])
        graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in constants.items() if n in names)
        self._graph, self._proto = graph, proto
        self._session: Any = None

    def run(self, x: Mapping[str, Array], states: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one step on many rows.

        Args:
            x: `X` `[N,I]` and, if the operator takes them, `X_scale` `[N,1]`.
            states: `[N,H]` float32, by the names of the operator's inputs.

        Returns:
            `Y_h` and, of an LSTM, `Y_c`.
        """
        given = {**{n: v[None] for n, v in x.items()}, **{n: np.asarray(states[n], np.float32) for n in self._states}}
        if self._session is None:
            for name, array in given.items():
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                self._graph.input.append(onnx.helper.make_tensor_value_info(name, kind, [None] * array.ndim))
            shape = [None, None]
            self._graph.output.extend(
                onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in self._outputs
            )
            model = onnx.ModelProto(ir_version=self._proto.ir_version, graph=self._graph)
            model.opset_import.extend(self._proto.opset_import)
            self._session = make_session(model, native=True)
        return run_session(self._session, given)

    def first_difference(
        self, x: Mapping[str, Array], tensors: Mapping[str, Tensor], states: Mapping[str, Array], backwards: bool
    ) -> tuple[int, str] | None:
        """Returns the first step, in loop order, whose result differs from the specification, and the tensor.

        Args:
            x: The operator's inputs `X` `[n,B,I]` and `X_scale` of these steps, in the order of their tensors.
            tensors: The tensors of the specification.
            states: The states `[B,H]` before the first step of the loop.
            backwards: Whether the loop goes from the last step to the first.
        """
        real = self._floats(tensors)
        entering = {}
        for name, values in real.items():
            begin = np.asarray(states[name], np.float32)[None]
            entering[name] = np.concatenate([values[1:], begin] if backwards else [begin, values[:-1]])
        count, batch = x["X"].shape[:2]
        flat = {n: v.reshape(count * batch, -1) for n, v in entering.items()}
        results = self.run({n: v.reshape(count * batch, -1) for n, v in x.items()}, flat)
        for t in reversed(range(count)) if backwards else range(count):
            for output, name, point in zip(self._outputs, self._states, ("hidden.value", "cell_state"), strict=False):
                got = results[output].reshape(count, batch, -1)[t] + np.float32(0)
                if got.tobytes() != real[name][t].tobytes():
                    return t, point
        return None

    def left(self, tensors: Mapping[str, Tensor], backwards: bool) -> dict[str, Array]:
        """Returns the states after these steps, by the names of the operator's inputs."""
        return {n: v[0 if backwards else -1] for n, v in self._floats(tensors).items()}

    def _floats(self, tensors: Mapping[str, Tensor]) -> dict[str, Array]:
        """Returns the states after each step as the operator outputs them: float32, with +0 for -0."""
        rounded = any(a.name == "rounded_output" and a.i for a in self._graph.node[0].attribute)
        made = {"initial_h": tensors["hidden" if rounded else "hidden.value"].values}
        if "initial_c" in self._states:
            made["initial_c"] = tensors["cell_state"].values
        return {n: np.asarray(v, np.float32) + np.float32(0) for n, v in made.items()}
