"""Models that are broken at random, and those that fuzzing found: a refusal with a message, or a lowered model.

What these would catch: an assumption about a model that no check makes sure of. Coverage-guided runs are described in
docs/testing.md; here the same target runs without coverage.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from tests.generate.layer_specs import Placement
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process
from tests.subjects.brevitas.models import Exported, random_lstm
from tests.subjects.protos import set_node_attribute

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "fuzz"))

from command_targets import COMMANDS, Command  # noqa: E402
from mutations import mutate  # noqa: E402
from structure import restructure  # noqa: E402
from target import WAYS, Target  # noqa: E402
from texts import mutate_archive, mutate_text  # noqa: E402

from tests import generate as testing  # noqa: E402

MUTANTS, GROUPS = 240, 8
Change = Callable[[onnx.ModelProto], None]


@pytest.mark.few(1)
@pytest.mark.parametrize("group", range(GROUPS))
def test_mutated_models(group: int) -> None:
    """No exception but a refusal; and not everything is refused."""
    target = Target()
    seeds = [onnx.load(path) for path in sorted((ROOT / "models" / "tiny").glob("*.onnx"))]
    seeds += [testing.generate(seed).model() for seed in range(12)]
    for k in range(MUTANTS // GROUPS):
        rng = random.Random(group * MUTANTS + k)
        proto, donor = onnx.ModelProto(), rng.choice(seeds)
        proto.CopyFrom(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 2, 3))):
            if rng.random() < 0.5:
                restructure(proto, rng)
            else:
                mutate(proto, rng, lambda held: held[: len(held) // 2], donor)
        target.lower(bytes([rng.randrange(len(WAYS))]) + proto.SerializeToString())
    assert target.lowered > 0
    assert target.refused > 0


FILES = {
    "toml": b'base = "pow2-int8"\n[[rule]]\npoints = "*.hidden"\nrange = "percentile"\npercentile = 99.9\nbits = 8\n',
    "text": b"*.weight.bits=4\nre:.*gate.*.bits=12\n*.scale=0.01\n",
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["toml", "json", "npz", "text"])
def test_mutated_files(kind: str) -> None:
    """Recipes, statistics, data and overrides, each given to the commands that read it."""
    target = Target()
    held = {"json": "stats.json", "npz": "data.npz"}
    seed = (target.home.folder / held[kind]).read_bytes() if kind in held else FILES[kind]
    for number, command in enumerate(COMMANDS, len(WAYS)):
        if command.kind != kind:
            continue
        target.lower(bytes([number]) + seed)
        for k in range(15):
            rng = random.Random(k)
            made = mutate_archive(seed, rng, lambda b: b[::2]) if kind == "npz" else mutate_text(seed, rng)
            target.lower(bytes([number]) + made)
    assert target.lowered > 0
    assert target.refused > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("command", [c for c in COMMANDS if c.kind == "model"], ids=lambda c: c.arguments)
def test_mutated_models_of_other_commands(command: Command) -> None:
    target = Target()
    seeds = [onnx.load(target.home.folder / f"{n}.onnx") for n in ("fused", "float")]
    for k in range(6):
        proto, rng = onnx.ModelProto(), random.Random(k)
        proto.CopyFrom(seeds[k % 2])
        for _ in range(k // 2):
            restructure(proto, rng)
        target.lower(bytes([len(WAYS) + COMMANDS.index(command)]) + proto.SerializeToString())
    assert target.lowered + target.refused == 6


@pytest.mark.slow
def test_every_way_lowers_something() -> None:
    """Otherwise fuzzing would only test the checks of arguments."""
    model = RecurrentCase(outputs=("Y",), opset=17).model().SerializeToString()
    for k, way in enumerate(WAYS):
        target = Target()
        target.lower(bytes([k]) + model)
        wanted = 0 if way.arguments.get("form") == "qonnx" or "dims" in way.arguments else 1
        assert target.lowered == wanted, way


# ---- what fuzzing found ---------------------------------------------------------------------------------------------


def _outer(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.op_type in ("If", "Loop", "Scan", "Layer", "LSTM"))


def _set(name: str, value: object) -> Change:
    def change(model: onnx.ModelProto) -> None:
        set_node_attribute(_outer(model), name, value)

    return change


def _reference(name: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        node = _outer(model)
        attr = next(a for a in node.attribute if a.name == name)
        kind = attr.type
        attr.Clear()
        attr.name, attr.type, attr.ref_attr_name = name, kind, "of_a_function"

    return change


def _body(change: Callable[[onnx.GraphProto], None]) -> Change:
    def changed(model: onnx.ModelProto) -> None:
        change(next(a.g for a in _outer(model).attribute if a.HasField("g")))

    return changed


def _drop(field: str) -> Change:
    def change(graph: onnx.GraphProto) -> None:
        values = getattr(graph, field)
        del values[-1]

    return _body(change)


def _drop_output(model: onnx.ModelProto) -> None:
    node = _outer(model)
    lost = node.output.pop()
    kept = [v for v in model.graph.output if v.name != lost]
    del model.graph.output[:]
    model.graph.output.extend(kept)


def _recursive(model: onnx.ModelProto) -> None:
    (function,) = model.functions
    call = function.node.add()
    call.CopyFrom(_outer(model))
    call.input[:] = [function.input[0]] * len(call.input)
    call.output[:] = [f"again_{k}" for k in range(len(call.output))]


def _twice(model: onnx.ModelProto) -> None:
    model.functions.append(model.functions[0])


def _untyped_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED


REFUSED: dict[str, tuple[Placement, Change]] = {
    "hidden_size of a function": ("main", _reference("hidden_size")),
    "the body of a Loop of a function": ("loop", _reference("body")),
    "more scanned inputs than inputs": ("scan", _set("num_scan_inputs", 10**6)),
    "no scanned inputs": ("scan", _set("num_scan_inputs", 0)),
    "negative number of scanned inputs": ("scan", _set("num_scan_inputs", -1)),
    "directions of more inputs than are scanned": ("scan", _set("scan_input_directions", [0, 0, 0])),
    "axes of more outputs than are scanned": ("scan", _set("scan_output_axes", [0] * 9)),
    "a Scan without an input of its body": ("scan", _drop("input")),
    "a Scan without an output of its body": ("scan", _drop("output")),
    "a Scan with an output too few": ("scan", _drop_output),
    "a Loop without an input of its body": ("loop", _drop("input")),
    "a Loop without an output of its body": ("loop", _drop("output")),
    "a Loop with an output too few": ("loop", _drop_output),
    "an If without an output of a branch": ("if", _drop("output")),
    "an If with an output too few": ("if", _drop_output),
    "a function that calls itself": ("function", _recursive),
    "two functions of one name": ("function", _twice),
    "an input without type": ("main", _untyped_input),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    placement, change = REFUSED[what]
    model = RecurrentCase(placement=placement, initial_h=True, initial_c=True).model()
    change(model)
    for arguments in ({}, {"recipe": "weight-only-int8"}, {"form": "integer", "unroll": True}):
        with pytest.raises(rnnqc.CompileError):
            rnnqc.lower(model, **arguments)  # type: ignore[arg-type]


def _chain(length: int, calls: int = 1) -> onnx.ModelProto:
    """A layer behind functions of which each calls the next, `calls` times."""
    model = RecurrentCase(placement="function").model()
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    for k in range(length - 1):
        nodes = [helper.make_node(f"f{k + 1}", ["x"], [f"y{c}"], f"call{c}", domain="f") for c in range(calls)]
        names = [f"y{c}" for c in range(calls)]
        model.functions.append(
            helper.make_function("f", f"f{k}", ["x"], ["y"], [*nodes, helper.make_node("Max", names, ["y"])], imports)
        )
    last = helper.make_node("Tanh", ["x"], ["y"])
    product = helper.make_node("MatMul", ["y", "y"], ["unused"])  # what makes a function one that is inlined
    model.functions.append(helper.make_function("f", f"f{length - 1}", ["x"], ["y"], [last, product], imports))
    return model


def _called_chain(length: int, calls: int = 1) -> onnx.ModelProto:
    model = _chain(length, calls)
    layer = _outer(model)
    model.graph.node.insert(0, helper.make_node("f0", [layer.input[0]], ["behind"], "chain", domain="f"))
    model.graph.node[1].input[0] = "behind"
    model.opset_import.append(helper.make_opsetid("f", 1))
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize("length", [3000, 12000])
def test_long_chains_of_functions(length: int) -> None:
    """Nothing calls them; onnx's inliner takes 10,000 functions, and calls 100 deep."""
    assert [e.status for e in rnnqc.lower(_chain(length)).report.entries] == ["lowered"]


@pytest.mark.few(1)
@pytest.mark.parametrize("length", [60, 300])
def test_a_chain_of_functions(length: int) -> None:
    assert [e.status for e in rnnqc.lower(_called_chain(length)).report.entries] == ["lowered"]


@pytest.mark.slow
def test_functions_that_call_others_many_times() -> None:
    """40 functions of a few bytes that come to 2**40 nodes."""
    with pytest.raises(rnnqc.CompileError, match=r"functions cannot be inlined.*Supported: up to \d+ nodes"):
        rnnqc.lower(_called_chain(40, 2))


def test_a_defect_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error is not blamed on a model that onnxruntime runs."""

    def broken(*arguments: object) -> None:
        raise IndexError("planted")

    monkeypatch.setattr("rnnqc.lowering.run.recurrent_nodes", broken)
    with pytest.raises(IndexError, match="planted"):
        rnnqc.lower(RecurrentCase().model())
    model = RecurrentCase().model()
    model.graph.node.add(op_type="Add", input=["X", "X3"], output=["sum"])
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((7, 7, 7), np.float32), "X3"))
    model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, [5, 2, 3]))
    with pytest.raises(rnnqc.CompileError, match="not valid"):
        rnnqc.lower(model)


def _exported(change: Callable[[onnx.NodeProto], None], rank: int = 3) -> onnx.ModelProto:
    made = Exported()
    outputs = made.cell(random_lstm(0, size=4, hidden=5), "X", "cell")
    model = made.model({"X": [3, 2, 4][:rank]}, {outputs[0]: 3})
    change(next(n for n in model.graph.node if n.op_type.startswith("QuantLSTMCell")))
    return model


def _text_as_numbers(node: onnx.NodeProto) -> None:
    attr = next(a for a in node.attribute if a.name.endswith("rounding_mode"))
    attr.CopyFrom(helper.make_attribute(attr.name, [1, 2]))


EXPORTED = {
    "a rounding that is no text": lambda: _exported(_text_as_numbers),
    "a sequence of two axes": lambda: _exported(lambda node: None, rank=2),
}


@pytest.mark.parametrize("what", EXPORTED)
def test_exported_cells_that_are_damaged_stay(what: str) -> None:
    (entry,) = rnnqc.lower(EXPORTED[what]()).report.entries
    assert entry.status == "float"
    assert entry.reason.strip() and entry.found.strip() and entry.action.strip()


@pytest.mark.few(1)
@pytest.mark.parametrize("place", range(4))
def test_quantizers_without_an_input(place: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A division by nothing was written; and what onnxruntime said to that ended `run` with a traceback."""
    model = EXPORTED["a rounding that is no text"]()
    next(n for n in model.graph.node if n.op_type == "Quant").input[place] = ""
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    for node in rnnqc.lower(path).proto.graph.node:
        if node.op_type != "Quant" and node.domain == "":
            assert node.op_type in ("Clip", "Constant") or "" not in node.input, node
    np.savez(tmp_path / "in.npz", X=np.zeros((3, 2, 4), np.float32))
    result = in_process(capfd, "run", path, "-i", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert result.code == 2, result.text
    assert "in.onnx" in result.err and not (tmp_path / "out.npz").exists()
    with pytest.raises(rnnqc.CompileError):
        rnnqc.session(path)


def test_dump_of_a_cell_whose_sequence_is_stored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A value of the cell that no node makes and no input gives."""
    model = RecurrentCase(outputs=("Y",)).model()
    second = model.graph.node.add()
    second.CopyFrom(model.graph.node[0])
    second.name, second.input[0], second.output[0] = "second", "stored", "Y_2"
    stored = np.linspace(-1, 1, 30, dtype=np.float32).reshape(5, 2, 3)
    model.graph.initializer.append(numpy_helper.from_array(stored, "stored"))
    model.graph.output.append(helper.make_tensor_value_info("Y_2", TensorProto.FLOAT, [5, 1, 2, 4]))
    rnnqc.lower(model).save(tmp_path / "in.onnx")
    np.savez(tmp_path / "in.npz", X=stored)
    result = in_process(capfd, "dump", tmp_path / "in.onnx", "-i", tmp_path / "in.npz", "-o", tmp_path / "out")
    assert result.code == 0, result.text
    assert "second" in result.text
