"""Stores the weights of recurrent nodes in few bits and leaves the arithmetic to ONNX's float operators."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.forms import ORT, ORT_DOMAIN, WEIGHT_ONLY
from rnnqc.cells.types import CELL_TYPES
from rnnqc.errors import CompileError, NotHandled, Outcome, Remark, UsageError
from rnnqc.evaluation.numerics import Lossy
from rnnqc.formats.point_format import PointFormat
from rnnqc.ir import (
    Graph,
    Model,
    Node,
    attribute,
    constant_array,
    display_name,
    graph_info,
    info,
    input_or_none,
    safe_name,
)
from rnnqc.passes.analysis.rest_weights import rest_points
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.formats.cut_weights import cut_weights
from rnnqc.passes.formats.override_effects import Resolution, check_overrides, effects_of_overrides, scales_alone
from rnnqc.passes.formats.quantized_parameters import MULTIPLIED, weight_codes
from rnnqc.passes.formats.trained_weights import Given, quantized_again
from rnnqc.passes.formats.weight_formats import weight_format
from rnnqc.passes.graph.nodes.listed_weights import STORED_COUNT, TAKE_OFF, found_listed, unlist_weights
from rnnqc.passes.graph.nodes.lstm_node import (
    DIRECTIONS,
    INPUT_NAMES,
    WEIGHTS_TAG,
    B,
    P,
    R,
    W,
    check_finite,
    check_float32,
    constant_weight,
    fail,
    is_recurrent,
)
from rnnqc.passes.invariants import Property
from rnnqc.passes.qcdq.insert_qcdq import USUAL_BITS
from rnnqc.passes.weight_only.check_quantize_weights import QuantizeWeightsCheck
from rnnqc.passes.weight_only.emit_weights import WeightMatrix, format_of, is_float16, store_weights
from rnnqc.recipes.keys import Settings
from rnnqc.recipes.recipe import Recipe

LARGEST_BITS = 8
_OTHERS = "use form fused with the native library, or recipe weight-only-int8 for a smaller file at the speed of float"
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class _Use:
    """A node with weights to store: its path, the names of its directions' cells, and W and R of each."""

    path: str
    node: Node
    cells: list[str]
    matrices: dict[int, list[WeightMatrix | None]]


class QuantizeWeights(Pass):
    """Replaces W and R of LSTM, GRU and RNN nodes by constants of few bits that standard operators dequantize.

    Before: `LSTM(X, W, R, B, ...)`; after, for each direction of W and R, `[rows,K]`:

    1. 5 to 8 bits: `DequantizeLinear(quantized values int8 [1,rows,K], scale, zero_point, axis=1)`.
    2. Up to 4 bits, two quantized values to a byte: `Mod, BitShift, Concat -> DequantizeLinear(zero_point 8)`.
       Operator set 21 has a type INT4, but onnxruntime unpacks it five times slower, again in every run.
    3. `store = "float16"`: `Cast(float16 -> float)`.

    A Concat joins two directions. B, P and all arithmetic stay float: the result is that of the float model with the
    dequantized weights. onnxruntime keeps a DequantizeLinear of constants, and repeats it in every run, unless the
    session option `session.disable_quant_qdq` is "1".

    * Equal weights of several nodes are stored once, in the graph that has them.
    * With second moments of the inputs, weights are compensated (see `rnnqc.formats.compensation`).
    * A node with weights that are not constant, not float32 or not finite stays, with a remark.
    """

    info = PassInfo(
        name="quantize-weights",
        summary="store recurrent weights in few bits, compute in float",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(
        self,
        recipe: Recipe,
        moments: Mapping[str, npt.NDArray[Any]] | None = None,
        operators: Collection[str] | None = None,
    ) -> None:
        """Creates a pass with the rules of `recipe` for `<cell>.W.weight` and `<cell>.R.weight`.

        Args:
            recipe: Rules with bits "none" leave a matrix float.
            moments: Second moments `[K,K]` by name of a quantization point, `<cell>.input` and `<cell>.hidden`.
            operators: Operators whose weights are stored, if a later pass only uses these; all by default.
        """
        self.recipe = recipe
        self.moments = moments or {}
        self.operators = CELL_TYPES if operators is None else operators

    def run(self, model: Model) -> PassResult:
        """Stores the weights of every recurrent node of every graph."""
        remarks, uses, weights = self._found(model)
        names = [name for use in uses for name in use.cells]
        if names:
            self._check_overrides(names, rest_points(model, self.recipe))
            self._check_moments(names)
        effects = effects_of_overrides(self.recipe, lambda r: self._resolution(r, weights), bool(self.moments))
        for use in uses:
            remarks += self._stored(model, use)
        count = sum(WEIGHTS_TAG in info(use.node).metadata for use in uses)
        held = [m for use in uses for matrices in use.matrices.values() for m in matrices if m]
        usual = all(m.settings["bits"] >= USUAL_BITS for m in held if not is_float16(m.settings))
        numerics = Lossy(10.0) if usual else None
        return PassResult(count > 0, tuple(remarks), {"nodes": count}, numerics, effects=effects)

    def _found(self, model: Model) -> tuple[list[Remark], list[_Use], dict[str, tuple[npt.NDArray[np.float32], int]]]:
        """Nodes that stay, with remarks; the others; and their weights `[K,rows]` with their numbers of gates."""
        remarks: list[Remark] = []
        homes = {id(c): g for g in model.graphs() for c in graph_info(g).initializers.values()}
        homes |= {id(v): g for g in model.graphs() for n in g.nodes if n.op == "Constant" for v in n.outputs}
        shared: dict[Any, WeightMatrix] = {}
        uses: list[_Use] = []
        weights: dict[str, tuple[npt.NDArray[np.float32], int]] = {}
        for path, graph in list(model.paths()):
            for node in graph.nodes:
                if not is_recurrent(node) or _is_done(node):
                    continue
                if node.op not in self.operators:
                    name, known = f"{path}{display_name(node)}", ", ".join(self.operators)
                    why = (f"onnxruntime has quantized arithmetic for {known} alone.", f"operator {node.op}", _OTHERS)
                    remarks.append(self.remark(Outcome.FLOAT, name, node.op, *why))
                    continue
                try:
                    arrays = {k: _weight(node, k) for k in (W, R)}
                    cells = _cells(model, node)
                    used = {
                        k: [self._matrix(shared, homes, node, k, d, c, arrays[k]) for d, c in enumerate(cells)]
                        for k in arrays
                    }
                except NotHandled as refusal:
                    remarks.append(self.refused(Outcome.FLOAT, f"{path}{display_name(node)}", node.op, refusal))
                    continue
                for direction, cell in enumerate(cells):
                    gates = len(CELL_TYPES[node.op].gates)
                    weights |= {f"{cell}.{INPUT_NAMES[k]}.weight": (a[direction].T, gates) for k, a in arrays.items()}
                uses.append(_Use(f"{path}{display_name(node)}", node, cells, used))
        return remarks, uses, weights

    def _stored(self, model: Model, use: _Use) -> list[Remark]:
        """Stores the weights of one node."""
        path, node, used = use.path, use.node, use.matrices
        if not any(m for matrices in used.values() for m in matrices):
            reason, found = "the recipe quantizes nothing in it.", "bits = none for W and R"
            action = "choose another recipe, or give points bits with --set"
            return [self.remark(Outcome.FLOAT, path, node.op, reason, found, action)]
        listed = unlist_weights(model, node)
        given = list(self._given(use))
        told = {Outcome.NOTE: quantized_again(given), Outcome.WARNING: cut_weights(given)}
        record: dict[str, Any] = {"bytes": 0, "float_bytes": sum(_size(node, k) for k in (B, P))}
        for k, key in ((W, "W"), (R, "R")):
            record[key] = [format_of(m) for m in used[k]]
            if not any(used[k]):
                record["float_bytes"] += _size(node, k)
            else:
                store_weights(model, node, k, used[k])
                for matrix in (m for m in used[k] if m and not m.counted):
                    record["bytes"] += matrix.size
                    matrix.counted = True
        info(node).metadata[WEIGHTS_TAG] = json.dumps(record, sort_keys=True)
        remarks = [self.remark(Outcome.NOTE, path, node.op, f"weights stored in {record['bytes']} bytes.")]
        if listed:
            found = found_listed(listed)
            remarks.append(self.remark(Outcome.NOTE, path, node.op, STORED_COUNT, found, TAKE_OFF))
        return remarks + [self.remark(kind, path, node.op, *why) for kind, why in told.items() if why is not None]

    def _given(self, use: _Use) -> Iterator[Given]:
        """The weights of a node that are quantized to integers."""
        for matrix in (m for matrices in use.matrices.values() for m in matrices if m and not is_float16(m.settings)):
            array = matrix.array
            held = weight_format(matrix.settings, array, np.ones(array.shape[1]), matrix.name, matrix.gates)
            yield matrix.name, held, array, partial(self._codes, matrix.name, held, array)

    def _resolution(self, recipe: Recipe, weights: Mapping[str, tuple[npt.NDArray[np.float32], int]]) -> Resolution:
        """Resolves a recipe for weights `[K,rows]` with their numbers of gates."""
        settings = {point: recipe.settings(point) for point in weights}
        formats: dict[str, Any] = {}
        for point, (array, gates) in weights.items():
            s = settings[point]
            if is_float16(s):
                formats[point] = s["store"]
                continue
            if s.get("bits"):
                _check_settings(s, point)
            formats[point] = weight_format(s, array, np.ones(array.shape[1]), point, gates)
        cells: dict[str, list[str]] = {}
        for point in weights:
            cells.setdefault(point.removesuffix(".weight").rpartition(".")[0], []).append(point)

        def written(points: Sequence[str]) -> Iterator[Any]:
            yield [scales_alone(formats[p]) for p in points]
            yield [self._codes(p, formats[p], weights[p][0]) for p in points]

        return Resolution(settings, formats, written={c: partial(written, points) for c, points in cells.items()})

    def _codes(self, point: str, held: Any, array: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Weights as stored; float ones unchanged."""
        if not isinstance(held, PointFormat) or held.is_float:
            return array
        cell, _, matrix = point.removesuffix(".weight").rpartition(".")
        return weight_codes(held, array, self.moments.get(f"{cell}.{MULTIPLIED[matrix]}"))

    def constant_check(self, model: Model) -> ConstantCheck:
        """Derives the dequantized weights from the recipe and the original weights."""
        return QuantizeWeightsCheck(model, self.recipe, self.moments)

    def _check_moments(self, cells: Sequence[str]) -> None:
        if self.moments and not any(f"{c}.{v}" in self.moments for c in cells for v in ("input", "hidden")):
            seen = sorted({name.rpartition(".")[0] for name in self.moments})
            raise UsageError(
                f"The statistics say nothing about cell {cells[0]!r}; cells: {', '.join(seen)}.",
                supported="statistics of the same model",
                action="calibrate this model, or leave the statistics out",
            )

    def _check_overrides(self, cells: Sequence[str], elsewhere: Sequence[str]) -> None:
        check_overrides(self.recipe, cells, elsewhere)
        points = [f"{c}.{p}.weight" for c in cells for p in ("W", "R")]
        points += elsewhere
        for rule in self.recipe.rules[: self.recipe.overrides]:
            if not any(rule.matches(p) for p in points):
                raise UsageError(
                    f"{rule.points!r} is no weight, and nothing else has a format of recipe {self.recipe.name!r} here.",
                    supported="points such as " + ", ".join(points[:2]),
                    action="leave the override out, or choose another recipe or form",
                )

    def _matrix(
        self,
        shared: dict[Any, WeightMatrix],
        homes: Mapping[int, Graph],
        node: Node,
        k: int,
        direction: int,
        cell: str,
        array: npt.NDArray[np.float32],
    ) -> WeightMatrix | None:
        """The weights of one direction; None if they stay float.

        Raises:
            NotHandled: The whole node stays float.
        """
        point, values = f"{cell}.{'W' if k == W else 'R'}.weight", cell + (".input" if k == W else ".hidden")
        s = self.recipe.settings(point)
        if not s.get("bits") and not is_float16(s):
            return None
        _check_settings(s, point)
        largest = float(np.abs(array).max())
        if is_float16(s) and largest > LARGEST_FLOAT16:
            raise NotHandled(
                "its weights are beyond float16.",
                f"weights up to {largest:.4g} in {node.inputs[k].name!r}",
                f"up to {LARGEST_FLOAT16:.0f} are supported; choose an integer format",
            )
        source = node.inputs[k]
        digest = hashlib.sha256(np.ascontiguousarray(array[direction]).data).digest()
        home = homes[id(source)]
        key = (id(home), digest, array.shape, json.dumps(s, sort_keys=True))
        if key not in shared:
            shared[key] = WeightMatrix(point, source, direction, home, s, len(CELL_TYPES[node.op].gates))
        if values in self.moments:
            moment = np.asarray(self.moments[values])
            inputs = array.shape[2]
            if moment.shape != (inputs, inputs):
                raise CompileError(
                    f"Statistics of {values!r}: second moments of shape {list(moment.shape)} for {inputs} inputs.",
                    supported=f"[{inputs}, {inputs}]",
                    action="calibrate this model again",
                )
            shared[key].moments.append(moment)
        return shared[key]


def stored_weights_of_nodes(model: Model) -> dict[str, tuple[str, int]]:
    """Returns form, and size of W, R, B and P, of each node whose weights this pass has replaced, by its path."""
    return {
        f"{path}{display_name(node)}": (
            ORT if node.domain == ORT_DOMAIN else WEIGHT_ONLY,
            record["bytes"] + record["float_bytes"],
        )
        for path, graph in model.paths()
        for node in graph.nodes
        if WEIGHTS_TAG in info(node).metadata
        for record in [json.loads(info(node).metadata[WEIGHTS_TAG])]
    }


def _size(node: Node, k: int) -> int:
    array = constant_array(value) if (value := input_or_none(node, k)) is not None else None
    return 0 if array is None else array.nbytes


def _is_done(node: Node) -> bool:
    """Whether this pass has stored the node's weights, and canonicalize has not dequantized them since."""
    return WEIGHTS_TAG in info(node).metadata and any(constant_array(node.inputs[k]) is None for k in (W, R))


def _weight(node: Node, k: int) -> npt.NDArray[np.float32]:
    """Input k of the node, `[D,rows,K]`.

    Raises:
        CompileError: The node is invalid.
        NotHandled: It stays float.
    """
    name, value = INPUT_NAMES[k], input_or_none(node, k)
    if value is None:
        raise fail(node, f"input {name} is missing.", "X, W and R are required")
    array = constant_weight(value, name)
    direction = attribute(node, "direction", "forward")
    if direction not in DIRECTIONS:
        raise fail(node, f"direction = {direction!r}.", ", ".join(DIRECTIONS))
    if array.ndim != 3 or 0 in array.shape or array.shape[0] != len(DIRECTIONS[direction]):
        wanted = f"[{len(DIRECTIONS[direction])}, rows, inputs]"
        raise fail(node, f"input {name} has shape {list(array.shape)}.", wanted)
    check_float32(array.dtype, name)
    check_finite(array, name)
    return array


def _cells(model: Model, node: Node) -> list[str]:
    """The names that decomposition gives the cells of the node's directions, as used by statistics."""
    base = safe_name(display_name(node))
    words = ("reverse" if reverse else "forward" for reverse in DIRECTIONS[attribute(node, "direction", "forward")])
    return [model.fresh_name(f"{base}.{word}") for word in words]


def _check_settings(s: Settings, point: str) -> None:
    """Raises CompileError for weight formats that float operators cannot dequantize."""
    if is_float16(s):
        return
    if s["bits"] > LARGEST_BITS:
        raise CompileError(
            f"Quantization point {point!r}: bits = {s['bits']}.",
            supported="weights alone in 2 to 8 bits, or store = float16",
            action=f"--set '{point}.bits=8'",
        )
    for key in ("group_size", "codebook", "wide_channels"):
        if s.get(key):
            raise CompileError(
                f"Quantization point {point!r}: {key} = {s[key]} where weights alone are quantized.",
                supported="one scale for each channel, or one for all",
                action=f"--set '{point}.{key}={0 if key == 'wide_channels' else 'none'}'",
            )
    for key in ("share", "bias_correction", "shift_limits"):
        if s.get(key):
            raise CompileError(
                f"Quantization point {point!r}: {key} = {str(s[key]).lower()} where weights alone are quantized.",
                supported="weights with scales of their own, biases as they are",
                action=f"--set '{point}.{key}={'none' if key == 'share' else 'false'}'",
            )
