"""What quantize-custom-cells has to write, from the float model, the recipe and the statistics."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.statistics import Statistics
from rnnqc.formats.encoding import Encoding, Rounding
from rnnqc.ir import Model, Node, Value, constant_array, display_name, graph_info
from rnnqc.passes.analysis.custom_cell import BIAS, HIDDEN, VALUE, WEIGHT
from rnnqc.passes.analysis.custom_points import custom_cells_of
from rnnqc.passes.constant_checks import ConstantCheck, Findings
from rnnqc.passes.custom_cells.custom_formats import custom_formats, operand_format
from rnnqc.passes.formats.point_format import encoding_of
from rnnqc.passes.graph.point_names import alias
from rnnqc.passes.qcdq.check_quantizers import check_static
from rnnqc.passes.qcdq.check_weights import check_codes
from rnnqc.passes.qcdq.without_quantizers import bypassed
from rnnqc.passes.qcdq.written_quantizers import WrittenQuantizer
from rnnqc.passes.render.check_tables import TINY
from rnnqc.recipes.recipe import Recipe

Array = npt.NDArray[Any]
Format = dict[str, Any]
_VALUES, _INITIAL, _LAST = "value", "initial", "quantized"


@dataclass
class _Product:
    """A product as it was: its weights `[K,N]`, what is added to it, and the formats of what it multiplies.

    Where it stands in several places, such as the steps of a loop that is written out, there may be several of each.
    """

    weights: list[Array] = field(default_factory=list)
    biases: list[Array] = field(default_factory=list)
    codes: list[Format | None] = field(default_factory=list)


class CustomCellsCheck(ConstantCheck):
    """Weights, biases, quantizers of values and multipliers of every recurrence.

    Args:
        model: Before the pass.
        recipe: Of the pass.
        statistics: Of the pass.
    """

    def __init__(self, model: Model, recipe: Recipe, statistics: Statistics | None) -> None:
        self._points: dict[str, Format] = {}
        self._products: dict[str, _Product] = {}
        self._seen = statistics.points if statistics is not None else {}
        for cell in custom_cells_of(model):
            formats = custom_formats(cell, recipe, statistics)
            self._points |= {f"{cell.name}.{p}": f for p, f in formats.points.items()}
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
        """Compares everything that the pass has written, found by the names of nodes and initializers."""
        found = Findings()
        held = _initializers(after)
        for path, product in self._products.items():
            self._check_weight(found, path, product, held)
            self._check_bias(found, path, product, held)
        for (path, what), groups in _written(after, self._points, self._products).items():
            for nodes in groups:
                if path in self._products:
                    self._check_product(found, path, nodes)
                elif what in (_VALUES, _INITIAL):
                    self._check_value(found, path, what, nodes)
        return found

    def without_loss(self, after: Model, *, keep_weights: bool = False) -> onnx.ModelProto | None:
        """Quantizers let their values pass, and products are those of the floats, or of the codes of weights."""
        passed: dict[str, str] = {}
        products: dict[str, tuple[str, Array]] = {}
        constants: dict[str, Array] = {}
        held = _initializers(after)
        for (path, _), groups in _written(after, self._points, self._products).items():
            for nodes in groups:
                if path not in self._products:
                    if "quantized" in nodes:
                        passed[nodes["quantized"].outputs[0].name] = WrittenQuantizer(path, nodes).source.name
                    continue
                last, source = nodes.get("product.real") or nodes.get("product"), _multiplied(nodes)
                weights = self._codes_of(path, held) if keep_weights else self._weights_of(path)
                if last is None or source is None or weights is None:
                    return None
                products[last.outputs[0].name] = source.name, weights
        for path, product in self._products.items():
            for k, (name, _) in enumerate(held.get(f"{path}.{BIAS}", [])):
                if k < len(product.biases) and not keep_weights:
                    constants[name] = product.biases[k]
        return bypassed(after.proto, passed, constants, products) if products or passed else None

    def _weights_of(self, path: str) -> Array | None:
        """The float weights of a product; None where steps of one name have different ones."""
        first, *others = self._products[path].weights
        return first if all(np.array_equal(w, first) for w in others) else None

    def _codes_of(self, path: str, held: dict[str, list[tuple[str, Array]]]) -> Array | None:
        """What the codes of the weights of a product stand for; None where steps of one name have different ones."""
        floats, point = self._weights_of(path), self._points[f"{path}.{WEIGHT}"]
        if floats is None or point["bits"] is None:
            return floats
        e, codes = encoding_of(point), [a for _, a in held.get(f"{path}.{WEIGHT}.codes", [])]
        return e.dequantize(_decoded(codes[0], e, floats.shape[1])) if len(codes) == 1 else None

    def _check_weight(
        self, found: Findings, path: str, product: _Product, held: dict[str, list[tuple[str, Array]]]
    ) -> None:
        point, what = self._points[f"{path}.{WEIGHT}"], f"{path}.{WEIGHT}"
        if point["bits"] is None:
            return
        e = encoding_of(point)
        moment = self._seen[f"{path}.{HIDDEN}"].second_moment if f"{path}.{HIDDEN}" in self._seen else None
        distinct = [w for k, w in enumerate(product.weights) if not any(w is v for v in product.weights[:k])]
        columns = distinct[0].shape[1]
        for name, scale in held.get(f"{what}.scale", []):
            found.array(f"scale of {what}", scale, np.asarray(e.scale, np.float32), node=path, constant=name)
        for name, zero in held.get(f"{what}.zero_point", []):
            zeros = _decoded(np.atleast_1d(zero), e, columns)
            expected = np.broadcast_to(np.asarray(e.zero_points or e.zero_point), zeros.shape)
            found.array(f"zero point of {what}", zeros, expected, node=path, constant=name)
        for _, codes in held.get(f"{what}.codes", []):
            results = []
            for weights in distinct:  # it is those of one of them
                own, made = Findings(), _decoded(codes, e, columns)
                check_codes(own, what, made, point, weights, moment, slice(0, columns))
                results.append(own)
            _add_best(found, results)

    def _check_bias(
        self, found: Findings, path: str, product: _Product, held: dict[str, list[tuple[str, Array]]]
    ) -> None:
        point = self._points.get(f"{path}.{BIAS}", {"bits": None})
        for name, array in held.get(f"{path}.{BIAS}", []):
            if point["bits"] is None:
                continue
            wanted = []
            for bias in product.biases:
                e = encoding_of({**point, "axis": bias.ndim - 1} if point["axis"] is not None else point)
                wanted.append(e.dequantize(e.quantize(bias)))
            same = [w for w in wanted if np.array_equal(w, array)]
            found.array(f"{path}.{BIAS}", array, same[0] if same else wanted[0], node=path, constant=name)

    def _check_value(self, found: Findings, path: str, what: str, nodes: dict[str, Node]) -> None:
        point = self._points[path]
        e = encoding_of(point)
        if what == _INITIAL and np.frexp(e.scale[0])[0] != 0.5:
            e = encoding_of({**point, "rounding": Rounding.HALF_EVEN.value})
        check_static(found, path, WrittenQuantizer(path, nodes), e)

    def _check_product(self, found: Findings, path: str, nodes: dict[str, Node]) -> None:
        codes = [code for code in self._products[path].codes if code is not None and code.get("mode") == "static"]
        if not codes or len(codes) < len(self._products[path].codes):
            return
        results = []
        for code in codes:  # it has that of one of the places
            own = Findings()
            self._check_scales(own, path, nodes, float(code["scale"][0]))
            results.append(own)
        _add_best(found, results)

    def _check_scales(self, found: Findings, path: str, nodes: dict[str, Node], scale: float) -> None:
        weight, what = self._points[f"{path}.{WEIGHT}"], f"{path}.{HIDDEN}"
        for name in ("hidden.codes", "hidden.units", "hidden.codes.units"):
            node = nodes.get(name)
            if node is not None and node.op in ("QuantizeLinear", "Div"):
                found.input(f"scale of {what}", node, 1, np.float32(scale))
        quantized = nodes.get("hidden.quantized")
        if quantized is not None:
            found.input(f"scale of {what}", quantized, 1, np.float32(scale))
        if weight["bits"] is None:
            return
        unit = scale * np.asarray(weight["scale"], np.float64)
        for name in ("product.real", "product.scaled"):
            node = nodes.get(name)
            if node is not None and node.op == "Mul":
                found.input(f"multiplier of {path}", node, 1, np.maximum(unit, TINY), ulps=1.0)


def _add_best(found: Findings, results: Sequence[Findings]) -> None:
    """Adds those findings of which the fewest constants are wrong."""
    best = min(results, key=lambda r: len(r.wrong))
    found.compared += best.compared
    found.wrong += best.wrong


def _decoded(stored: Array, e: Encoding, columns: int) -> Array:
    """Codes from bytes, raised to begin at 0, and side by side if there are two of each."""
    if stored.dtype != np.uint8 or (not e.signed and stored.shape[-1] == columns) or (e.signed and e.dtype == np.uint8):
        return stored.astype(np.int64)
    raised = 2 ** (8 * (2 if e.bits > 8 else 1) - 1) if e.signed else 0
    whole = stored.astype(np.int64)
    if e.bits > 8:
        high, low = np.split(whole, 2, axis=-1)
        whole = 256 * high + low
    return np.asarray(whole - raised)


def _initializers(model: Model) -> dict[str, list[tuple[str, Array]]]:
    """All initializers by their names without numbers."""
    found: dict[str, list[tuple[str, Array]]] = {}
    for graph in model.graphs():
        for name, value in graph_info(graph).initializers.items():
            array = constant_array(value)
            if array is not None:
                path, slash, rest = name.rpartition("/")
                found.setdefault(f"{path}{slash}{alias(rest)[0]}", []).append((name, array))
    return found


def _written(
    model: Model, points: Container[str], products: Container[str]
) -> dict[tuple[str, str], list[dict[str, Node]]]:
    """The nodes that were written for each point or product, by the rest of their names; a group for each place."""
    found: dict[tuple[str, str], list[dict[str, Node]]] = {}
    for graph in model.graphs():
        for node in graph.nodes:
            path, rest = _split(node)
            point = f"{path}.{VALUE}"
            if point in points and rest in (f"{_VALUES}.{_LAST}", f"{_INITIAL}.{_LAST}"):
                kind = rest.removesuffix(f".{_LAST}")
                nodes = {n.removeprefix(f"{kind}."): v for n, v in _behind(node, path).items()}
                found.setdefault((point, kind), []).append(nodes)
            elif path in products and (rest == "product.real" or (rest == "product" and node.op in ("MatMul", "Cast"))):
                found.setdefault((path, ""), []).append(_behind(node, path))
    return found


def _split(node: Node) -> tuple[str, str]:
    path, _, rest = display_name(node).rpartition("/")
    return path, alias(rest)[0]


def _behind(last: Node, path: str) -> dict[str, Node]:
    """The nodes of a path that a node of it depends on, and itself."""
    found: dict[str, Node] = {}
    stack = [last]
    while stack:
        node = stack.pop()
        of, rest = _split(node)
        if of == path and rest not in found:
            found[rest] = node
            stack += [n for v in node.inputs for n in v.inputs]
    return found


def _multiplied(nodes: dict[str, Node]) -> Value | None:
    """What a product multiplies, before it is quantized."""
    for name, op in (("hidden.codes", "QuantizeLinear"), ("hidden.codes.units", "Div"), ("hidden.units", "Div")):
        if name in nodes and nodes[name].op == op:
            return nodes[name].inputs[0]
    if "hidden.float64" in nodes:
        return nodes["hidden.float64"].inputs[0]
    last = nodes.get("product")
    return last.inputs[0] if last is not None and last.op == "MatMul" else None
