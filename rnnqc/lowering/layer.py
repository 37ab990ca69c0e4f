"""A recurrent layer from a model of its cell: one step becomes a Scan over a sequence."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from rnnqc.data.feeds import true_inputs
from rnnqc.data.streaming import state_pairs
from rnnqc.errors import CompileError, located
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.proto.files import load_proto
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.inlining import inlined
from rnnqc.proto.shape_inference import infer_shapes
from rnnqc.proto.validation import check_model
from rnnqc.proto.version_conversion import NOT_CONVERTED, convert_version

LENGTHS = "sequence_lens"
MASK_RANK = 2
PREFIX = "step/"
"""In front of the names that the cell's values have in the loop."""
HELD = "layer/"
"""In front of the names that the cell's initializers, which keep theirs outside, have in the loop."""
OPSET = 17
"""What a cell with an older operator set than `OLDEST_OPSET` is converted to."""
OLDEST_OPSET = NOT_CONVERTED
IR_VERSIONS = (8, 13)
_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


@refusing_invalid_models
def layer(
    cell: str | os.PathLike[str] | onnx.ModelProto,
    *,
    state: Mapping[str, str] | Iterable[str] | None = None,
    reverse: bool = False,
    lengths: bool = False,
    initial_states: bool = False,
) -> onnx.ModelProto:
    """A model that runs a cell over a sequence. Model-local functions are inlined.

    Args:
        cell: A model of one step, a path or a ModelProto: `x [B,I]` and states `[B,H]` in, the states after the step
            and perhaps more out. States may have different widths.
        state: For each input that is a state the output that becomes it, as pairs or as texts `IN:OUT`. By default the
            inputs after the first are the states, and the first outputs what becomes of them, in order.
        reverse: Run from the last step to the first. Outputs stand at their own time, final states are those after
            step 0.
        lengths: Give the model an input `sequence_lens`, int32 `[B]`, each 0 to T: beyond its length a sequence keeps
            its states, and outputs are 0 there.
        initial_states: Make the initial states inputs, under the names the cell has; otherwise they are zeros.

    Returns:
        A model with the input `x [T,B,I]` under the cell's name for it. Its outputs: `Y`, the first state of all steps
        `[T,B,H]`; under their names the cell's other outputs `[T,B,...]`; under their names the final states `[B,H]`.

    Raises:
        CompileError: It is no valid model, or no cell: too few inputs or outputs, states of unknown width, or of
            another shape after the step.
        UsageError: `state` names no input or output of it.
    """
    proto = onnx.ModelProto()
    source = "<model>"
    if isinstance(cell, onnx.ModelProto):
        proto.CopyFrom(cell)
    else:
        source = os.fspath(cell)
        proto = load_proto(Path(cell))
    with located(source):
        opset = check_model(proto, source)
        if proto.functions:
            proto = inlined(proto)
        if opset < OLDEST_OPSET:
            proto = convert_version(proto, opset, OPSET, "the cell")
        return _Layer(proto, state, reverse, lengths, initial_states).model()


class _Layer:
    def __init__(
        self,
        proto: onnx.ModelProto,
        state: Mapping[str, str] | Iterable[str] | None,
        reverse: bool,
        lengths: bool,
        initial_states: bool,
    ) -> None:
        self.proto, self.reverse, self.lengths, self.initial_states = proto, reverse, lengths, initial_states
        inputs, outputs = true_inputs(proto), list(proto.graph.output)
        pairs = state_pairs(state, proto) if state else self._pairs_in_order(inputs, outputs)
        named = {v.name: v for v in [*inputs, *outputs]}
        others = [i for i in inputs if i.name not in pairs]
        if len(others) != 1:
            raise CompileError(
                f"{len(others)} inputs are no states: {[i.name for i in others]}.",
                supported="a cell with one input x besides its states",
                action="name the states (--state IN:OUT), and make the rest initializers",
            )
        if len(set(pairs.values())) < len(pairs):
            raise CompileError(f"states {pairs} take the same output.", supported="an output for each state")
        self.x = others[0]
        self.states = [(named[i], named[o]) for i, o in pairs.items()]
        self.steps = [o for o in outputs if o.name not in set(pairs.values())]
        found = inferred_outputs(proto)
        self.widths = [width_of_state(before, found[after.name]) for before, after in self.states]
        self.own = names_of(proto.graph)
        self.taken = set(self.own)
        self.nodes: list[onnx.NodeProto] = []
        self.held = self._held()

    @staticmethod
    def _pairs_in_order(inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> dict[str, str]:
        count = len(inputs) - 1
        if count < 1 or len(outputs) < count:
            raise CompileError(
                f"{len(inputs)} input(s) and {len(outputs)} output(s).",
                supported="inputs x, h (and more states), outputs h (and the other states) after the step",
                action="export one step of the cell, or name its states (--state IN:OUT)",
            )
        return {i.name: o.name for i, o in zip(inputs[1:], outputs, strict=False)}

    def model(self) -> onnx.ModelProto:
        """The model of the layer."""
        x_type = self.x.type.tensor_type
        batch = x_type.shape.dim[0] if x_type.HasField("shape") and x_type.shape.dim else None
        starts = [self._start(before, width) for (before, _), width in zip(self.states, self.widths, strict=True)]
        sequences = [self.x.name] + ([self._mask()] if self.lengths else [])
        y = self._fresh("Y")
        stacked = [y, *(o.name for o in self.steps)]
        finals = [after.name for _, after in self.states]
        body = self._body()
        scan = helper.make_node("Scan", [*starts, *sequences], [*finals, *stacked], "layer")
        attributes = {"body": body, "num_scan_inputs": len(sequences)}
        if self.reverse:
            attributes |= {
                "scan_input_directions": [1] * len(sequences),
                "scan_output_directions": [1] * len(stacked),
            }
        scan.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        self.nodes.append(scan)
        inputs = [_over_time(self.x, self.x.name)]
        if self.lengths:
            inputs.append(helper.make_tensor_value_info(LENGTHS, TensorProto.INT32, [None]))
            if batch is not None:
                inputs[-1].type.tensor_type.shape.dim[0].CopyFrom(batch)
        if self.initial_states:
            inputs += [before for before, _ in self.states]
        first = self.states[0][0]
        outputs = [_over_time(first, y), *(_over_time(o, o.name) for o in self.steps)]
        outputs += [_renamed(before, after.name) for before, after in self.states]
        graph = helper.make_graph(
            [*self.held.values(), *self.nodes], "layer", inputs, outputs, list(self.proto.graph.initializer)
        )
        graph.sparse_initializer.extend(self.proto.graph.sparse_initializer)
        made = onnx.ModelProto(producer_name="rnnqc", doc_string=self.proto.doc_string)
        made.ir_version = min(max(self.proto.ir_version, IR_VERSIONS[0]), IR_VERSIONS[1])
        made.graph.CopyFrom(graph)
        made.opset_import.extend(self.proto.opset_import)
        made.metadata_props.extend(self.proto.metadata_props)
        return made

    def _fresh(self, name: str) -> str:
        return free_name(name, self.taken)

    def _held(self) -> dict[str, onnx.NodeProto]:
        """For each initializer that the cell reads the Identity whose output the loop's body reads instead.

        `onnx.compose` renames what a body captures only if a node or an input makes it: an initializer that was
        captured itself would, in a merged model, become the one of the same name in another layer.
        """
        stored = self.proto.graph.initializer
        sparse = self.proto.graph.sparse_initializer
        names = dict.fromkeys([*(t.name for t in stored), *(t.values.name for t in sparse)])
        read = {i for block in blocks_of([self.proto.graph]) for n in block.node for i in n.input}
        made = {n: self._fresh(f"{HELD}{n}") for n in names if n in read}
        return {n: helper.make_node("Identity", [n], [m], m) for n, m in made.items()}

    def _constant(self, name: str, values: list[int] | int, kind: int = TensorProto.INT64) -> str:
        made = self._fresh(name)
        dims = [len(values)] if isinstance(values, list) else []
        flat = values if isinstance(values, list) else [values]
        tensor = helper.make_tensor(made, kind, dims, flat)
        self.nodes.append(helper.make_node("Constant", [], [made], made, value=tensor))
        return made

    def _op(self, op: str, inputs: list[str], name: str) -> str:
        made = self._fresh(name)
        self.nodes.append(helper.make_node(op, inputs, [made], made))
        return made

    def _dimension(self, axis: int, name: str) -> str:
        shape = self._op("Shape", [self.x.name], f"{name}.shape")
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
        """Whether step t of sequence b is before its end, bool `[T,B,1]`."""
        zero, one = self._constant("first", 0), self._constant("one", 1)
        times = self._op("Range", [zero, self._dimension(0, "time"), one], "time.range")
        column = self._op("Unsqueeze", [times, self._constant("columns", [1, 2])], "time.column")
        lens = self._op("Cast", [LENGTHS], "lens")
        self.nodes[-1].attribute.append(helper.make_attribute("to", TensorProto.INT64))
        row = self._op("Unsqueeze", [lens, self._constant("rows", [0, 2])], "lens.row")
        return self._op("Less", [column, row], "time.valid")

    def _body(self) -> onnx.GraphProto:
        held = {t.name for t in self.proto.graph.initializer} | {
            t.values.name for t in self.proto.graph.sparse_initializer
        }
        graph = onnx.GraphProto()
        graph.CopyFrom(self.proto.graph)
        names = {n: f"{PREFIX}{n}" for n in self.own - held}
        rename(graph, names | {n: node.output[0] for n, node in self.held.items()})
        mask = self._fresh("layer/valid")
        inputs = [_renamed(v, f"{PREFIX}{v.name}") for v in (*(before for before, _ in self.states), self.x)]
        nodes = list(graph.node)
        if self.lengths:
            inputs.append(helper.make_tensor_value_info(mask, TensorProto.BOOL, [None, 1]))
        outputs: list[onnx.ValueInfoProto] = []

        def constant(name: str, kind: int, dims: list[int], values: list[int]) -> str:
            made = self._fresh(f"layer/{name}")
            nodes.append(
                helper.make_node("Constant", [], [made], made, value=helper.make_tensor(made, kind, dims, values))
            )
            return made

        def hand_out(like: onnx.ValueInfoProto, value: str, name: str, kept: str | None = None) -> None:
            """`value` as an output; beyond the length of a sequence `kept`, or zeros."""
            made = self._fresh(f"layer/{name}")
            given = [f"{PREFIX}{value}"]
            if self.lengths:
                rank, kind = _rank_and_type(like, value)
                valid = mask
                if rank != MASK_RANK:
                    valid = self._fresh(f"layer/{name}.valid")
                    shape = constant(f"{name}.dims", TensorProto.INT64, [rank], [-1, *[1] * (rank - 1)])
                    nodes.append(helper.make_node("Reshape", [mask, shape], [valid], valid))
                given = [valid, *given, kept or constant(f"{name}.blank", kind, [], [0])]
            nodes.append(helper.make_node("Where" if self.lengths else "Identity", given, [made], made))
            outputs.append(_renamed(like, made))

        for k, (before, after) in enumerate(self.states):
            hand_out(before, after.name, f"next_{k}", f"{PREFIX}{before.name}")
        hand_out(self.states[0][0], self.states[0][1].name, "Y")
        for k, output in enumerate(self.steps):
            hand_out(output, output.name, f"output_{k}")
        return helper.make_graph(nodes, "cell", inputs, outputs, value_info=list(graph.value_info))


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Renames values and nodes of a graph and its subgraphs, in place."""
    for block in blocks_of([graph]):
        for node in block.node:
            node.name = names.get(node.name, node.name)
            for values in (node.input, node.output):
                renamed = [names.get(v, v) if v else v for v in values]
                del values[:]
                values.extend(renamed)
        if isinstance(block, onnx.GraphProto):
            sparse = (t for s in block.sparse_initializer for t in (s.values, s.indices))
            for value in (*block.input, *block.output, *block.value_info, *block.initializer, *sparse):
                value.name = names.get(value.name, value.name)


def _rank_and_type(value: onnx.ValueInfoProto, name: str) -> tuple[int, int]:
    """How many axes an output has, the batch in front, and its type, which has a zero."""
    held = value.type.tensor_type
    rank = len(held.shape.dim) if held.HasField("shape") else 0
    if not rank or held.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        raise CompileError(
            f"output {name!r} has no known shape [B, ...], or no numbers.",
            supported="with lengths, outputs of numbers whose rank is declared, the batch in front",
            action="declare its shape, or leave --lengths out",
        )
    return rank, held.elem_type


def inferred_outputs(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """The outputs with the shapes that follow from those of the inputs; as declared where these contradict."""
    with contextlib.suppress(onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        proto = infer_shapes(proto)
    return {o.name: o for o in proto.graph.output}


def width_of_state(before: onnx.ValueInfoProto, after: onnx.ValueInfoProto) -> int:
    """The width H of a state `[B,H]`, an input.

    Raises:
        CompileError: It is no such input, or `after`, which it is to become, has another shape or width.
    """
    kind, dims = before.type.tensor_type.elem_type, before.type.tensor_type.shape.dim
    if kind not in _FLOATS or len(dims) != 2 or dims[1].dim_value <= 0:
        shown = [d.dim_value or d.dim_param or "?" for d in dims]
        raise CompileError(
            f"state {before.name!r} is {helper.tensor_dtype_to_string(kind)} of shape {shown}.",
            supported="float states [B, H] with a known H",
            action="export the cell with states of rank 2; where it needs others, it can Unsqueeze and Squeeze them",
        )
    other = after.type.tensor_type
    if other.HasField("shape"):
        width = other.shape.dim[1].dim_value if len(other.shape.dim) == 2 else 0
        if len(other.shape.dim) != 2 or width not in (0, dims[1].dim_value):
            has = f"{width} after the step" if width else f"has {len(other.shape.dim)} axes after the step"
            raise CompileError(
                f"state {before.name!r} has {dims[1].dim_value} units, and {after.name!r} {has}.",
                supported="states that keep their shape",
                action="name the states and what becomes of them (--state IN:OUT)",
            )
    return int(dims[1].dim_value)


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def _over_time(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """The same with a time axis in front."""
    copy = _renamed(value, name)
    shape = copy.type.tensor_type.shape
    if not value.type.tensor_type.HasField("shape"):
        return copy
    dims = list(shape.dim)
    del shape.dim[:]
    shape.dim.add(dim_param="T")
    shape.dim.extend(dims)
    return copy


def free_name(name: str, taken: set[str]) -> str:
    """`name`, or with a number behind it a name that is not in `taken`, to which it is added."""
    made, k = name, 1
    while made in taken:
        k += 1
        made = f"{name}_{k}"
    taken.add(made)
    return made


def names_of(graph: onnx.GraphProto) -> set[str]:
    """Names of all values and nodes, in subgraphs too."""
    found: set[str] = set()
    for block in blocks_of([graph]):
        found.update(n.name for n in block.node)
        found.update(o for n in block.node for o in n.output)
        if isinstance(block, onnx.GraphProto):
            found.update(v.name for v in (*block.input, *block.output, *block.initializer))
    return found - {""}
