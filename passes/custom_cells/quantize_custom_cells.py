"""Quantizes custom cells: matmuls, and every other value that the recipe quantizes."""

from __future__ import annotations

import json
from dataclasses import replace

from rnnqc.cells.activations import Activation, make_activation
from rnnqc.data.statistics import Statistics
from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Lossy
from rnnqc.formats.point_format import STATIC, PointFormat
from rnnqc.ir import CUSTOM_TAG, Model, info
from rnnqc.passes.analysis.custom_cell import BIAS, HIDDEN, VALUE, WEIGHT, CustomCell
from rnnqc.passes.analysis.custom_points import custom_cells_of, custom_identity
from rnnqc.passes.analysis.custom_products import CustomProduct
from rnnqc.passes.analysis.float_products import unreached_products
from rnnqc.passes.analysis.float_recurrences import constant_bytes
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.constant_checks import ConstantCheck
from rnnqc.passes.custom_cells.check_custom import CustomCellsCheck
from rnnqc.passes.custom_cells.custom_formats import ROW_BITS, CustomFormats, custom_formats, operand_format
from rnnqc.passes.custom_cells.custom_resolution import custom_resolution
from rnnqc.passes.custom_cells.custom_weight import CustomWeights
from rnnqc.passes.custom_cells.mark_custom_values import record_of
from rnnqc.passes.custom_cells.rewrite_custom_cell import CustomCellRewriter
from rnnqc.passes.formats.derived_formats import PRODUCT
from rnnqc.passes.formats.override_effects import effects_of_overrides
from rnnqc.passes.invariants import Property
from rnnqc.passes.qcdq.emit_qcdq import WIDEST
from rnnqc.passes.qcdq.insert_qcdq import USUAL_BITS
from rnnqc.recipes.clipping import Clipping, find_clipping
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.resolved import ResolvedPoint

WIDEST_WEIGHT = 16
_ACTIVATIONS = {"Sigmoid", "Tanh"}
CALIBRATE = "give --calibration DATA or --stats STATS.json"

_NO_VALUES = "Values between them stay float: the unrolled steps do not do the same."


class QuantizeCustomCells(Pass):
    """Quantizes every custom cell, in loops and unrolled.

    Before: `MatMul(x [N,K], W)` or `Gemm(x, W, b)` with a constant W, and any operators between such matmuls

    After: `codes of x -> MatMulInteger(codes, codes of W) -> Mul -> Add`; for values that the recipe quantizes,
    quantizers after every operator that computes one, and tables instead of activations. In form qcdq `x ->
    QuantizeLinear -> DequantizeLinear`, `codes of W -> DequantizeLinear`, `MatMul -> Add`, and no tables.

    `rnnqc.passes.analysis.custom_points` defines the points, and the values that have none.

    * Quantized values of x have per-row dynamic scales unless the recipe asks for one scale.
    * A matmul whose weights are not constant, not float32 or not a matrix stays float. So does one if the recipe
      quantizes only x or only W; form qcdq quantizes that operand and leaves the other float.
    * A custom cell without anything to quantize stays float, with a remark.
    * Values whose statistics are missing stay float, with a remark; if the left operands of matmuls have none, the
      whole recurrence does.
    """

    info = PassInfo(
        name="quantize-custom-cells",
        summary="quantize custom cells",
        numerics=Lossy(0.0),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(self, recipe: Recipe, statistics: Statistics | None = None, *, integer: bool = True) -> None:
        """A pass with the formats of `recipe`.

        Args:
            recipe: The recipe; its settings of weights, hidden states, biases and values apply.
            statistics: The statistics of a calibration.
            integer: Whether matmuls become integer, or remain float matmuls of fake-quantized values (form qcdq).
        """
        self.recipe = recipe
        self.statistics = statistics
        self.integer = integer

    def run(self, model: Model) -> PassResult:
        """Quantizes every custom cell."""
        remarks: list[Remark] = []
        clipped: list[Clipping] = []
        counts = {"products": 0, "edges": 0}
        widths: list[int] = []
        resolved: dict[str, ResolvedPoint] = {}
        works: list[_Work] = []
        weights = CustomWeights(model)
        cells = custom_cells_of(model)
        if self.statistics is not None:
            for cell in cells:
                self.statistics.check_cell(cell.name, custom_identity(cell))
        effects = effects_of_overrides(
            self.recipe,
            lambda recipe: custom_resolution(cells, model.opset, recipe, self.statistics, integer=self.integer),
            self.statistics is not None,
        )
        for cell in cells:
            work = _Work(self, model, cell, weights)
            works.append(work)
            remarks += work.run()
            clipped += work.clipped
            counts["products"] += work.products
            counts["edges"] += work.edges
            if work.products + work.edges:
                widths += work.widths
                resolved |= work.resolved()
        count = sum(counts.values())
        if count:
            model.remove_dead()
            model.sort()
            alive = {id(n) for graph in model.graphs() for n in graph.nodes}
            for work in works:
                work.keep_record(alive)
        usual = all(bits >= USUAL_BITS for bits in widths) and self.statistics is None
        numerics = Lossy(10.0) if usual else None
        return PassResult(
            count > 0, tuple(remarks), counts, numerics, clipped=tuple(clipped), effects=effects, formats=resolved
        )

    def constant_check(self, model: Model) -> ConstantCheck:
        """Checks constants of the graph against formats computed from the recipe, the weights and the statistics."""
        return CustomCellsCheck(model, self.recipe, self.statistics)


class _Work:
    """The quantization of one recurrence."""

    def __init__(self, owner: QuantizeCustomCells, model: Model, cell: CustomCell, weights: CustomWeights) -> None:
        self.owner, self.cell = owner, cell
        self.formats: CustomFormats = custom_formats(cell, owner.recipe, owner.statistics)
        if not owner.integer:
            self.formats.points = {p: replace(f, table=None) for p, f in self.formats.points.items()}
        self.products = self.edges = 0
        self.widths = [p.bits for p in self.formats.points.values() if p.bits is not None]
        self.rewriter = CustomCellRewriter(model, cell, self.formats, owner.statistics, weights, integer=owner.integer)
        self.text = ""
        self.used: set[str] = set()
        self.clipped: list[Clipping] = []
        self.left: list[str] = []

    def run(self) -> list[Remark]:
        cell, formats = self.cell, self.formats
        refusals = list(cell.refused)
        suitable: list[tuple[str, CustomProduct, PointFormat | None]] = []
        for name, sites in cell.products.items():
            weight, codes = formats.points[f"{name}.{WEIGHT}"], [operand_format(cell, formats, name, p) for p in sites]
            for product, code in zip(sites, codes, strict=True):
                refusal = _refusal_of_formats(weight, code, self.owner.integer)
                if refusal is None:
                    suitable.append((name, product, code))
                else:
                    refusals.append(refusal)
        edges = [p for p in cell.edges if formats.static(p) is not None]
        lacking = formats.lacking or (bool(formats.uncalibrated) and len(refusals) > len(cell.refused))
        if lacking or not (suitable or edges):
            return [self._remark(Outcome.FLOAT, self._refusal(refusals))]
        stored = {id(p.node) for n, p, _ in suitable if not formats.points[f"{n}.{WEIGHT}"].is_float}
        unreached = unreached_products(cell)
        known = [*cell.recurrence.products, *(n for n, _ in unreached)]
        float_bytes = constant_bytes(known)
        left = constant_bytes(n for n in known if id(n) not in stored)
        refusals += [why for _, why in unreached]
        # Without the matmuls that the recipe itself leaves float.
        self.left = [why.found for why in (*cell.refused, *(why for _, why in unreached))]
        self.used = {*edges, *(p for s in suitable for p in self._operands(*s))}
        self.clipped = self._clipped()
        for name, product, code in suitable:
            self.rewriter.product(name, product, code)
        self.rewriter.end_products()
        if self.owner.integer:
            self.rewriter.compare_extremes()
        for point in edges:
            for value in cell.edges[point]:
                self.rewriter.edge(point, value)
        for point, values in cell.entering.items():
            if formats.static(point) is not None:
                for value in {id(v): v for v in values}.values():
                    self.rewriter.entering(point, value)
        if self.owner.integer:
            self.rewriter.keep_apart()
        self.products, self.edges = len(suitable), len(edges)
        self.rewriter.put_marks()
        self._record(left + self.rewriter.stored_bytes, float_bytes)
        return self._notes(refusals)

    def _clipped(self) -> list[Clipping]:
        """Returns the used points whose overridden ranges are too small; call it before any rewriting."""
        cell, recipe, statistics = self.cell, self.owner.recipe, self.owner.statistics
        paths = {p: f"{cell.name}.{p}" for p in self.used}

        def by_path(formats: CustomFormats) -> dict[str, PointFormat]:
            return {path: formats.points[p] for p, path in paths.items() if p in formats.points}

        sources = {f"{cell.name}.{p}": f"{cell.name}.{t}" for p, t in self.formats.follows.items() if p in paths}
        return find_clipping(
            recipe,
            by_path(self.formats),
            statistics,
            activations_of(cell),
            lambda other: by_path(custom_formats(cell, other, statistics)),
            sources,
        )

    def resolved(self) -> dict[str, ResolvedPoint]:
        """Returns settings and resolved format of each point, except for biases with the accumulator's scales."""
        found = {p: ResolvedPoint(self.formats.settings[p], f) for p, f in self.formats.points.items()}
        derived = {p for p, r in found.items() if p.endswith(f".{BIAS}") and r.settings.get("mode") == PRODUCT}
        return {f"{self.cell.name}.{p}": r for p, r in found.items() if p not in derived}

    def _operands(self, name: str, product: CustomProduct, code: PointFormat | None) -> list[str]:
        """Returns the points of a matmul that quantize something: an operand that is quantized already has none."""
        given = code is self.formats.static(self.cell.origins.get(id(product.x)))
        return [f"{name}.{WEIGHT}", f"{name}.{BIAS}", *(() if given else (f"{name}.{HIDDEN}",))]

    def _refusal(self, refusals: list[NotHandled]) -> NotHandled:
        """Returns why nothing is quantized. Calibration data does not help a cell without matmuls."""
        if self.formats.uncalibrated and self.cell.products:
            return NotHandled("the recipe needs calibration data, and none reached it.", self._missing, CALIBRATE)
        return (
            refusals[0]
            if refusals
            else NotHandled("it has no matmul with constant weights.", self.cell.recurrence.found, "none")
        )

    def _remark(self, outcome: Outcome, why: NotHandled) -> Remark:
        at = self.cell.recurrence
        return self.owner.refused(outcome, at.path, at.op, why)

    def _notes(self, refusals: list[NotHandled]) -> list[Remark]:
        at = self.cell.recurrence
        text = f"{self.products} matmuls became integer." if self.owner.integer else f"{self.products} matmuls."
        points = sum(p.endswith(f".{VALUE}") for p in self.cell.points)
        others = f"{self.edges} of {points} values are quantized." if at.loop is not None else _NO_VALUES
        made = [self.owner.remark(Outcome.NOTE, at.path, at.op, f"{text} {others}")]
        for note in self.formats.shifts:
            action = f"--set '{self.cell.name}.*.weight.shift_limits=false' keeps the fix positions that were found"
            made.append(self.owner.remark(Outcome.NOTE, at.path, at.op, note.reason, note.found, action))
        missing = self.formats.uncalibrated
        texts: list[tuple[str, str, str]] = []
        if missing:
            reason = f"{len(missing)} quantization points stay float, or have dynamic per-row scales."
            texts.append((reason, self._missing, CALIBRATE))
        if refusals:
            reason = f"{len(refusals)} of its matmuls stay float: {refusals[0].reason}"
            texts.append((reason, refusals[0].found, refusals[0].action))
        if texts:
            reasons, found, actions = zip(*texts, strict=True)
            why = NotHandled(" ".join(reasons), "; ".join(found), "; ".join(actions))
            made.append(self._remark(Outcome.NOTE, why))
        return made

    @property
    def _missing(self) -> str:
        """The first point without statistics, for messages."""
        missing = self.formats.uncalibrated
        return f"no statistics of {self.cell.name}.{missing[0]}" + (" and others" if len(missing) > 1 else "")

    def _record(self, size: int, float_bytes: int) -> None:
        """Records the quantization at the loop and at one matmul or quantizer: these survive when the loop is unrolled.

        The record includes the number formats of points that quantize something; integer forms omit scales of channels,
        as the records of other cells do.

        Args:
            size: Bytes of quantized values, scales and constants that stay float.
            float_bytes: Bytes of the original constants.
        """
        at = self.cell.recurrence
        used = {p: f for p, f in self.formats.points.items() if p in self.used and not f.is_float}
        if self.owner.integer:
            used = {p: f.without_channel_scales(zero_points=False) for p, f in used.items()}
        form = "integer" if self.owner.integer else "qcdq"
        record = record_of(self.cell, form, {p: f.as_dict() for p, f in used.items()}, self.rewriter.given) | {
            "bytes": size, "float_bytes": float_bytes, "products": self.products, "left": self.left,
            "points": {p: f.bits for p, f in self.formats.points.items()},
        }  # fmt: skip
        text = json.dumps(record, sort_keys=True)
        for node in ([at.loop] if at.loop is not None else []) + self.rewriter.tagged[:1]:
            info(node).metadata[CUSTOM_TAG] = text
        self.text = text

    def keep_record(self, alive: set[int]) -> None:
        """Puts the record on a tagged node that still exists: the first one may be unused."""
        left = [n for n in self.rewriter.tagged if id(n) in alive]
        if self.text and left:
            info(left[0]).metadata[CUSTOM_TAG] = self.text


def activations_of(cell: CustomCell) -> dict[str, Activation]:
    """Returns the activations of values that only one kind of activation reads, by the paths of their points."""
    made = {}
    results = {id(v) for v in cell.graph.outputs}
    for point, values in cell.edges.items():
        users = {n.op for v in values for n in v.outputs}
        if len(users) == 1 and users <= _ACTIVATIONS and not any(id(v) in results for v in values):
            made[f"{cell.name}.{point}"] = make_activation(users.pop())
    return made


def _refusal_of_formats(weight: PointFormat, code: PointFormat | None, integer: bool) -> NotHandled | None:
    """Returns why matmuls do not support the operand formats; None if they do. Form qcdq allows one float operand."""
    bits = weight.bits
    if integer or code is None if bits is None else not 2 <= bits <= WIDEST_WEIGHT:
        return NotHandled(
            f"the recipe gives its weights no 2 to {WIDEST_WEIGHT} bits.",
            f"weight.bits = {bits or 'none'}",
            f"choose a recipe with weights of up to {WIDEST_WEIGHT} bits",
        )
    if code is None and not integer:
        return None
    if code is None:
        found, action = "hidden.bits = none", "choose a recipe with 8-bit activations, such as int8"
        return NotHandled("the recipe gives hidden states no bits.", found, action)
    if code.mode != STATIC and (code.bits not in ROW_BITS or (bits or 0) > WIDEST):
        return NotHandled(
            "the recipe gives its matmuls formats that a dynamic per-row scale does not have.",
            f"hidden.bits = {code.bits}, weight.bits = {bits or 'none'}",
            "give it calibration data, or choose a recipe with 8-bit weights and 8- or 16-bit activations",
        )
    if code.integers.bits > WIDEST_WEIGHT:
        found = f"hidden.bits = {code.bits}"
        return NotHandled("the recipe gives hidden states more than 16 bits.", found, "choose up to 16 bits")
    return None
