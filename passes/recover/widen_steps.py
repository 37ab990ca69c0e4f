"""Computes unrolled float16 steps in float32, so that they can be recognized."""

from __future__ import annotations

from dataclasses import replace

import onnx
from onnx import TensorProto, numpy_helper

from rnnqc.errors import Outcome
from rnnqc.evaluation.numerics import Bitwise, Float16Close
from rnnqc.ir import Model, info
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.invariants import Property
from rnnqc.passes.recover.float_steps import STEP_NOTE, FloatStep
from rnnqc.passes.recover.recognize_steps import RecognizeSteps
from rnnqc.proto.graph_walks import blocks_of, stored_tensors
from rnnqc.proto.shape_inference import INFERENCE_ERRORS
from rnnqc.proto.value_names import free_name, names_of

F16, F32 = TensorProto.FLOAT16, TensorProto.FLOAT
_PRODUCTS = ("MatMul", "Gemm")
_TYPED = (
    "QuantizeLinear", "DequantizeLinear", "EyeLike", "RandomNormal", "RandomUniform", "RandomNormalLike",
    "RandomUniformLike", "Multinomial", "Bernoulli", "SequenceEmpty", "Optional", "BitCast",
)  # fmt: skip
"""Operators that do not support a change of type."""


class WidenSteps(Pass):
    """Computes a float16 model in float32, if that makes steps of LSTM, GRU or RNN layers recognizable.

    Before: `Cast(x, float16) -> Split(x MatMul W + h MatMul R) -> ... -> h' float16`, float16 W and R

    After: `Split(x MatMul W + h MatMul R) -> ... -> h' -> Cast(h', float16)`, in float32

    Keras' policy mixed_float16 writes such cells and loops. Inputs and outputs of the model keep their types, constants
    become float32. onnxruntime's CPU kernels of most of these operators are float32, too, with Casts around each. The
    roundings to float16 in between disappear.

    A model with functions, with operators of other domains, or with operators whose attributes name a type stays
    unchanged; so does one in which no step can become a node; the reasons are noted.

    Attributes:
        rows: As in RecognizeSteps.
    """

    info = PassInfo(
        name="widen-steps",
        summary="compute unrolled float16 steps in float32",
        numerics=Float16Close(),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def __init__(self) -> None:
        """Creates a pass that has not run yet."""
        self.rows: list[list[int | str | None]] = []

    def run(self, model: Model) -> PassResult:
        """Tries the change on a copy of the model."""
        self.rows = []
        widened = _widened(model.proto)
        if widened is None:
            return PassResult(False, (), {"widened": 0}, Bitwise())
        steps, trial = RecognizeSteps(), Model(onnx.ModelProto.FromString(widened.SerializeToString()))
        refusals = steps.run(trial).remarks
        self.rows = steps.rows
        if not steps.sites:
            _keep_notes(trial, model)
            return PassResult(False, refusals, {"widened": 0}, Bitwise())
        model.reload(widened)
        remarks = [self.remark(Outcome.NOTE, s, "step", "of float16, computes in float32.") for s in steps.sites]
        return PassResult(True, tuple(remarks), {"widened": len(remarks)})


def _keep_notes(trial: Model, model: Model) -> None:
    """Notes at the nodes of a model why its steps cannot become nodes, as found in a copy of it."""
    nodes = {n.name: n for g in model.graphs() for n in g.nodes}
    for node in (n for g in trial.graphs() for n in g.nodes if n.name in nodes):
        found: FloatStep | None = info(node).notes.get(STEP_NOTE)
        if found is not None:
            products = tuple(nodes[p.name] for p in found.products if p.name in nodes)
            info(nodes[node.name]).notes[STEP_NOTE] = replace(found, products=products)


def _widened(proto: onnx.ModelProto) -> onnx.ModelProto | None:
    """Returns the model with float32 for every float16 value; None if it has no float16 matmul or cannot be changed."""
    blocks = list(blocks_of([proto.graph]))
    nodes = [n for b in blocks for n in b.node]
    narrow = {t.name for b in blocks for t in stored_tensors(b) if t.data_type == F16}
    narrow |= {
        n.output[0] for n in nodes if n.op_type == "Constant" and n.attribute and n.attribute[0].t.data_type == F16
    }
    narrow |= {n.output[0] for n in nodes if _to_float16(n)}
    if not any(i in narrow for n in nodes if n.op_type in _PRODUCTS for i in n.input):
        return None
    if proto.functions or any(b.sparse_initializer for b in blocks if isinstance(b, onnx.GraphProto)):
        return None
    if any(n.domain or n.op_type in _TYPED for n in nodes):
        return None
    made = _Widening(proto).run()
    try:
        onnx.checker.check_model(made, full_check=True)
    except INFERENCE_ERRORS:
        return None
    return made


def _to_float16(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    """The attribute by which a Cast converts to float16; none for other nodes."""
    return [a for a in node.attribute if node.op_type == "Cast" and a.name == "to" and a.i == F16]


class _Widening:
    """A copy of a model with float16 replaced by float32."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = onnx.ModelProto()
        self.proto.CopyFrom(proto)
        self.taken = names_of(self.proto.graph)

    def run(self) -> onnx.ModelProto:
        blocks = list(blocks_of([self.proto.graph]))
        for block in blocks:
            assert isinstance(block, onnx.GraphProto)
            self._constants(block)
            outer = block is self.proto.graph
            for value in (*block.value_info, *(() if outer else (*block.input, *block.output))):
                if value.type.tensor_type.elem_type == F16:
                    value.type.tensor_type.elem_type = F32
        self._cast_boundary(self.proto.graph)
        return self.proto

    @staticmethod
    def _constants(block: onnx.GraphProto) -> None:
        """Converts constants, also those in attributes, and the results of Casts."""
        held = [a for node in block.node for a in node.attribute if a.HasField("t")]
        for tensor in [*block.initializer, *(a.t for a in held)]:
            if tensor.data_type == F16:
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("f4"), tensor.name))
        for to in (a for node in block.node for a in _to_float16(node)):
            to.i = F32

    def _cast_boundary(self, graph: onnx.GraphProto) -> None:
        """Inserts Casts behind float16 inputs and in front of float16 outputs, which keep their declared types."""
        stored = {t.name for t in graph.initializer}
        inputs = [v.name for v in graph.input if v.type.tensor_type.elem_type == F16 and v.name not in stored]
        names = {n: free_name(f"{n}.float32", self.taken) for n in inputs}
        outputs = {v.name for v in graph.output if v.type.tensor_type.elem_type == F16} - set(inputs)
        made = {n: free_name(f"{n}.float32", self.taken) for n in outputs}
        _read_instead(graph, {**names, **made})
        for node in graph.node:
            renamed = [made.get(o, o) for o in node.output]
            del node.output[:]
            node.output.extend(renamed)
        self._put_in_front(graph, [self._cast(n, names[n], F32) for n in inputs])
        graph.node.extend(self._cast(made[v.name], v.name, F16) for v in graph.output if v.name in made)

    def _cast(self, source: str, target: str, to: int) -> onnx.NodeProto:
        name = free_name(f"{target}/cast", self.taken)
        return onnx.helper.make_node("Cast", [source], [target], name, to=to)

    @staticmethod
    def _put_in_front(block: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
        kept = [*nodes, *block.node]
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
        del block.node[:]
        block.node.extend(copies)


def _read_instead(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Replaces the values that nodes and outputs of bodies read; names are unique in a model."""
    for block in blocks_of([graph]):
        for node in block.node:
            if any(i in names for i in node.input):
                renamed = [names.get(i, i) for i in node.input]
                del node.input[:]
                node.input.extend(renamed)
        if isinstance(block, onnx.GraphProto) and block is not graph:
            for value in block.output:
                value.name = names.get(value.name, value.name)
