"""The commands as a user types them: flags, exit codes, files, and what a lowered file keeps."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rnnqc
from rnnqc.cells.types import all_points
from rnnqc.commands.program import _parsed, _parsers, _separated
from rnnqc.lowering.reports.report import Lowered
from rnnqc.recipes.keys import KEYS
from rnnqc.recipes.recipe import builtin_recipes
from tests.generate.layer_specs import NODE_NAME
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import plain_op
from tests.runs.commands import Result, in_new_python
from tests.runs.lowered import all_nodes
from tests.runs.sessions import Array, assert_same_bits, run, save_arrays
from tests.subjects.protos import of_nodes

CASE = RecurrentCase(T=6, B=2, I=8, H=16, initial_h=True, initial_c=True, dynamic_time=True, dynamic_batch=True)
COMMANDS = (
    "lower", "inspect", "run", "calibrate", "layer", "tune", "verify", "dump", "report", "bench", "recipes", "passes",
    "doctor", "completion", "schema",
)  # fmt: skip

_, PARSERS = _parsers()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The case's model with everything a round trip could lose."""
    model = CASE.model()
    model.producer_name, model.producer_version, model.domain = "someone", "1.2", "org.example"
    model.model_version, model.doc_string = 7, "what it is\nin two lines"
    model.metadata_props.add(key="author", value="A. Person")
    model.graph.doc_string = "the graph"
    model.graph.input[0].doc_string = "frames"
    model.graph.input[0].type.denotation = "TENSOR"
    model.graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_BATCH"
    model.graph.node.append(helper.make_node("Identity", ["X"], ["echo"], name="bystander", doc_string="a note"))
    model.graph.output.append(helper.make_tensor_value_info("echo", onnx.TensorProto.FLOAT, ["T", "B", CASE.I]))
    annotation = model.graph.quantization_annotation.add(tensor_name="X")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="echo_scale")
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "echo_scale"))
    path = tmp_path / "in.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _npz(path: Path, **changes: Array) -> Path:
    save_arrays(path, CASE.feeds() | changes)
    return path


def _load(path: Path) -> dict[str, Array]:
    with np.load(path) as data:
        return dict(data)


def test_lower(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    result = cli("lower", source, "-o", tmp_path / "out.onnx")
    assert result.code == 0, result.text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]
    onnx.checker.check_model(tmp_path / "out.onnx", full_check=True)
    assert "QuantLSTMCell" in {plain_op(n.op_type) for n in onnx.load(tmp_path / "out.onnx").graph.node}


@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_forms(form: str, cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert cli("lower", source, "-o", tmp_path / "out.onnx", "--form", form).code == 0
    model = onnx.load(tmp_path / "out.onnx")
    operators = {plain_op(n.op_type) for n in all_nodes(model)}
    assert ("QuantLSTMCell" in operators) == (form == "fused")
    assert ("QuantLSTMCell" in {plain_op(f.name) for f in model.functions}) == (form == "fused")
    if form == "qcdq":
        assert {"QuantizeLinear", "DequantizeLinear"} <= operators
    got = run(rnnqc.session(tmp_path / "out.onnx", native=False), CASE.feeds())
    assert np.isfinite(got["Y"]).all()


def test_unroll(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert cli("lower", source, "-o", out, "--form", "integer", "--unroll", "--dim", "T=6").code == 0
    model = onnx.load(out)
    assert not {"Scan", "Loop"} & {n.op_type for n in all_nodes(model)}
    # The weights are shared by all steps.
    weights = [t for t in model.graph.initializer if np.prod(t.dims) == CASE.H * 4 * CASE.H]
    assert len(weights) == 1
    assert model.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "B"


def test_quiet_and_verbose(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    quiet = cli("lower", source, "-o", tmp_path / "out.onnx", "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    verbose = cli("lower", source, "-o", tmp_path / "out.onnx", "-v")
    assert verbose.code == 0
    assert NODE_NAME in verbose.text


def test_summary(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """The summary is short, each line has a label, and the next command runs as printed."""
    out = tmp_path / "out of it.onnx"
    result = cli("lower", source, "-o", out, "--verify")
    text = result.out
    assert result.code == 0, result.text
    lines = {line[:10].strip(): line[10:] for line in text.splitlines()}
    labels = [k for k in lines if k in ("layers", "rest", "size", "verified", "accuracy", "speed", "next")]
    assert labels == ["layers", "size", "verified", "accuracy", "speed", "next"]
    assert lines["layers"].startswith("1 of 1 lowered (recipe int8, form fused), recurrent weights ")
    assert lines["size"].startswith(f"{out}: file {source.stat().st_size} B -> ")
    assert re.match(r"SQNR on generated data, least of \d kinds: ", lines["accuracy"])
    assert cli(*shlex.split(lines["next"])[1:]).code == 0


def test_many_layers_alike_are_two_lines(cli: Callable[..., Result], tmp_path: Path) -> None:
    """Would catch: three hundred lines for the steps of a decoder, weights that count once for each of them."""
    model = RecurrentCase(T=1, B=2, I=8, H=16).model()
    (first,) = model.graph.node
    for k in range(1, 12):
        node = model.graph.node.add()
        node.CopyFrom(first)
        node.name = f"step_{k}"
        node.output[:] = [f"{name}_{k}" if name else "" for name in first.output]
        output = model.graph.output.add()
        output.CopyFrom(model.graph.output[0])
        output.name = node.output[0]
    onnx.save(model, tmp_path / "in.onnx")
    text = cli("lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx").out
    rows = [line.split() for line in text.split("layers  ")[0].splitlines()[1:]]
    assert [row[0] for row in rows] == [NODE_NAME, "step_1", "and"]
    assert rows[1][-1] == "shared" and rows[2][:3] == ["and", "10", "more"]
    before = sum(v.nbytes for v in RecurrentCase(T=1, B=2, I=8, H=16).parameters().values())
    assert f"12 of 12 lowered (recipe int8, form fused), recurrent weights {before} B -> " in text


def test_json_report(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert cli("lower", source, "-o", tmp_path / "out.onnx", "--json", tmp_path / "report.json").code == 0
    text = (tmp_path / "report.json").read_text()
    assert isinstance(json.loads(text), dict)
    assert NODE_NAME in text and "lowered" in text


def test_min_sqnr(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert cli("lower", source, "-o", tmp_path / "good.onnx", "--min-sqnr", "20").code == 0
    failed = cli("lower", source, "-o", tmp_path / "bad.onnx", "--min-sqnr", "200")
    assert failed.code == 1
    assert "dB" in failed.text and "Traceback" not in failed.text


def test_a_failed_check_writes_the_report_but_no_model(cli: Callable[..., Result], tmp_path: Path) -> None:
    """Reports are most useful then; the message must not say that there are none."""
    onnx.save(RecurrentCase(op="GRU").model(), tmp_path / "in.onnx")
    output, report = tmp_path / "out.onnx", tmp_path / "out.json"
    command = ("lower", tmp_path / "in.onnx", "-o", output, "--json", report)
    for code, option in ((3, ("--strict", "--form", "qonnx")), (1, ("--min-sqnr", "200"))):
        result = cli(*command, *option)
        assert result.code == code, result.text
        assert "the model was not written" in result.err and "nothing was written" not in result.text
        assert not output.exists()
        assert json.loads(report.read_text())["entries"]
        report.unlink()


def test_no_report_of_a_model_that_cannot_be_written(
    cli: Callable[..., Result], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise rnnqc.CompileError("no room")

    monkeypatch.setattr(Lowered, "save", refuse)
    result = cli("lower", source, "-o", tmp_path / "out.onnx", "--json", tmp_path / "out.json")
    assert result.code == 2 and "no room" in result.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx"]


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", ["4", "8"])
def test_set(bits: str, cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """Fewer bits give other quantized values."""
    assert cli("lower", source, "-o", tmp_path / "a.onnx").code == 0
    assert cli("lower", source, "-o", tmp_path / "b.onnx", "--set", f"*.weight.bits={bits}").code == 0
    same = (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    a, b = (run(rnnqc.session(tmp_path / n, native=False), CASE.feeds())["Y"] for n in ("a.onnx", "b.onnx"))
    assert np.array_equal(a, b) == (bits == "8")
    assert not same or bits == "8"


def test_inspect(cli: Callable[..., Result], source: Path) -> None:
    result = cli("inspect", source)
    assert result.code == 0
    assert NODE_NAME in result.out and "LSTM" in result.out
    machine = cli("inspect", source, "--json")
    assert machine.code == 0
    assert NODE_NAME in json.dumps(json.loads(machine.out))


def test_inspect_of_a_model_without_recurrence(cli: Callable[..., Result], tmp_path: Path) -> None:
    plain = of_nodes([helper.make_node("Neg", ["a"], ["b"])], {"a": [1]}, {"b": [1]})
    onnx.save(plain, tmp_path / "plain.onnx")
    assert cli("inspect", tmp_path / "plain.onnx").code == 0
    assert cli("lower", tmp_path / "plain.onnx", "-o", tmp_path / "out.onnx", "--strict").code == 0


@pytest.mark.parametrize("flags", [[], ["--stock"]])
def test_run(flags: list[str], cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert cli("lower", source, "-o", tmp_path / "out.onnx").code == 0
    feeds, results = _npz(tmp_path / "feeds.npz"), tmp_path / "results.npz"
    assert cli("run", tmp_path / "out.onnx", "-i", feeds, "-o", results, *flags).code == 0
    expected = run(rnnqc.session(tmp_path / "out.onnx", native=False), CASE.feeds())
    assert_same_bits(expected, _load(results), "rnnqc run")


def test_run_a_float_model(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert cli("run", source, "-i", _npz(tmp_path / "feeds.npz"), "-o", tmp_path / "results.npz").code == 0
    assert np.abs(_load(tmp_path / "results.npz")["Y"] - CASE.expected(CASE.feeds())["Y"]).max() < 1e-5


def test_verify_refuses_models_that_do_not_belong_together(
    cli: Callable[..., Result], source: Path, tmp_path: Path
) -> None:
    onnx.save(RecurrentCase(I=2, outputs=("Y_h",)).model(), tmp_path / "other.onnx")
    result = cli("verify", source, tmp_path / "other.onnx")
    assert result.code == 2, result.text
    assert "Traceback" not in result.text


def test_bench(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert cli("lower", source, "-o", tmp_path / "out.onnx").code == 0
    few = ("--rounds", "1")
    alone = cli("bench", tmp_path / "out.onnx", *few)
    assert alone.code == 0, alone.text
    assert "stock" in alone.out and "native (" in alone.out and "\nfloat" not in alone.out
    machine = cli("bench", tmp_path / "out.onnx", "--against", source, "--threads", "2", "--json", "--dim", "T=3", *few)
    assert machine.code == 0, machine.text
    data = json.loads(machine.out)
    assert [t["name"] for t in data["timings"]] == ["float", "stock", "native"]
    assert {"runs", "min_us", "median_us", "speedup"} <= data["timings"][0].keys()
    assert (data["threads"], data["rounds"], data["inputs"]["X"]) == (2, 1, "float32 [3, 3, 8]")
    given = cli("bench", source, "-i", _npz(tmp_path / "feeds.npz"), *few)
    assert given.code == 0 and "given inputs X float32 [6, 2, 8]" in given.out, given.text


@pytest.mark.parametrize("arguments", ["--threads 0", "--threads x", "--dim T", "--against no.onnx"])
def test_bench_refuses(arguments: str, cli: Callable[..., Result], source: Path) -> None:
    result = cli("bench", source, *arguments.split())
    assert result.code == 2, result.text
    assert "rnnqc: error:" in result.err and "Traceback" not in result.text


@pytest.mark.parametrize("command", ["recipes", "passes", "doctor"])
def test_lists(command: str, cli: Callable[..., Result]) -> None:
    result = cli(command)
    assert result.code == 0
    expected = {"recipes": "int8", "passes": "fuse-quant-lstm-cell", "doctor": "onnxruntime"}[command]
    assert expected in result.out


def test_recipes_lists_every_recipe_point_and_key(cli: Callable[..., Result]) -> None:
    """With the types of cells that have a point, where not all do."""
    rows = [line.split() for line in cli("recipes", "--points").out.splitlines()]
    first = {row[0] for row in rows if row}
    assert first >= set(all_points()) | set(KEYS)
    short = {line.split()[0] for line in cli("recipes").out.splitlines() if line.strip()}
    assert short == {r.name for r in builtin_recipes()} | {"recipe", "`rnnqc"}
    of = {row[0]: " ".join(row[1:]) for row in rows if row}
    assert of["cell_state"].startswith("LSTM the cell state")
    for point, types, meaning in (
        ("reset.hidden", "GRU", "r * h"),
        ("update_gate.acc", "GRU", "pre-activation of the update gate"),
        ("hidden_gate.acc", "GRU, RNN", "pre-activation of the hidden gate"),
    ):
        assert of[point].startswith(types) and meaning in of[point]
    assert of["input"].startswith("the sequence x")
    rules = cli("recipes", "pow2-int8")
    assert rules.code == 0
    assert 'base = "pow2-int16"' in rules.out.splitlines()


def test_help_and_version(cli: Callable[..., Result]) -> None:
    text = cli("--help")
    assert text.code == 0
    assert all(command in text.out for command in COMMANDS)
    assert cli("--version").code == 0
    for command in COMMANDS:
        assert cli(command, "--help").code == 0


def test_nothing_at_all_shows_the_usual_way(cli: Callable[..., Result]) -> None:
    """Every line that it prints is a command that parses."""
    result = cli()
    assert (result.code, result.out) == (2, "")
    lines = [re.split(r"  +", line.strip())[0] for line in result.err.splitlines() if line.startswith("  rnnqc")]
    assert [line.split()[1] for line in lines] == ["inspect", "lower", "verify", "run"]
    for line in lines:
        _parsed(line.split()[1:])


@pytest.mark.parametrize("command", PARSERS)
def test_help_of_a_command(command: str) -> None:
    """A sentence for every argument, -q and -v, and examples that the parser takes."""
    parser = PARSERS[command]
    assert [a.dest for a in parser._actions if not a.help] == []
    assert {"-q", "-v"} <= {o for a in parser._actions for o in a.option_strings}
    head, *examples = (parser.epilog or "").splitlines()
    assert head == "examples:" and examples
    for example in examples:
        assert example.startswith(f"  rnnqc {command}")
        _parsed(_separated(shlex.split(example.partition(" > ")[0])[1:]))


def test_every_command_has_a_parser() -> None:
    assert set(COMMANDS) <= set(PARSERS)


def test_a_command_that_is_meant(cli: Callable[..., Result]) -> None:
    assert "Resolution: inspect may be meant; see `rnnqc --help`." in cli("inpsect", "x.onnx").err


def test_help_needs_no_onnx() -> None:
    """Help takes a twentieth of the time that loading onnxruntime takes."""
    code = (
        "import sys; from rnnqc.cli import main; code = main(['lower', '--help']); "
        "print(code, [m for m in ('numpy', 'onnx', 'onnxruntime', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_lowering_loads_what_it_needs(source: Path, tmp_path: Path) -> None:
    """No pages, no progress bar where nobody watches, no processes; numpy.ma comes with np.unique."""
    names = ("numpy.ma", "multiprocessing.context", "rich.progress", "rnnqc.reporting.page", "rnnqc.search")
    code = (
        f"import sys; from rnnqc.cli import main; code = main(['lower', {str(source)!r}, '-o', sys.argv[1]]); "
        f"print(code, [m for m in {names} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "o.onnx")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"


def test_quiet_and_verbose_everywhere(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """-q leaves remarks and errors, -v says how long it took."""
    quiet = cli("inspect", source, "-q")
    assert (quiet.code, quiet.out) == (0, "")
    assert json.loads(cli("inspect", source, "-q", "--json").out)["nodes"]
    assert re.search(
        r" s  rnnqc run$",
        cli("run", source, "-i", _npz(tmp_path / "x.npz"), "-o", tmp_path / "y.npz", "-v").err.strip(),
    )


def test_states_are_suggested(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """By inspect, and where the array of a state is missing; before and after lowering."""
    assert cli("lower", source, "-o", tmp_path / "low.onnx", "-q").code == 0
    save_arrays(tmp_path / "x.npz", {"X": CASE.feeds()["X"]})
    for model in (source, tmp_path / "low.onnx"):
        wanted = "--state initial_h:Y_h --state initial_c:Y_c"
        shown = cli("inspect", model).out
        assert wanted in shown
        rows = [" ".join(line.split()) for line in shown.splitlines()]
        assert "initial_h input float32 [1, B, 16] Y_h of the call before" in rows
        assert "Y_c output float32 [1, B, 16] initial_c of the next call" in rows
        missing = cli("run", model, "-i", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
        assert missing.code == 2 and f"or carry the states: {wanted}" in missing.err


@pytest.mark.parametrize("arguments", [[], ["no_such_command"], ["lower"], ["lower", "in.onnx"], ["calibrate", "x"]])
def test_bad_usage(arguments: list[str], cli: Callable[..., Result]) -> None:
    result = cli(*arguments)
    assert result.code == 2, result.text
    assert result.err.strip() and "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ("lower in.onnx -o out.onnx --overwrite", "leave it out, an output that exists is replaced"),
        ("run in.onnx -i in.npz -o out.npz -f", "leave it out, an output that exists is replaced"),
        ("dump in.onnx -i in.npz -o out --overwite", "--overwrite may be meant"),
        ("lower in.onnx -o out.onnx --reciep=int16", "--recipe may be meant"),
        ("lower in.onnx -o out.onnx --data in.npz", "--calibration may be meant"),
        ("inspect in.onnx --jsn", "--json may be meant"),
        ("bench in.onnx low.onnx", "one model is measured, a float one beside it is named by --against"),
    ],
)
def test_unknown_options(arguments: str, action: str, cli: Callable[..., Result]) -> None:
    """The message suggests a similar option, and the command's help."""
    command, *others = arguments.split()
    result = cli(command, *others)
    assert (result.code, result.out) == (2, "")
    assert f"Resolution: {action}; see `rnnqc {command} --help`." in result.err


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_that_nothing_resembles(command: str, cli: Callable[..., Result]) -> None:
    given = {"run": "m -i x -o y", "dump": "m -i x -o y", "verify": "m q", "report": "m q -o y", "recipes": "",
             "passes": "", "doctor": "", "calibrate": "m --data x -o y", "tune": "m --data x -o y", "inspect": "m",
             "bench": "m", "completion": "bash",
             "schema": "lower"}.get(command, "m -o y")  # fmt: skip
    result = cli(command, *given.split(), "--0123456789")
    assert (result.code, result.out) == (2, "")
    expected = f"unrecognized arguments: --0123456789. Resolution: see `rnnqc {command} --help`."
    assert " ".join(result.err.split()) == f"rnnqc: error: {expected} [usage]"


def test_same_bytes_every_time(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """From two processes with different string hashes, with what is measured in each."""
    out, other, data = tmp_path / "out.onnx", tmp_path / "other.onnx", _npz(tmp_path / "data.npz")
    given = ("lower", source, "--recipe", "int8-static", "--calibration", data, "-o")
    assert cli(*given, out).code == in_new_python(*given, other).code == 0
    assert out.read_bytes() == other.read_bytes()
    assert rnnqc.lower(source, "int8-static", calibration=str(data)).proto.SerializeToString(
        deterministic=True
    ) == onnx.load(out).SerializeToString(deterministic=True)


@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_what_a_lowered_file_keeps(form: str, cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    assert cli("lower", source, "-o", tmp_path / "out.onnx", "--form", form).code == 0
    before, after = onnx.load(source), onnx.load(tmp_path / "out.onnx")
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert (after.doc_string, after.domain, after.model_version) == (before.doc_string, before.domain, 7)
    assert after.graph.name == before.graph.name
    assert after.graph.doc_string == before.graph.doc_string
    properties = {p.key: p.value for p in after.metadata_props}
    assert properties["author"] == "A. Person"
    assert [k for k in properties if k.startswith("rnnqc.")]
    (bystander,) = (n for n in after.graph.node if n.name == "bystander")
    assert bystander.doc_string == "a note"
    assert list(after.graph.quantization_annotation) == list(before.graph.quantization_annotation)
    assert after.ir_version <= 13
    assert str(tmp_path) not in str(properties), "paths make the bytes depend on the machine"


def test_saving_through_the_api(source: Path, tmp_path: Path) -> None:
    lowered = rnnqc.lower(source)
    lowered.save(tmp_path / "api.onnx")
    assert sorted(os.listdir(tmp_path)) == ["api.onnx", "in.onnx"]
    got = run(rnnqc.session(tmp_path / "api.onnx", native=False), CASE.feeds())
    assert_same_bits(run(rnnqc.session(lowered.proto, native=False), CASE.feeds()), got, "saved")
    (entry,) = lowered.report.entries
    assert (entry.node, entry.op, entry.status) == (NODE_NAME, "LSTM", "lowered")


def test_streaming_with_carried_states(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """`--state` feeds outputs back: leading axis of the data = steps."""
    assert cli("lower", source, "-o", tmp_path / "out.onnx").code == 0
    chunks = np.stack([CASE.replace(seed=k).feeds()["X"] for k in range(3)])
    states = {k: v for k, v in CASE.feeds().items() if k.startswith("initial")}
    save_arrays(tmp_path / "feeds.npz", {"X": chunks, **states})
    result = cli(
        "run", tmp_path / "out.onnx", "-i", tmp_path / "feeds.npz", "-o", tmp_path / "results.npz",
        "--state", "initial_h:Y_h", "--state", "initial_c:Y_c",
    )  # fmt: skip
    assert result.code == 0, result.text
    running, wanted = rnnqc.session(tmp_path / "out.onnx", native=False), []
    for chunk in chunks:
        got = run(running, {"X": chunk, **states})
        states = {"initial_h": got["Y_h"], "initial_c": got["Y_c"]}
        wanted.append(got["Y"])
    assert_same_bits({"Y": np.stack(wanted)}, {"Y": _load(tmp_path / "results.npz")["Y"]}, "streaming")


def test_lowering_a_lowered_model(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """Lowering a lowered model further is possible, to an earlier form is refused; existing cells are listed."""
    fused, qcdq, again = (tmp_path / f"{n}.onnx" for n in ("fused", "qcdq", "again"))
    assert cli("lower", source, "-o", fused).code == 0
    assert cli("lower", source, "-o", qcdq, "--form", "qcdq").code == 0
    for arguments in (["--form", "qcdq"], ["--form", "integer"], ["--unroll", "--dim", "T=3"]):
        refused = cli("lower", fused, "-o", again, *arguments)
        assert refused.code == 2
        assert "lowered already, to form fused" in refused.err
        assert not again.exists()
    done = cli("lower", fused, "-o", again, "--strict")
    assert done.code == 0
    assert "lowered already (fused)" in done.out
    assert again.read_bytes() == fused.read_bytes()
    other = tmp_path / "other.onnx"
    for arguments in (["--recipe", "w4a8"], ["--set", "*.weight.bits=4"], ["--recipe", "w4a8", "--form", "fused"]):
        refused = cli("lower", fused, "-o", other, *arguments)
        assert refused.code == 2 and not other.exists()
        assert f"{fused}: recipe" in refused.err and "lowered already, with recipe 'int8'" in refused.err
    assert cli("lower", qcdq, "-o", again).code == 0
    assert "QuantLSTMCell" in {plain_op(n.op_type) for n in onnx.load(again).graph.node}


def test_options_end_where_their_values_end(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert cli("lower", "--set", "*.weight.bits=6", "*.acc.bits=12", source, "-o", out).code == 0


def test_override_without_effect(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    refused = cli("lower", source, "-o", tmp_path / "out.onnx", "--set", "*.weight.chain=true")
    assert refused.code == 2
    assert "understands 'chain'" in refused.err
    assert "granularity" in refused.err


def test_texts_are_shown_as_they_are(cli: Callable[..., Result]) -> None:
    """Markup and emoji codes of rich in names."""
    result = cli("inspect", "no:train[bold]:fire:.onnx")
    assert result.code == 2 and "no:train[bold]:fire:.onnx" in result.err


def test_small_layers_without_the_library_are_told_of(cli: Callable[..., Result], tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[2] / "models" / "tiny" / "lstm_two_layers.onnx"
    for arguments in (("inspect", source), ("lower", source, "-o", tmp_path / "out.onnx")):
        assert "2 of 2 recurrent layers are slower than in float" in " ".join(cli(*arguments).out.split())
    made = cli("lower", source, "-o", tmp_path / "ort.onnx", "--form", "ort")
    assert made.code == 0 and "lowered (ort)" in made.out and "slower than in float" not in made.out
    assert "done (ort)" in " ".join(cli("inspect", tmp_path / "ort.onnx").out.split())


def test_tables_of_inspect_keep_to_a_width(cli: Callable[..., Result], tmp_path: Path) -> None:
    """Keras' names have a hundred characters, reasons two hundred: rows of 420 columns wrap beyond reading."""
    long = "functional/" + "while/lstm_cell/" * 12 + "layer"
    proto = CASE.model()
    (node,) = [n for n in proto.graph.node if n.op_type == "LSTM"]
    node.name = long
    onnx.save(proto, tmp_path / "long.onnx")
    shown = cli("inspect", tmp_path / "long.onnx").out.splitlines()
    table = next(k for k, line in enumerate(shown) if line.startswith("node"))
    assert max(map(len, shown[table : table + 2])) <= 120
    assert shown[table + 1].startswith("functional/") and "layer  LSTM" in shown[table + 1]
    assert "will be lowered" in shown[table + 1]
    assert long in cli("inspect", tmp_path / "long.onnx", "--json").out
    weights = helper.make_tensor_value_info(node.input[1], onnx.TensorProto.FLOAT, None)
    proto.graph.input.append(weights)  # no constant
    kept = [t for t in proto.graph.initializer if t.name != weights.name]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    onnx.save(proto, tmp_path / "float.onnx")
    shown = cli("inspect", tmp_path / "float.onnx").out.splitlines()
    assert any(line.startswith(f"{long}: float: ") and "Resolution" in line for line in shown), "the reason is whole"


@pytest.mark.parametrize("name", ["stats.npz", "stats.onnx"])
def test_statistics_have_no_name_of_other_files(name: str, cli: Callable[..., Result], tmp_path: Path) -> None:
    """Would catch: JSON that stands in a file which other commands take for arrays or a model."""
    model, data = (
        Path(rnnqc.__file__).parents[1] / "models" / n for n in ("digits_lstm.onnx", "digits_calibration.npz")
    )
    result = cli("calibrate", model, "--data", data, "-o", tmp_path / name)
    assert result.code == 2 and "statistics are JSON" in result.err and not list(tmp_path.iterdir())
