"""Builds a recurrent layer from a model of its cell: one step becomes a Scan over a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import TensorProto, helper

from rnnqc.errors import CompileError, located
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.layers.cell_model import CellModel, read_cell
from rnnqc.proto.given import Given, name_of, proto_of
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.inlining import inlined
from rnnqc.proto.validation import check_model
from rnnqc.proto.value_names import free_name, names_of, rename
from rnnqc.proto.version_conversion import NOT_CONVERTED, convert_version

LENGTHS = "sequence_lens"
MASK_RANK = 2
PREFIX = "step/"
"""Prefix of the cell's value names in the loop."""
HELD = "layer/"
"""Prefix, in the loop, of the names of the cell's initializers, which keep their names outside."""
OPSET = 17
"""Cells with an operator set older than `OLDEST_OPSET` are converted to this one."""
OLDEST_OPSET = NOT_CONVERTED
IR_VERSIONS = (8, 13)


@refusing_invalid_models
def layer(
    cell: Given,
    *,
    state: Mapping[str, str] | Iterable[str] | None = None,
    reverse: bool = False,
    lengths: bool = False,
    initial_states: bool = False,
) -> onnx.ModelProto:
    """Builds a model that runs a cell over a sequence. Model-local functions are inlined.

    Args:
        cell: A model of one step, a path or a ModelProto. Inputs: `x [B,I]` and states `[B,H]`; outputs: the states
            after the step and perhaps more. States may have different widths.
        state: For each input that is a state the output that becomes it, as pairs or as texts `IN:OUT`. By default the
            inputs after the first are the states, and the first outputs are their next values, in order.
        reverse: Run from the last step to the first. Outputs are at their own time, final states are those after
            step 0.
        lengths: Give the model an input `sequence_lens`, int32 `[B]`, each 0 to T: beyond its length a sequence keeps
            its states, and outputs are 0 there.
        initial_states: Make the initial states inputs, under the names the cell has; otherwise they are zeros.

    Returns:
        A model with the input `x [T,B,I]` under the cell's name for it. Its outputs: `Y`, the first state of all steps
        `[T,B,H]`; under their names the cell's other outputs `[T,B,...]`; under their names the final states `[B,H]`.

    Raises:
        CompileError: It is not a valid model, or not a cell: too few inputs or outputs, states of unknown width, or of
            another shape after the step.
        UsageError: `state` names no input or output of it.
    """
    proto, source = onnx.ModelProto(), name_of(cell)
    proto.CopyFrom(proto_of(cell))
    with located(source):
        opset = check_model(proto, source)
        if proto.functions:
            proto = inlined(proto)
        if opset < OLDEST_OPSET:
            proto = convert_version(proto, opset, OPSET, "the cell")
        return _Layer(read_cell(proto, state), reverse, lengths, initial_states).model()


class _Layer:
    """Writes the model of a layer.

    Args:
        cell: One step of it.
        reverse: As in `layer`.
        lengths: As in `layer`.
        initial_states: As in `layer`.
    """

    def __init__(self, cell: CellModel, reverse: bool, lengths: bool, initial_states: bool) -> None:
        self.cell, self.proto = cell, cell.proto
        self.reverse, self.lengths, self.initial_states = reverse, lengths, initial_states
        self.own = names_of(self.proto.graph)
        self.taken = set(self.own)
        self.nodes: list[onnx.NodeProto] = []
        self.held = self._held()

    def model(self) -> onnx.ModelProto:
        """Returns the model of the layer."""
        y = self._add_scan()
        proto = self.proto
        nodes = [*self.held.values(), *self.nodes]
        graph = helper.make_graph(nodes, "layer", self._inputs(), self._outputs(y), list(proto.graph.initializer))
        graph.sparse_initializer.extend(proto.graph.sparse_initializer)
        made = onnx.ModelProto(producer_name="rnnqc", doc_string=proto.doc_string)
        made.ir_version = min(max(proto.ir_version, IR_VERSIONS[0]), IR_VERSIONS[1])
        made.graph.CopyFrom(graph)
        made.opset_import.extend(proto.opset_import)
        made.metadata_props.extend(proto.metadata_props)
        return made

    def _add_scan(self) -> str:
        """Adds the loop and its initial states; returns the name of the first state of all steps."""
        cell = self.cell
        starts = [self._start(before, width) for (before, _), width in zip(cell.states, cell.widths, strict=True)]
        sequences = [cell.x.name] + ([self._mask()] if self.lengths else [])
        y = self.fresh("Y")
        stacked = [y, *(o.name for o in cell.steps)]
        finals = [after.name for _, after in cell.states]
        attributes: dict[str, Any] = {"body": self._body(), "num_scan_inputs": len(sequences)}
        if self.reverse:
            attributes["scan_input_directions"] = [1] * len(sequences)
            attributes["scan_output_directions"] = [1] * len(stacked)
        scan = helper.make_node("Scan", [*starts, *sequences], [*finals, *stacked], "layer")
        scan.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        self.nodes.append(scan)
        return y

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        x = self.cell.x
        inputs = [_over_time(x, x.name)]
        if self.lengths:
            lengths = helper.make_tensor_value_info(LENGTHS, TensorProto.INT32, [None])
            if x.type.tensor_type.shape.dim:
                lengths.type.tensor_type.shape.dim[0].CopyFrom(x.type.tensor_type.shape.dim[0])
            inputs.append(lengths)
        return inputs + ([before for before, _ in self.cell.states] if self.initial_states else [])

    def _outputs(self, y: str) -> list[onnx.ValueInfoProto]:
        states = self.cell.states
        sequences = [_over_time(states[0][0], y), *(_over_time(o, o.name) for o in self.cell.steps)]
        return sequences + [_renamed(before, after.name) for before, after in states]

    def fresh(self, name: str) -> str:
        """Returns an unused name: `name`, with a number added if necessary."""
        return free_name(name, self.taken)

    def _held(self) -> dict[str, onnx.NodeProto]:
        """Makes an Identity for each initializer that the cell reads; the loop's body reads its output instead.

        `onnx.compose` renames captured values of a body only if a node or an input produces them. A captured
        initializer would be confused, in a merged model, with one of the same name in another layer.
        """
        stored = self.proto.graph.initializer
        sparse = self.proto.graph.sparse_initializer
        names = dict.fromkeys([*(t.name for t in stored), *(t.values.name for t in sparse)])
        read = {i for block in blocks_of([self.proto.graph]) for n in block.node for i in n.input}
        made = {n: self.fresh(f"{HELD}{n}") for n in names if n in read}
        return {n: helper.make_node("Identity", [n], [m], m) for n, m in made.items()}

    def _constant(self, name: str, values: list[int] | int, kind: int = TensorProto.INT64) -> str:
        made = self.fresh(name)
        dims = [len(values)] if isinstance(values, list) else []
        flat = values if isinstance(values, list) else [values]
        tensor = helper.make_tensor(made, kind, dims, flat)
        self.nodes.append(helper.make_node("Constant", [], [made], made, value=tensor))
        return made

    def _op(self, op: str, inputs: list[str], name: str) -> str:
        made = self.fresh(name)
        self.nodes.append(helper.make_node(op, inputs, [made], made))
        return made

    def _dimension(self, axis: int, name: str) -> str:
        shape = self._op("Shape", [self.cell.x.name], f"{name}.shape")
        return self._op("Gather", [shape, self._constant(f"{name}.axis", axis)], name)

    def _start(self, before: onnx.ValueInfoProto, width: int) -> str:
        if self.initial_states:
            return before.name
        batch = self._op("Unsqueeze", [self._dimension(1, "batch"), self._constant("zero", [0])], "batch.row")
        shape = self._op("Concat", [batch, self._constant("width", [width])], f"{before.name}.shape")
        self.nodes[-1].attribute.append(helper.make_attribute("axis", 0))
        zero = self._constant("nothing", 0, before.type.tensor_type.elem_type)
        return self._op("Expand", [zero, shape], f"{before.name}.zeros")

    def _mask(self) -> str:
        """Adds the mask of steps before the end of a sequence, bool `[T,B,1]`; returns its name."""
        zero, one = self._constant("first", 0), self._constant("one", 1)
        times = self._op("Range", [zero, self._dimension(0, "time"), one], "time.range")
        column = self._op("Unsqueeze", [times, self._constant("columns", [1, 2])], "time.column")
        lens = self._op("Cast", [LENGTHS], "lens")
        self.nodes[-1].attribute.append(helper.make_attribute("to", TensorProto.INT64))
        row = self._op("Unsqueeze", [lens, self._constant("rows", [0, 2])], "lens.row")
        return self._op("Less", [column, row], "time.valid")

    def _body(self) -> onnx.GraphProto:
        """Returns the cell as the body of the loop: names get a prefix, and with lengths the outputs are masked."""
        graph, cell = onnx.GraphProto(), self.cell
        graph.CopyFrom(self.proto.graph)
        stored, sparse = graph.initializer, graph.sparse_initializer
        outside = {t.name for t in stored} | {t.values.name for t in sparse}
        rename(graph, {n: f"{PREFIX}{n}" for n in self.own - outside} | {n: h.output[0] for n, h in self.held.items()})
        body = _Body(self, list(graph.node), self.fresh("layer/valid"))
        inputs = [_renamed(v, f"{PREFIX}{v.name}") for v in (*(before for before, _ in cell.states), cell.x)]
        if self.lengths:
            inputs.append(helper.make_tensor_value_info(body.mask, TensorProto.BOOL, [None, 1]))
        for k, (before, after) in enumerate(cell.states):
            body.add_output(before, after.name, f"next_{k}", f"{PREFIX}{before.name}")
        body.add_output(cell.states[0][0], cell.states[0][1].name, "Y")
        for k, output in enumerate(cell.steps):
            body.add_output(output, output.name, f"output_{k}")
        return helper.make_graph(body.nodes, "cell", inputs, body.outputs, value_info=list(graph.value_info))


class _Body:
    """The outputs of the loop body, masked beyond the end of a sequence.

    Args:
        layer: The layer.
        nodes: Nodes of the step.
        mask: Name of the mask, which says whether the step is before the end, bool `[B,1]`.
    """

    def __init__(self, layer: _Layer, nodes: list[onnx.NodeProto], mask: str) -> None:
        self.layer, self.nodes, self.mask = layer, nodes, mask
        self.outputs: list[onnx.ValueInfoProto] = []

    def add_output(self, like: onnx.ValueInfoProto, value: str, name: str, kept: str | None = None) -> None:
        """Adds a value as an output; beyond the end of a sequence the output is `kept`, or zeros."""
        made = self.layer.fresh(f"layer/{name}")
        given = [f"{PREFIX}{value}"]
        if self.layer.lengths:
            rank, kind = _rank_and_type(like, value)
            valid = self.mask
            if rank != MASK_RANK:
                valid = self.layer.fresh(f"layer/{name}.valid")
                shape = self._constant(f"{name}.dims", TensorProto.INT64, [rank], [-1, *[1] * (rank - 1)])
                self.nodes.append(helper.make_node("Reshape", [self.mask, shape], [valid], valid))
            given = [valid, *given, kept or self._constant(f"{name}.blank", kind, [], [0])]
        self.nodes.append(helper.make_node("Where" if self.layer.lengths else "Identity", given, [made], made))
        self.outputs.append(_renamed(like, made))

    def _constant(self, name: str, kind: int, dims: list[int], values: list[int]) -> str:
        made = self.layer.fresh(f"layer/{name}")
        tensor = helper.make_tensor(made, kind, dims, values)
        self.nodes.append(helper.make_node("Constant", [], [made], made, value=tensor))
        return made


def _rank_and_type(value: onnx.ValueInfoProto, name: str) -> tuple[int, int]:
    """Returns the rank of an output, batch included, and its numeric type."""
    held = value.type.tensor_type
    rank = len(held.shape.dim) if held.HasField("shape") else 0
    if not rank or held.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        raise CompileError(
            f"output {name!r} has no known shape [B, ...], or no numbers.",
            supported="with lengths, outputs of numbers whose rank is declared, the batch in front",
            action="declare its shape, or leave --lengths out",
        )
    return rank, held.elem_type


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def _over_time(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Adds a leading time axis."""
    copy = _renamed(value, name)
    shape = copy.type.tensor_type.shape
    if not value.type.tensor_type.HasField("shape"):
        return copy
    dims = list(shape.dim)
    del shape.dim[:]
    shape.dim.add(dim_param="T")
    shape.dim.extend(dims)
    return copy
