"""The expected int8 values and scales of this family's passes, computed independently from the float weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.ir import Model, Node, Value, constant_array, display_name
from rnnqc.passes.analysis.rest_weights import RestWeight
from rnnqc.passes.analysis.weight_groups import groups_of
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.graph.values.constant_expressions import Constants

Array = npt.NDArray[Any]


def expected_scale(array: Array, axis: int) -> Array:
    """Returns float32 scales `[1,...,n,...,1]` that map the largest magnitude of each channel to 127."""
    others = tuple(k for k in range(array.ndim) if k != axis)
    largest = np.abs(array.astype(np.float64)).max(axis=others, keepdims=True)
    return np.where(largest < 2.0**-100, 1.0, largest / 127.0).astype(np.float32)


def expected_row_scale(array: Array) -> Array:
    """Returns scales `[n,1,...]` of gathered rows: the smallest float16 numbers for which no entry exceeds 127.

    They are float32 if one of them is not a normal float16 number with all 11 bits.
    """
    largest = np.abs(array.astype(np.float64)).max(axis=tuple(range(1, array.ndim)), keepdims=True)
    exact = np.where(largest < 2.0**-100, 1.0, largest / 127.0)
    if exact.min() < 2.0**-14 or exact.max() > 65504.0:
        return expected_scale(array, 0)
    unit = np.ldexp(1.0, np.frexp(exact)[1] - 11)
    return np.asarray(np.ceil(exact / unit) * unit).astype(np.float16)


def expected_groups(array: Array, axis: int) -> Array:
    """Returns the dequantized weight, quantized in groups of about eight weights of a channel.

    The scale of a group has the least squared error (the first of equals) of these candidates: 1/127 of the largest
    weight of the group, of the channel or of all, the power of two from the first, and the first times 257/256 to
    287/256; each rounded up to float16.
    """
    groups = groups_of(array.shape, axis)
    cut = array.reshape(groups.shape)
    magnitudes = np.abs(cut.astype(np.float64))
    channel = tuple(k for k in range(cut.ndim) if k != groups.channel)
    largest = [magnitudes.max(axis=axes, keepdims=True) for axes in (groups.axes, channel, None)]
    exact = [np.where(m < 2.0**-100, 1.0, m / 127.0) + np.zeros(groups.scale_shape) for m in largest]
    exact += [2.0 ** np.ceil(np.log2(exact[0])), *(exact[0] * k / 256 for k in range(257, 288))]
    is_half = exact[1].min() >= 2.0**-20 and max(e.max() for e in exact) <= 65504.0
    made, least = np.zeros_like(cut), np.full(groups.scale_shape, np.inf)
    for wanted in exact:
        unit = np.ldexp(1.0, np.maximum(np.frexp(wanted)[1] - 11, -24))  # float16 has 11 bits, down to 2^-24
        scale = (np.ceil(wanted / unit) * unit if is_half else wanted).astype(np.float32)
        floats = expected_values(cut, scale).astype(np.float32) * scale
        error = np.square(floats - cut, dtype=np.float64).sum(axis=groups.axes, keepdims=True)
        made, least = np.where(error < least, floats, made), np.minimum(error, least)
    return np.asarray(made.reshape(array.shape))


def expected_values(array: Array, scale: Array) -> Array:
    """Returns multiples of the scale, rounded half to even."""
    return np.clip(np.rint(array / scale), -127, 127)


class EmbeddingsCheck(ConstantCheck):
    """Checks the int8 rows that every Gather reads, and their scales."""

    def __init__(self, weights: Iterable[RestWeight]) -> None:
        self._rows: list[tuple[str, Array, bool]] = []
        for weight in weights:
            array = constant_array(weight.value)
            for use in weight.row_readers if not weight.refusal[0] else ():
                if array is not None:
                    self._rows.append((use.path, array, all(u.reads_rows for u in weight.uses)))

    def findings(self, after: Model) -> Findings:
        """Compares every entry of tables and scales."""
        found, nodes = Findings(), _nodes(after)
        for path, array, rows_only in self._rows:
            gather = nodes[path]
            scale = expected_row_scale(array) if rows_only else expected_scale(array, 0)
            found.input(f"int8 rows of {path}", gather, 0, expected_values(array, scale.astype(np.float32)))
            (cast,) = gather.outputs[0].outputs
            (product,) = cast.outputs[0].outputs
            floats = product.inputs[1].inputs[0].inputs[0]
            found.input(f"scales of {path}", floats.inputs[0], 0, scale)
        return found


class StoredWeightsCheck(ConstantCheck):
    """Checks the float weights of every operator that reads them without a view in between.

    Args:
        weights: The weights before the pass.
        is_shared: Whether a weight is stored as int8 rows already.
        is_half: Whether a weight is stored as float16.
        compensated: Ids of the values of weights whose int8 values need not be the nearest ones; they are skipped.
    """

    def __init__(
        self,
        weights: Iterable[RestWeight],
        is_shared: Callable[[RestWeight], bool],
        is_half: Callable[[RestWeight], bool],
        compensated: Collection[int] = (),
    ) -> None:
        self._weights: list[tuple[str, int, Array]] = []
        self._passed_over: list[str] = []
        for weight in weights:
            array = constant_array(weight.value)
            uses = [u for u in weight.uses if not u.views and not weight.refusal[0]]
            if array is None or not uses:
                continue
            if is_shared(weight):
                wanted = _of_rows(array, weight.axis)
            elif is_half(weight):
                wanted = array.astype(np.float16).astype(np.float32)
            elif id(weight.value) in compensated:
                self._passed_over += [f"weight of {u.path}, compensated" for u in uses]
                continue
            else:
                wanted = expected_groups(array, weight.axis)
            self._weights += [(u.path, u.operand, wanted) for u in uses]

    def findings(self, after: Model) -> Findings:
        """Compares every entry of the weights computed from the stored constants."""
        found, nodes, constants = Findings(), _nodes(after), Constants(after)
        found.passed_over += self._passed_over
        for path, operand, wanted in self._weights:
            value: Value = nodes[path].inputs[operand]
            found.array(f"weight of {path}", constants.array(value), wanted, node=path, constant=value.name)
        return found


def _of_rows(array: Array, axis: int) -> Array:
    scale = expected_scale(array, axis)
    return np.asarray(expected_values(array, scale).astype(np.float32) * scale)


def _nodes(model: Model) -> dict[str, Node]:
    return {f"{path}{display_name(n)}": n for path, graph in model.paths() for n in graph.nodes}
