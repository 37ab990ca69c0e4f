"""Checks the constants that quantize-custom-cells writes against the float model, the recipe and the statistics.

Every matmul and every quantizer runs alone, on values of its format.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.vitis_tables import ENTRIES, STEP_BITS
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError
from rnnqc.formats.point_format import FLOAT, STATIC, PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Model, constant_array
from rnnqc.passes.analysis.custom_cell import BIAS, HIDDEN, VALUE, WEIGHT
from rnnqc.passes.analysis.custom_points import custom_cells_of
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.custom_cells.custom_formats import activation_of, custom_formats, operand_format
from rnnqc.passes.custom_cells.emit_vitis_table import FIRST, LAST, vitis_entries
from rnnqc.passes.formats.quantized_parameters import weight_codes
from rnnqc.passes.graph.flat.flat_model import FlatModel, MissingValueError
from rnnqc.passes.graph.point_names import alias, plain_name
from rnnqc.passes.qcdq.check_quantizers import WrittenQuantizer, check_static, first_of
from rnnqc.passes.qcdq.without_quantizers import bypassed
from rnnqc.recipes.recipe import Recipe

Array = npt.NDArray[Any]
_VALUES, _INITIAL, _QUANTIZED, _TABLE = "value", "initial", "quantized", "table"
_ROUNDING = {("hidden.codes", "QuantizeLinear"), ("hidden.codes.units", "Div"), ("hidden.units", "Div")}
"""The nodes that round the left operand of a matmul: name of the node's value, and operator."""
_FRACTIONS = (-0.45, -0.05, 0.05, 0.45)
_RELATIVE = 2.0**-17
_ROWS = 64


@dataclass
class _Product:
    """A matmul before the pass: its weights `[K,N]`, its biases, and the formats of its left operand.

    A matmul that occurs several times, for example in unrolled steps, may have several of each.
    """

    weights: list[Array] = field(default_factory=list)
    biases: list[Array] = field(default_factory=list)
    codes: list[PointFormat | None] = field(default_factory=list)


class CustomCellsCheck(ConstantCheck):
    """Checks weights, biases, quantizers of values and multipliers of every recurrence.

    Args:
        model: The model before the pass.
        recipe: The recipe of the pass.
        statistics: The statistics of the pass.
    """

    def __init__(self, model: Model, recipe: Recipe, statistics: Statistics | None) -> None:
        self._points: dict[str, PointFormat] = {}
        self._products: dict[str, _Product] = {}
        self._activations: dict[str, str] = {}
        self._seen = statistics.points if statistics is not None else {}
        for cell in custom_cells_of(model):
            formats = custom_formats(cell, recipe, statistics)
            self._points |= {f"{cell.name}.{p}": f for p, f in formats.points.items()}
            named = {p: activation_of(cell, p) for p in cell.edges}
            self._activations |= {f"{cell.name}.{p}": op for p, op in named.items() if op is not None}
            for name, sites in cell.products.items():
                product = _Product()
                for site in sites:
                    code = operand_format(cell, formats, name, site)
                    if code not in product.codes:
                        product.codes.append(code)
                    product.weights.append(site.weights)
                    bias = cell.bias_of(site)
                    if bias is not None:
                        product.biases.append(np.asarray(constant_array(bias), np.float32))
                self._products[f"{cell.name}.{name}"] = product

    def findings(self, after: Model) -> Findings:
        """Compares everything that the pass wrote, which is found by the names of nodes and initializers."""
        found, flat = Findings(), FlatModel(after.proto, [])
        self._check_biases(found, flat)
        for site in _sites(flat, self._points, self._products):
            if not site.kind:
                self._check_product(found, flat, site)
            elif site.kind == _TABLE:
                self._check_table(found, flat, site)
            else:
                e = self._points[f"{site.path}.{VALUE}"].complete
                if site.kind == _INITIAL and np.frexp(e.scale[0])[0] != 0.5:
                    e = replace(e, rounding=Rounding.HALF_EVEN)
                quantizer = WrittenQuantizer(site.path, site.source, site.made)
                check_static(found, flat, quantizer, f"{site.path}.{VALUE}", e)
        return found

    def without_loss(self, after: Model) -> onnx.ModelProto | None:
        """Returns the model with quantizers that return their inputs and matmuls of the float weights."""
        passed: dict[str, str] = {}
        products: dict[str, tuple[str, Array]] = {}
        activations: dict[str, tuple[str, str]] = {}
        constants: dict[str, Array] = {}
        flat = FlatModel(after.proto, [])
        for site in _sites(flat, self._points, self._products):
            if site.kind == _TABLE:
                activations[site.made] = self._activations[f"{site.path}.{VALUE}"], site.source
                continue
            if site.kind:
                passed[site.made] = site.source
                continue
            first, *others = self._products[site.path].weights
            if not all(np.array_equal(w, first) for w in others):  # steps with one name may have different weights
                return None
            products[site.made] = site.source, first
        for path, product in self._products.items():
            names = [n for n in flat.tensors if alias(n)[0] == f"{path}.{BIAS}"]
            constants |= dict(zip(names, product.biases, strict=False))
        if not (products or passed or activations):
            return None
        return bypassed(after.proto, passed, constants, products, activations)

    def _check_biases(self, found: Findings, flat: FlatModel) -> None:
        for path, product in self._products.items():
            point = self._points.get(f"{path}.{BIAS}", FLOAT)
            for name in [n for n in flat.tensors if alias(n)[0] == f"{path}.{BIAS}"]:
                array, wanted = flat.constant(name), []
                for bias in [] if point.is_float else product.biases:
                    e = point.complete
                    e = e if e.axis is None else replace(e, axis=bias.ndim - 1)
                    wanted.append(e.dequantize(e.quantize(bias)))
                if wanted:
                    same = [w for w in wanted if array is not None and np.array_equal(w, array)]
                    found.array(f"{path}.{BIAS}", array, (same or wanted)[0], node=path, constant=name)

    def _check_table(self, found: Findings, flat: FlatModel, site: _Site) -> None:
        """Reads every entry: at its argument, above and below it, and beyond both ends of the table."""
        point, activation = f"{site.path}.{VALUE}", self._activations[f"{site.path}.{VALUE}"]
        eighths = np.arange(-8 * (ENTRIES // 2 + 2), 8 * (ENTRIES // 2 + 2) + 1, dtype=np.float32)
        values = (eighths / np.float32(8 * 2 ** STEP_BITS[activation])).reshape(1, -1)
        try:
            made = flat.run({site.source: values}, [site.made])[site.made]
        except (CompileError, MissingValueError) as error:
            found.passed_over.append(f"table of {point} ({error})")
            return
        index = np.clip(np.floor(eighths / 8) + ENTRIES // 2 + 1, 0, ENTRIES + 1).astype(np.intp)
        wanted = vitis_entries(activation, self._points[point].complete)[index]
        found.array(f"table of {point}", made.ravel(), wanted, node=site.made)

    def _check_product(self, found: Findings, flat: FlatModel, site: _Site) -> None:
        """Compares a matmul with that of both operands after rounding to their formats."""
        product, what = self._products[site.path], f"product {site.path}"
        results = []
        for code in product.codes:  # one of its occurrences has this format, and one has these weights
            values = self._values(code, site, len(product.weights[0]))
            try:
                made = flat.run({site.source: values}, [site.made])[site.made].astype(np.float64)
            except (CompileError, MissingValueError) as error:
                found.passed_over.append(f"{what} ({error})")
                return
            given = _on_format(code, values) if site.rounds else values.astype(np.float64)
            for weights in product.weights[:1] if len(product.weights) == 1 else _distinct(product.weights):
                own = Findings()
                wanted = given @ self._quantized(site.path, weights).astype(np.float64)
                allowed = _RELATIVE * np.abs(wanted).max(axis=1, keepdims=True) + np.finfo(np.float32).tiny
                near = np.where(np.abs(made - wanted) <= allowed, wanted, made)
                own.array(f"weights, scales and quantized values of {what}", near, wanted, node=site.made)
                results.append(own)
        if results:
            best = min(results, key=lambda r: (len(r.wrong), sum(w.count for w in r.wrong)))
            found.compared += best.compared
            found.wrong += best.wrong

    def _quantized(self, path: str, weights: Array) -> Array:
        point = self._points[f"{path}.{WEIGHT}"]
        if point.is_float:
            return weights
        moment = self._seen[f"{path}.{HIDDEN}"].shrunk_moment if f"{path}.{HIDDEN}" in self._seen else None
        return point.complete.dequantize(weight_codes(point, weights, moment))

    def _values(self, code: PointFormat | None, site: _Site, depth: int) -> Array:
        """Returns float32 operands `[N,K]`, away from ties of the format; the first K rows have one nonzero each."""
        rng = np.random.default_rng(0)
        if code is None or code.mode != STATIC:
            values = rng.normal(0, 1, (_ROWS + depth, depth)) * 10.0 ** rng.uniform(-2, 1, (_ROWS + depth, 1))
        else:
            e = code.complete
            codes = rng.integers(e.minimum - e.zero_point, e.maximum - e.zero_point + 1, (_ROWS + depth, depth))
            between = site.rounds and e.rounding is Rounding.HALF_EVEN
            values = (codes + (rng.choice(_FRACTIONS, codes.shape) if between else 0.0)) * float(e.scale[0])
        values[:depth] *= np.eye(depth)
        return values.astype(np.float32)


def _distinct(arrays: Sequence[Array]) -> list[Array]:
    return [a for k, a in enumerate(arrays) if not any(a is b for b in arrays[:k])]


def _on_format(code: PointFormat | None, values: Array) -> Array:
    """Returns values rounded to the format of a left operand, with one static scale or per-row dynamic scales."""
    if code is None:
        return values.astype(np.float64)
    if code.mode == STATIC:
        e = code.complete
        return e.dequantize(e.quantize(values)).astype(np.float64)
    top = np.float32(2.0 ** (code.integers.bits - 1) - 1)
    scale = np.maximum(np.abs(values).max(axis=1, keepdims=True), np.float32(2.0**-100)) / top
    return np.asarray(np.rint(values / scale).astype(np.float64) * scale)


@dataclass(frozen=True)
class _Site:
    """A matmul or a quantizer in the flat model.

    Attributes:
        path: The path of the matmul or of the value.
        kind: "value" or "initial" for a quantizer, "table", or "" for a matmul.
        source: The name of its input.
        made: The name of its output.
        rounds: Whether it rounds its input.
    """

    path: str
    kind: str
    source: str
    made: str
    rounds: bool = True


def _sites(flat: FlatModel, points: Container[str], products: Container[str]) -> Iterator[_Site]:
    for made, node in list(flat.makers.items()):
        path, _, rest = node.name.rpartition("/")
        kind, _, what = alias(rest)[0].rpartition(".")
        if f"{path}.{VALUE}" in points and kind in (_VALUES, _INITIAL) and what == _QUANTIZED:
            first = first_of(flat, path, kind, made)
            if first is not None:
                yield _Site(path, kind, first.input[0], made)
        elif f"{path}.{VALUE}" in points and (kind, what) == (_VALUES, LAST):
            source = _behind_table(flat, path, node)
            if source is not None:
                yield _Site(path, _TABLE, source, made)
        elif path in products and ((kind, what) == ("product", "real") or _is_product(alias(rest)[0], node)):
            source, rounds = _multiplied(flat, path, node)
            yield _Site(path, "", source, made, rounds)


def _behind_table(flat: FlatModel, path: str, last: onnx.NodeProto) -> str | None:
    """Returns the name of the argument of a table."""
    node: onnx.NodeProto | None = last
    while node is not None and node.name.startswith(f"{path}/"):
        if plain_name(node.name, path) == f"{_VALUES}.{FIRST}":
            return str(node.input[0])
        behind = node.input[1] if node.op_type == "GatherElements" else node.input[0]
        node = flat.makers.get(behind)
    return None


def _is_product(rest: str, node: onnx.NodeProto) -> bool:
    return rest == "product" and node.op_type in ("MatMul", "Cast")


def _multiplied(flat: FlatModel, path: str, last: onnx.NodeProto) -> tuple[str, bool]:
    """Returns the name of a matmul's left operand before any rounding, and whether it is rounded."""
    source, rounds, stack = last.input[0], False, [last]
    while stack:  # along the first operands
        node = stack.pop()
        if (plain_name(node.name, path), node.op_type) in _ROUNDING:
            source, rounds = node.input[0], True
        elif not rounds:
            source = node.input[0]
        behind = flat.makers.get(node.input[0]) if node.input else None
        if behind is not None and behind.name.startswith(f"{path}/"):
            stack.append(behind)
    return source, rounds
