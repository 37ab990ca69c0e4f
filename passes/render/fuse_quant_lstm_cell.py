"""Replaces each integer cell by one fused node, backed by a function of standard operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from rnnqc.cells.attributes import without_defaults
from rnnqc.cells.fused_nodes import (
    CONFIGURATION,
    MORE_X,
    PLACES,
    X_FACTOR,
    fused_outputs,
    has_kernel,
    input_names,
    name_of_body,
    places_of,
)
from rnnqc.cells.operator_version import PARTS_VERSION, ROW_CODES, VERSION
from rnnqc.cells.stages import FusedCell, IntegerCell
from rnnqc.errors import CompileError, Outcome, Remark, and_more
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.formats.codebooks import factors_of
from rnnqc.formats.packing import BYTE_BITS, fits_bits, pack, pack_groups, stored_bits
from rnnqc.ir import CELL_TAG, DOMAIN, Graph, Model, Node, Value, Variable, constant_array, info
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.cells.boundary import Boundary, boundaries_of
from rnnqc.passes.cells.cell_graphs import graphs_of_cells, replace_cell
from rnnqc.passes.cells.direction_axis import with_axis_after, with_axis_before
from rnnqc.passes.cells.input_parts import parts_and_factor
from rnnqc.passes.invariants import Property
from rnnqc.passes.render.cell_function import DIRECTION_AXES, CellFunction, CellSite, cell_function


class FuseQuantLstmCell(Pass):
    """Replaces the nodes of each integer cell by one node and a model-local function with the same nodes.

    Before: the integer cell (about 60 nodes, some of them in an If and a Scan).

    After: `ai.rnnqc::QuantLSTMCell_07(X, W, R, x_multiplier, ...) -> Y, Y_h, Y_c, Y_codes`; for GRU and RNN
    `QuantGRUCell_..` and `QuantRNNCell_..`, without Y_c

    The Concat of two to four floats that makes the input of one cell becomes a part of it, and so does a Mul of the
    input by a factor for each column, as calibration data inserts it: `QuantGRUCell_07(X, W, R, .., X2, X3, X_factor)`.
    Each is work for onnxruntime like that of a small cell. Cells that share a function become such nodes together, or
    not at all: files do not grow by it.

    Weights of up to 6 bits are packed: two quantized values per byte, or nibbles and a plane of upper bits.

    Cells with one configuration share a function. Each function has its own name, and one native kernel implements all
    of these operators. The number in a name is a hash of the body, so that lowered models can be joined. Each body
    checks that the calling node has its configuration; otherwise creating the session fails. So two joined models that
    use one name for different bodies never compute with the wrong one. The function also defines unused outputs before
    a used one.
    """

    info = PassInfo(
        name="fuse-quant-lstm-cell",
        summary="fuse each integer cell into one node backed by a function",
        numerics=Bitwise(),
        requires=frozenset({Property.SCALES_FOLDED}),
        sets=frozenset({Property.CELLS_FUSED}),
    )

    def run(self, model: Model) -> PassResult:
        """Fuses every integer cell; refuses a model that has fused cells already."""
        graphs = graphs_of_cells(model)
        cells = [c for c in model.cells.values() if type(c) is IntegerCell]
        if not cells:
            return PassResult(False, (), {"cells": 0, "functions": 0})
        if any(isinstance(c, FusedCell) for c in model.cells.values()):
            raise CompileError(
                f"{model.source}: some cells are fused already.", action="lower the float model in one go"
            )
        packed = [_packed(model, graphs[c.name], c) for c in cells]
        boundaries = boundaries_of(model, graphs, packed)
        sites = [_site(model, graphs[c.name], c, boundaries[c.name]) for c in packed]
        groups, functions = _by_function(model, sites)
        whole = [_with_whole_inputs(members) for members in groups.values()]
        if any(members is not before for members, before in zip(whole, groups.values(), strict=True)):
            groups, functions = _by_function(model, [s for members in whole for s in members])
        taken: set[str] = set()
        nameless: dict[str, list[list[CellSite]]] = {}
        for number, members in groups.items():
            function = functions[number].numbered(number)
            function.name = name_of_body(members[0].cell.type, number, taken)
            taken.add(function.name)
            if not has_kernel(function.name):
                nameless.setdefault(members[0].cell.type.fused, []).append(members)
            model.functions.append(function)
            for site in members:
                _fuse(model, site, function, number)
        remarks = tuple(self._without_kernel(name, found) for name, found in nameless.items())
        return PassResult(True, remarks, {"cells": len(sites), "functions": len(groups)})

    def _without_kernel(self, name: str, bodies: list[list[CellSite]]) -> Remark:
        cells, type_ = [s.cell for members in bodies for s in members], bodies[0][0].cell.type
        more = and_more(cells)
        if not type_.aliases:
            reason = f"{len(cells)} cell(s), {cells[0].name!r}{more}, run in standard operators: {name} has no kernel."
            return self.remark(Outcome.NOTE, cells[0].node, type_.op, reason)
        return self.remark(
            Outcome.WARNING,
            cells[0].node,
            type_.op,
            f"{len(cells)} cell(s), {cells[0].name!r}{more}, run in standard operators, with the native library, too: "
            f"it has {type_.aliases} operators {name}, one for each configuration of sizes, direction and formats in "
            "a file.",
            f"{type_.aliases + len(bodies)} configurations",
            "lower parts of the model into files of their own; fixed scales of inputs (a recipe with calibrated "
            "inputs) make every cell a configuration, scales of rows do not",
        )


def _packed(model: Model, graph: Graph, cell: IntegerCell) -> IntegerCell:
    """Returns the cell with packed W and R if the recipe gives them up to 6 bits; the quantized values stay equal."""
    for key, name in (("W", cell.operands.W), ("R", cell.operands.R)):
        point = cell.point(f"{key}.weight")
        codes, bits = constant_array(model.initializer(name, graph)), stored_bits(point.bits)
        if codes is None or codes.dtype != np.int8 or bits == BYTE_BITS:
            continue
        wide = 0
        if point.group_size:
            numbers, multipliers = factors_of(codes, point.group_size, bits, point.codebook)
            if not (multipliers.all() or point.wide_channels):
                continue
            packed, wide = pack_groups(codes, numbers, multipliers, bits)
            arrays = {key: packed, f"{key}_group_multiplier": multipliers}
        elif fits_bits(codes, bits) and not point.wide_channels:
            arrays = {key: pack(codes, bits)}
        else:
            continue
        names = {k: model.add_initializer(f"{cell.name}/{k}.packed", a, graph).name for k, a in arrays.items()}
        multiplier, codebook = names.get(f"{key}_group_multiplier"), int(point.codebook is not None)
        cell = cell.with_packed(key, names[key], bits, multiplier, point.group_size, codebook, wide)
    return cell


def _site(model: Model, graph: Graph, cell: IntegerCell, at: Boundary) -> CellSite:
    operands = {k: model.initializer(n, graph) or model.find(n) for k, n in cell.operands.as_dict().items()}
    codes = model.find(cell.y_codes) if cell.y_codes is not None else None
    inputs: dict[str, Value | None] = {
        **operands, "X": at.x, "X_scale": at.x_scale, "sequence_lens": at.sequence_lens, "initial_h": at.initial_h,
        "initial_c": at.initial_c,
    }  # fmt: skip
    made = {"Y": at.y, "Y_h": at.y_h, "Y_c": at.y_c, "Y_codes": codes}
    outputs = {n: made[n] for n in fused_outputs(cell.type)}
    axes: dict[str, int] = {}
    lifts: list[Node] = []
    for attribute, (names, axis) in DIRECTION_AXES.items():
        present = [n for n in names if (inputs if n in inputs else outputs).get(n) is not None]
        before = {n: with_axis_before(v, axis) for n in present if (v := inputs.get(n)) is not None}
        after = {n: with_axis_after(graph, cell.name, v, axis) for n in present if (v := outputs.get(n)) is not None}
        if present and all(v is not None for v in (*before.values(), *after.values())):
            axes[attribute] = 1
            inputs.update(before)
            outputs.update({n: node.outputs[0] for n, node in after.items() if node is not None})
            lifts += [node for node in after.values() if node is not None]
    return CellSite(cell, graph, inputs, outputs, axes, lifts)


def _by_function(model: Model, sites: Sequence[CellSite]) -> tuple[dict[int, list[CellSite]], dict[int, CellFunction]]:
    """Returns the cells and the function of each configuration."""
    groups: dict[int, list[CellSite]] = {}
    functions: dict[int, CellFunction] = {}
    for site in sites:
        made = cell_function(model, site)
        functions.setdefault(made.number, made)
        groups.setdefault(made.number, []).append(site)
    return groups, functions


def _with_whole_inputs(members: list[CellSite]) -> list[CellSite]:
    """Returns the cells of one function with what makes their inputs, if they can share a function then, too."""
    made = []
    for site in members:
        x = site.inputs["X"]
        assert x is not None
        if site.cell.numbers.x_mode in ("codes", ROW_CODES):
            return members
        parts, factor = parts_and_factor(site.graph, site.cell, x)
        own = {**dict(zip(("X", *MORE_X), parts, strict=False)), X_FACTOR: factor}
        made.append(replace(site, inputs={**site.inputs, **own}))
    given = {_given(site) for site in made}
    return made if len(given) == 1 and given != {_given(members[0])} else members


def _given(site: CellSite) -> tuple[str, ...]:
    return tuple(n for n, v in site.inputs.items() if v is not None)


def _fuse(model: Model, site: CellSite, function: onnx.FunctionProto, number: int) -> None:
    cell = site.cell
    places = places_of(input_names(cell.type), list(function.input))
    attributes = {**without_defaults(cell.type, cell.numbers.attributes(cell)), **site.axes, CONFIGURATION: number}
    x, *more = [v.name for n in ("X", *MORE_X) if (v := site.inputs.get(n)) is not None]
    if more or site.inputs.get(X_FACTOR) is not None:
        attributes[VERSION] = PARTS_VERSION
    node = Node(
        function.name,
        name=cell.name,
        attrs={**attributes, **({PLACES: places} if places else {})},
        inputs=[site.inputs[n] for n in function.input],
        outputs=[],
        domain=DOMAIN,
    )
    info(node).metadata[CELL_TAG] = cell.name
    replace_cell(model, site.graph, cell, [node])
    for lift in site.lifts:
        lift.outputs.clear()
    model.remove_nodes(site.graph, site.lifts)
    node.outputs.extend([site.outputs[n] or Variable.empty() for n in function.output])
    joined = replace(
        cell,
        x=x,
        initial_h=_name(site.inputs["initial_h"]),
        initial_c=_name(site.inputs["initial_c"]),
        y=_name(site.outputs["Y"]),
        y_h=_name(site.outputs["Y_h"]),
        y_c=_name(site.outputs.get("Y_c")),
    )
    model.cells[cell.name] = FusedCell.of_integer(joined, tuple(more))


def _name(value: Value | None) -> str | None:
    return None if value is None else value.name
