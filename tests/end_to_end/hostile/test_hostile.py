"""Inputs that a compiler of models has to survive.

The rule: a file that is no valid model, or that onnxruntime refuses too, is an error - exit code 2, one message that
names the file or the node, no output file, no traceback. A valid model whose recurrent node cannot be lowered is not an
error: the node stays float, the report says why, and --strict makes that exit code 3.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from tests.generate.float_layer import Activation
from tests.generate.layer_specs import NODE_NAME
from tests.generate.layers import RecurrentCase
from tests.runs.commands import Result, in_process, in_subprocess
from tests.runs.sessions import Array, plain_session, run, save_arrays, sqnr
from tests.subjects.protos import keep_outside, of_nodes, set_node_attribute

Mutation = Callable[[onnx.ModelProto], None]
CASE = RecurrentCase(lens=(5, 3), initial_h=True, initial_c=True)
BIDIRECTIONAL = CASE.replace(direction="bidirectional")
GIGABYTE = 2**30


@pytest.fixture
def lower(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs `rnnqc lower MODEL -o tmp_path/out.onnx` on a proto, bytes or path."""

    def command(model: onnx.ModelProto | bytes | Path, *flags: str) -> Result:
        path = model if isinstance(model, Path) else tmp_path / "in.onnx"
        if isinstance(model, onnx.ModelProto):
            path.write_bytes(model.SerializeToString())
        elif isinstance(model, bytes):
            path.write_bytes(model)
        return in_process(capfd, "lower", path, "-o", tmp_path / "out.onnx", *flags)

    return command


def _assert_refused(result: Result, folder: Path, *mentioned: str) -> None:
    assert result.code == 2, f"exit code {result.code}: {result.text}"
    assert "Traceback" not in result.text, result.text
    assert result.err.strip(), "no message"
    flat = " ".join(result.err.split())
    assert any(text in flat for text in mentioned), f"none of {mentioned} in: {flat}"
    left = sorted(p.name for p in folder.iterdir() if p.name.startswith(("out", ".out", "tmp")) or p.suffix == ".tmp")
    assert not left, f"left behind: {left}"


def _node(model: onnx.ModelProto) -> onnx.NodeProto:
    node: onnx.NodeProto = next(n for n in model.graph.node if n.op_type == "LSTM")
    return node


def _set(name: str, value: object) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        set_node_attribute(_node(model), name, value)

    return mutate


def _remove(name: str) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        node = _node(model)
        kept = [a for a in node.attribute if a.name != name]
        del node.attribute[:]
        node.attribute.extend(kept)

    return mutate


def _initializer(name: str, change: Callable[[Array], Array]) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == name)
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))

    return mutate


def _fill(value: float) -> Mutation:
    return _initializer("W", lambda w: np.full_like(w, value))


def _one_value(value: float) -> Mutation:
    def change(w: Array) -> Array:
        changed = w.copy()
        changed[0, 5, 1] = value
        return changed

    return _initializer("W", change)


def _duplicate_output(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Identity", ["X"], ["Y"], name="second_writer"))


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Add", ["Y", "loop_b"], ["loop_a"], name="cycle_a"))
    model.graph.node.append(helper.make_node("Identity", ["loop_a"], ["loop_b"], name="cycle_b"))


def _missing_value(model: onnx.ModelProto) -> None:
    _node(model).input[2] = "nowhere"


def _too_few_inputs(model: onnx.ModelProto) -> None:
    del _node(model).input[2:]


def _too_many_outputs(model: onnx.ModelProto) -> None:
    _node(model).output.append("a_fourth")


def _unknown_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("NoSuchOperator", ["X"], ["nothing"], name="no_such_node"))


def _no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def _opset(version: int) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        model.opset_import[0].version = version

    return mutate


def _ir(version: int) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        model.ir_version = version

    return mutate


def _no_graph(model: onnx.ModelProto) -> None:
    model.ClearField("graph")


def _truncated_tensor(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "W")
    tensor.raw_data = tensor.raw_data[:-3]


def _huge_dims(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "W")
    tensor.dims[1] = 2**40


def _negative_dims(model: onnx.ModelProto) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == "W")
    tensor.dims[1] = -16


def _output_sequence(model: onnx.ModelProto) -> None:
    """An LSTM of the first operator set."""
    model.opset_import[0].version = 1
    _node(model).attribute.append(helper.make_attribute("output_sequence", 1))


def _nameless(field: str) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        getattr(model.graph, field)[0].name = ""

    return mutate


def _dims(*sizes: int | str) -> Mutation:
    """Other declared sizes of X, and none of anything else."""

    def mutate(model: onnx.ModelProto) -> None:
        x, *others = model.graph.input
        for dim, size in zip(x.type.tensor_type.shape.dim, sizes, strict=True):
            if isinstance(size, str):
                dim.dim_param = size
            else:
                dim.dim_value = size
        for value in (*others, *model.graph.output):
            value.type.tensor_type.ClearField("shape")

    return mutate


REFUSED: dict[str, tuple[RecurrentCase, Mutation]] = {
    "the LSTM of operator set 1": (CASE, _output_sequence),
    "operator set 6": (CASE, _opset(6)),
    "an initializer without a name": (CASE, _nameless("initializer")),
    "an input without a name": (CASE, _nameless("input")),
    "an output without a name": (CASE, _nameless("output")),
    "an input size of 0": (CASE, _dims(5, 2, 0)),
    "W of rank 2": (CASE, _initializer("W", lambda w: w[0])),
    "R of rank 4": (CASE, _initializer("R", lambda r: r[None])),
    "B of the wrong size": (CASE, _initializer("B", lambda b: b[:, :-1])),
    "P of the wrong size": (CASE.replace(peepholes=True), _initializer("P", lambda p: p[:, :-1])),
    "W of zero size": (CASE, _initializer("W", lambda w: w[:, :0])),
    "4H not divisible": (CASE, _initializer("W", lambda w: w[:, :-1])),
    "W for another input size": (CASE, _initializer("W", lambda w: w[:, :, :-1])),
    "R not square": (CASE, _initializer("R", lambda r: r[:, :, :-1])),
    "one direction's weights for two": (CASE, _set("direction", "bidirectional")),
    "two directions' weights for one": (BIDIRECTIONAL, _remove("direction")),
    "unknown direction": (CASE, _set("direction", "sideways")),
    "lying hidden_size": (CASE, _set("hidden_size", 5)),
    "negative hidden_size": (CASE, _set("hidden_size", -4)),
    "hidden_size as text": (CASE, _set("hidden_size", "four")),
    "two activations": (CASE, _set("activations", ["Sigmoid", "Tanh"])),
    "three activations for two directions": (BIDIRECTIONAL, _set("activations", ["Sigmoid", "Tanh", "Tanh"])),
    "unknown activation": (CASE, _set("activations", ["Sigmoid", "Tanh", "Swish9"])),
    "clip 0": (CASE, _set("clip", 0.0)),
    "negative clip": (CASE, _set("clip", -1.0)),
    "NaN clip": (CASE, _set("clip", float("nan"))),
    "layout 2": (CASE, _set("layout", 2)),
    "unknown attribute": (CASE, _set("no_such_attribute", 1)),
    "duplicate value name": (CASE, _duplicate_output),
    "cycle": (CASE, _cycle),
    "missing value": (CASE, _missing_value),
    "too few inputs": (CASE, _too_few_inputs),
    "too many outputs": (CASE, _too_many_outputs),
    "unknown standard operator": (CASE, _unknown_operator),
    "no opset": (CASE, _no_opset),
    "opset 9999": (CASE, _opset(9999)),
    "IR version 0": (CASE, _ir(0)),
    "IR version 9999": (CASE, _ir(9999)),
    "no graph": (CASE, _no_graph),
    "truncated tensor": (CASE, _truncated_tensor),
    "huge tensor shape": (CASE, _huge_dims),
    "negative tensor shape": (CASE, _negative_dims),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_model(what: str, lower: Callable[..., Result], tmp_path: Path) -> None:
    case, mutate = REFUSED[what]
    model = case.model()
    mutate(model)
    _assert_refused(lower(model), tmp_path, NODE_NAME, "in.onnx", "second_writer", "cycle_", "no_such_node")


FILES = {
    "empty": b"",
    "text": b"this is not a model\n" * 20,
    "truncated": CASE.model().SerializeToString()[:-100],
    "zeros": bytes(4096),
    "endless varint": b"\xff" * 64,
}


@pytest.mark.parametrize("what", FILES)
def test_no_model_at_all(what: str, lower: Callable[..., Result], tmp_path: Path) -> None:
    _assert_refused(lower(FILES[what]), tmp_path, "in.onnx")


def test_missing_file(lower: Callable[..., Result], tmp_path: Path) -> None:
    _assert_refused(lower(tmp_path / "absent.onnx"), tmp_path, "absent.onnx")


def test_directory(lower: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    _assert_refused(lower(tmp_path / "folder.onnx"), tmp_path, "folder.onnx")


def test_a_file_larger_than_protobuf_allows(tmp_path: Path) -> None:
    """Refused by its size: nothing of it is read."""
    with (tmp_path / "in.onnx").open("wb") as stream:
        stream.truncate(200 * GIGABYTE)
    result = in_subprocess("lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", memory=3 * GIGABYTE)
    _assert_refused(result, tmp_path, "has more than")


@pytest.mark.slow
def test_larger_than_protobuf_allows(tmp_path: Path) -> None:
    with (tmp_path / "in.onnx").open("wb") as stream:
        stream.truncate(2 * GIGABYTE + 1)
    result = in_subprocess("lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", memory=12 * GIGABYTE)
    _assert_refused(result, tmp_path, "in.onnx")


def _weight_as_input(name: str) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == name)
        model.graph.initializer.remove(tensor)
        model.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))

    return mutate


def _elements(kind: int) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        for tensor in model.graph.initializer:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
        for value in (*model.graph.input, *model.graph.output):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = kind

    return mutate


def _infinite(kind: str, gates: int) -> onnx.ModelProto:
    """A GRU or RNN of which one weight is infinite."""
    parameters = {"W": (1, gates * 4, 3), "R": (1, gates * 4, 4)}
    node = helper.make_node(kind, ["X", "W", "R"], ["Y"], NODE_NAME, hidden_size=4)
    arrays = {name: np.full(shape, 0.1, np.float32) for name, shape in parameters.items()}
    model = of_nodes([node], {"X": [5, 2, 3]}, {"Y": [5, 1, 2, 4]}, arrays)
    _initializer("R", lambda r: np.where(np.arange(r.size).reshape(r.shape) == 7, np.float32(np.inf), r))(model)
    return model


def _mutated(mutate: Mutation, case: RecurrentCase = CASE) -> onnx.ModelProto:
    model = case.model()
    mutate(model)
    return model


LEFT_FLOAT: dict[str, Callable[[], onnx.ModelProto]] = {
    "W is an input": lambda: _mutated(_weight_as_input("W")),
    "R is an input": lambda: _mutated(_weight_as_input("R")),
    "B is an input": lambda: _mutated(_weight_as_input("B")),
    "NaN in W": lambda: _mutated(_one_value(float("nan"))),
    "infinity in W": lambda: _mutated(_one_value(float("inf"))),
    "one weight beyond 2**40": lambda: _mutated(_one_value(1e30)),
    "bfloat16": lambda: _mutated(_elements(TensorProto.BFLOAT16), CASE.replace(opset=22)),
    "infinity in R of a GRU": lambda: _infinite("GRU", 3),
    "infinity in R of an RNN": lambda: _infinite("RNN", 1),
}


@pytest.mark.parametrize("what", LEFT_FLOAT)
def test_stays_float_and_is_reported(what: str, lower: Callable[..., Result]) -> None:
    model = LEFT_FLOAT[what]()
    (entry,) = rnnqc.lower(model).report.entries
    assert (entry.node, entry.status) == (NODE_NAME, "float")
    assert entry.reason.strip() and entry.found.strip() and entry.action.strip()
    result = lower(model)
    assert result.code == 0, result.text
    assert NODE_NAME in result.text, f"no remark: {result.text!r}"
    strict = lower(model, "--strict")
    assert strict.code == 3, strict.text
    assert NODE_NAME in strict.text and "Traceback" not in strict.text


def _output(name: str) -> Mutation:
    def mutate(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == name)
        model.graph.output.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))

    return mutate


def _reorder(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        for field in (node.input, node.output):
            for k, name in enumerate(field):
                if name == old:
                    field[k] = new
    for value in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        if value.name == old:
            value.name = new


def _strange_names(model: onnx.ModelProto) -> None:
    _node(model).name = "../..//<script>alert(1)</script>; rm -rf $HOME `id` 'x' \"y\" \\ \n\t %s {0} ünïcode/*.?[a]"
    for old, new in (("W", "/w/../W:0 [*]"), ("R", "R{}%s"), ("X", "<X>"), ("Y", "$(Y)")):
        _rename(model, old, new)


def _empty_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = ""


def _same_names(model: onnx.ModelProto) -> None:
    for name in ("same_a", "same_b"):
        model.graph.node.append(helper.make_node("Identity", ["Y"], [name], name=NODE_NAME))


def _reserved_looking_names(model: onnx.ModelProto) -> None:
    """Values called as generated ones might be."""
    for k, name in enumerate(("W_q", "the_lstm/x_q", "the_lstm_W", "rnnqc", "gate_table", "cell_table", "the_lstm/Y")):
        model.graph.node.append(helper.make_node("Identity", ["X"], [name], name=f"{NODE_NAME}/{k}"))
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [5, 2, 3]))


def _custom_domain(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("com.example", 3))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))


def _sparse_bystander(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "sparse_bystander")
    indices = numpy_helper.from_array(np.array([0, 3], np.int64), "sparse_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [5]))
    model.graph.node.append(helper.make_node("Identity", ["sparse_bystander"], ["dense"], name="bystander"))
    model.graph.output.append(helper.make_tensor_value_info("dense", TensorProto.FLOAT, [5]))


def _ir_3_inputs(model: onnx.ModelProto) -> None:
    assert model.ir_version == 3
    assert {t.name for t in model.graph.initializer} <= {v.name for v in model.graph.input}


LOWERED: dict[str, tuple[RecurrentCase, Mutation]] = {
    "all-zero W": (CASE, _fill(0.0)),
    "constant W": (CASE, _fill(0.25)),
    "denormal W": (CASE, _fill(1e-42)),
    "W is an output": (CASE, _output("W")),
    "nodes out of order": (CASE.replace(weights="computed"), _reorder),
    "strange names": (CASE, _strange_names),
    "empty names": (CASE, _empty_names),
    "equal node names": (CASE, _same_names),
    "names like generated ones": (CASE, _reserved_looking_names),
    "unused domains": (CASE, _custom_domain),
    "sparse initializer elsewhere": (CASE, _sparse_bystander),
    "initializers also inputs, IR 3": (CASE.replace(opset=7), _ir_3_inputs),
    "IR version 14": (CASE, _ir(14)),
    "one step, one unit": (RecurrentCase(T=1, B=1, I=1, H=1), lambda model: None),
    "more alphas than needed": (CASE, _set("activation_alpha", [0.5, 0.5, 0.5, 0.5])),
    "an infinite clip": (CASE, _set("clip", float("inf"))),
    "time and batch of one name": (RecurrentCase(T=2), _dims("N", "N", 3)),
    "alpha left out": (
        CASE.replace(activations=(Activation("HardSigmoid"), Activation("Elu"), Activation("LeakyRelu"))),
        lambda model: None,
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("what", LOWERED)
def test_unusual_but_valid(what: str, lower: Callable[..., Result], tmp_path: Path) -> None:
    case, mutate = LOWERED[what]
    model = case.model()
    mutate(model)
    result = lower(model, "--strict")
    assert result.code == 0, result.text
    after = onnx.load(tmp_path / "out.onnx")
    before = plain_session(_for_onnxruntime(model))
    assert [v.name for v in after.graph.output] == [v.name for v in model.graph.output]
    feeds = dict(zip([v.name for v in model.graph.input], case.feeds(padding=0.0).values(), strict=False))
    expected, got = run(before, feeds), run(rnnqc.session(after, native=False), feeds)
    # Saturated and dead gates have no accuracy bar: what is asked is that the model runs and gives finite numbers.
    for name, value in got.items():
        assert value.shape == expected[name].shape, name
        assert np.isfinite(value).all(), name
    assert sqnr(expected.values(), got.values()) > 20.0


def _behind(op: str, **details: str) -> Mutation:
    """A node after the layer, with weights of five rows."""

    def mutate(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.ones((5, 3), np.float32), "behind"))
        model.graph.node.append(helper.make_node(op, [_node(model).output[0], "behind"], ["more"], "beyond", **details))
        model.graph.output.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, None))
        model.opset_import.append(helper.make_opsetid("com.example", 1))

    return mutate


def _of_a_type_without_kernel(model: onnx.ModelProto) -> None:
    for op, name, made, details in (("Cast", _node(model).output[0], "cast", {"to": TensorProto.BFLOAT16}),
                                    ("Tanh", "cast", "more", {})):  # fmt: skip
        model.graph.node.append(helper.make_node(op, [name], [made], f"beyond_{op}", **details))
    model.graph.output.append(helper.make_tensor_value_info("more", TensorProto.BFLOAT16, None))


UNRUNNABLE: dict[str, tuple[Mutation, int, str]] = {
    "shapes that do not fit": (_behind("MatMul"), 2, "Incompatible dimensions"),
    "types that do not fit": (_behind("And"), 2, "Type Error"),
    "an operator of somebody's library": (_behind("Sum", domain="com.example"), 0, "com.example:Sum"),
    "a type without kernel": (_of_a_type_without_kernel, 0, "Could not find an implementation for Tanh"),
}


@pytest.mark.parametrize("quiet", [False, True], ids=["", "quiet"])
@pytest.mark.parametrize("what", UNRUNNABLE)
def test_a_model_that_onnxruntime_does_not_run(
    what: str, quiet: bool, lower: Callable[..., Result], tmp_path: Path
) -> None:
    """Refused in onnxruntime's words where it is invalid; what another onnxruntime may run is written."""
    mutate, code, words = UNRUNNABLE[what]
    model = RecurrentCase(opset=17).model()
    mutate(model)
    result = lower(model, *(["-q"] if quiet else []))
    if code == 2:
        _assert_refused(result, tmp_path, words)
        return
    assert (result.code, (tmp_path / "out.onnx").exists()) == (0, True), result.text
    assert quiet or all(
        t in " ".join(result.err.split()) for t in ("the float model cannot be run: onnxruntime", words)
    )


@pytest.mark.parametrize("what", UNRUNNABLE)
def test_python_refuses_what_the_command_refuses(what: str) -> None:
    mutate, code, words = UNRUNNABLE[what]
    model = RecurrentCase(opset=17).model()
    mutate(model)
    if code == 2:
        with pytest.raises(rnnqc.CompileError, match=f"The model is not valid: .*{words}"):
            rnnqc.lower(model)
    else:
        assert not rnnqc.lower(model).report.entries_not_lowered


NOT_RUN: dict[str, Mutation] = {
    "no hidden_size": _remove("hidden_size"),
    "a declared length of 0": _dims(0, 2, 3),
    "a declared batch of 0": _dims(5, 0, 3),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("what", NOT_RUN)
def test_what_onnxruntime_does_not_run_is_lowered(what: str) -> None:
    """As the specification has it; with the same weights."""
    lowered = rnnqc.lower(_mutated(NOT_RUN[what]), strict=True).proto
    plain = rnnqc.lower(CASE.model()).proto
    held, wanted = ({t.name: t.raw_data for t in m.graph.initializer} for m in (lowered, plain))
    assert held["the_lstm.forward/W"] == wanted["the_lstm.forward/W"], sorted(held)


def _for_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    """The float model in a form that onnxruntime takes: no equal node names, no IR version of later times."""
    copy = deepcopy(model)
    copy.ir_version = min(model.ir_version, 10)
    for node in copy.graph.node:
        node.name = ""
    return copy


# Wire format of the few fields that nested If nodes need: a Python message cannot be built deeper than 100 levels.
def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _nested(depth: int) -> bytes:
    """The model with its LSTM `depth` If nodes deep."""
    model = CASE.replace(outputs=("Y",)).model()
    model.graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    output = model.graph.output[0].SerializeToString()
    inner = _field(1, _node(model).SerializeToString())
    for level in range(depth):
        attributes = b""
        for name in (b"then_branch", b"else_branch"):
            branch = (
                inner
                if name == b"then_branch"
                else _field(1, helper.make_node("Identity", ["Y_0"], ["Y"]).SerializeToString())
            )
            graph = branch + _field(2, name) + _field(12, output)
            attributes += _field(5, _field(1, name) + _varint(20 << 3) + _varint(5) + _field(6, graph))
        header = _field(1, b"condition") + _field(2, b"Y") + _field(3, b"if%d" % level) + _field(4, b"If")
        inner = _field(1, header + attributes)
    kept = deepcopy(model)
    del kept.graph.node[:]
    kept.graph.initializer.append(numpy_helper.from_array(np.zeros((5, 1, 2, 4), np.float32), "Y_0"))
    graph = kept.graph.SerializeToString() + inner
    kept.ClearField("graph")
    outside: bytes = kept.SerializeToString()
    return outside + _field(7, graph)


def test_deep_nesting_within_the_limit_of_protobuf(lower: Callable[..., Result]) -> None:
    result = lower(_nested(15), "--strict")
    assert result.code == 0, result.text


def test_nesting_beyond_the_limit_of_protobuf(lower: Callable[..., Result], tmp_path: Path) -> None:
    _assert_refused(lower(_nested(3000)), tmp_path, "in.onnx")


def _weights() -> bytes:
    return CASE.parameters()["W"].tobytes()


def test_external_data(lower: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"12345678" + _weights())
    model = keep_outside(CASE.model(), "W", location="weights.bin", offset="8", length=str(len(_weights())))
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    assert lower(tmp_path / "in.onnx").code == 0
    # Weights are part of the output: it goes on working without the file.
    (tmp_path / "weights.bin").unlink()
    expected = run(rnnqc.session(rnnqc.lower(CASE.model()).proto, native=False), CASE.feeds())
    got = run(rnnqc.session(tmp_path / "out.onnx", native=False), CASE.feeds())
    assert {k: v.tobytes() for k, v in expected.items()} == {k: v.tobytes() for k, v in got.items()}


EXTERNAL = {
    "missing file": {"location": "absent.bin"},
    "no location": {"offset": "0"},
    "empty location": {"location": ""},
    "parent directory": {"location": "../secret.bin"},
    "parent directory in the middle": {"location": "folder/../../secret.bin"},
    "absolute path": {"location": "/etc/passwd"},
    "symbolic link to outside": {"location": "link.bin"},
    "symbolic link of a folder": {"location": "elsewhere/secret.bin"},
    "hard link": {"location": "hard.bin"},
    "directory": {"location": "folder"},
    "short file": {"location": "short.bin"},
    "offset past the end": {"location": "weights.bin", "offset": "100000"},
    "negative offset": {"location": "weights.bin", "offset": "-4"},
    "huge length": {"location": "weights.bin", "length": str(2**62)},
    "wrong length": {"location": "weights.bin", "length": "12"},
    "offset as text": {"location": "weights.bin", "offset": "eight"},
}


@pytest.mark.parametrize("what", EXTERNAL)
def test_external_data_attack(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home = tmp_path / "home"
    (home / "folder").mkdir(parents=True)
    secret = tmp_path / "secret.bin"
    secret.write_bytes(_weights())
    (home / "link.bin").symlink_to(secret)
    (home / "elsewhere").symlink_to(tmp_path, target_is_directory=True)
    os.link(secret, home / "hard.bin")
    (home / "short.bin").write_bytes(_weights()[:20])
    (home / "weights.bin").write_bytes(_weights())
    (home / "in.onnx").write_bytes(keep_outside(CASE.model(), "W", **EXTERNAL[what]).SerializeToString())
    result = in_process(capfd, "lower", home / "in.onnx", "-o", home / "out.onnx")
    _assert_refused(result, home, "W", "in.onnx")


OUTPUTS = {
    "missing folder": "absent/out.onnx",
    "folder is a file": "in.onnx/out.onnx",
    "is a folder": "out_folder",
    "name too long": "o" * 300 + ".onnx",
}


DYNAMIC = CASE.replace(dynamic_time=True, dynamic_batch=True)
BAD_FLAGS = {
    "unroll of a dynamic length": (["--unroll"], ("--dim", NODE_NAME)),
    "length 0": (["--unroll", "--dim", "T=0"], ("T",)),
    "negative length": (["--unroll", "--dim", "T=-3"], ("T",)),
    "length as text": (["--unroll", "--dim", "T=five"], ("T=five", "five")),
    "dim without value": (["--dim", "T"], ("--dim", "T")),
    "unknown dim": (["--dim", "NOPE=3"], ("NOPE",)),
    "unknown recipe": (["--recipe", "no_such_recipe"], ("no_such_recipe",)),
    "missing recipe file": (["--recipe", "absent.toml"], ("absent.toml",)),
    "unknown form": (["--form", "tensorrt"], ("tensorrt",)),
    "override without value": (["--set", "no_value"], ("no_value",)),
    "override with a wrong value": (["--set", "*.bits=many"], ("many", "bits")),
    "override of nothing": (["--set", "no/such/*.point.bits=8"], ("no/such",)),
    "unknown flag": (["--frobnicate"], ("--frobnicate",)),
}


@pytest.mark.parametrize("what", BAD_FLAGS)
def test_bad_flags(what: str, lower: Callable[..., Result], tmp_path: Path) -> None:
    flags, mentioned = BAD_FLAGS[what]
    _assert_refused(lower(DYNAMIC.model(), *flags), tmp_path, *mentioned)


def test_an_old_model_that_onnx_cannot_convert(lower: Callable[..., Result], tmp_path: Path) -> None:
    """Its converter raises the errors of its shape inference, too."""
    model = CASE.replace(opset=11).model()
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1), "scale"))
    model.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [None]))
    model.graph.node.append(helper.make_node("Quant", ["X", "scale"], ["x_q"], domain="qonnx.custom_op.general"))
    model.opset_import.append(helper.make_opsetid("qonnx.custom_op.general", 1))
    _assert_refused(lower(model), tmp_path, "cannot be converted")


def test_bad_recipe_file(lower: Callable[..., Result], tmp_path: Path) -> None:
    for k, text in enumerate(("[[[", "weight = 'eight'\n", "[no_such_table]\nx = 1\n")):
        path = tmp_path / f"recipe{k}.toml"
        path.write_text(text)
        _assert_refused(lower(CASE.model(), "--recipe", str(path)), tmp_path, path.name)


@pytest.mark.slow
def test_an_empty_batch_does_not_end_the_process(tmp_path: Path) -> None:
    """onnxruntime's LSTM and GRU end it."""
    model = CASE.replace(dynamic_time=True, dynamic_batch=True, lens=None).model()
    (tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    empty = {k: v[:, :0] for k, v in CASE.feeds().items() if v.ndim == 3}
    save_arrays(tmp_path / "feeds.npz", empty)
    for command in (
        ("run", tmp_path / "in.onnx", "-i", tmp_path / "feeds.npz", "-o", tmp_path / "out.npz"),
        ("verify", tmp_path / "in.onnx", tmp_path / "in.onnx", "--data", tmp_path / "feeds.npz"),
    ):
        _assert_refused(in_subprocess(*command), tmp_path, "empty")


LENGTHS = {"beyond": [6, 2], "negative": [-1, 2], "far": [-(2**31), 2**31 - 1]}


@pytest.mark.few(1)
@pytest.mark.parametrize("flags", [[], ["--stock"]])
@pytest.mark.parametrize("what", LENGTHS)
def test_lengths_that_are_none(what: str, flags: list[str], tmp_path: Path) -> None:
    """Refused when the model runs, whatever runs it; memory beyond the sequence is not read."""
    rnnqc.lower(CASE.model()).save(tmp_path / "in.onnx")
    save_arrays(tmp_path / "feeds.npz", CASE.feeds() | {"sequence_lens": np.array(LENGTHS[what], np.int32)})
    arguments = ["run", tmp_path / "in.onnx", "-i", tmp_path / "feeds.npz", "-o", tmp_path / "out.npz", *flags]
    _assert_refused(in_subprocess(*arguments), tmp_path, "sequence_lens")


def test_unrolling_a_million_steps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(DYNAMIC.model().SerializeToString())
    result = in_subprocess(
        "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--unroll", "--dim", "T=1000000",
        seconds=60, memory=6 * GIGABYTE,
    )  # fmt: skip
    _assert_refused(result, tmp_path, NODE_NAME, "T")


def test_no_traceback_from_the_real_command(tmp_path: Path) -> None:
    """Neither Python nor the C libraries print one."""
    (tmp_path / "in.onnx").write_bytes(struct.pack("<Q", 2**63) * 100)
    _assert_refused(in_subprocess("lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx"), tmp_path, "in.onnx")


@pytest.mark.parametrize("command", ["inspect", "run", "verify"])
def test_other_commands_refuse_garbage(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.onnx"
    path.write_bytes(b"garbage")
    np.savez(tmp_path / "feeds.npz", X=np.zeros(1, np.float32))
    arguments: dict[str, list[str | Path]] = {
        "inspect": [path],
        "run": [path, "-i", tmp_path / "feeds.npz", "-o", tmp_path / "out.npz"],
        "verify": [path, path],
    }
    _assert_refused(in_process(capfd, command, *arguments[command]), tmp_path, "in.onnx")
