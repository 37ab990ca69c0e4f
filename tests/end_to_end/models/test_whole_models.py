"""Whole models: what `rnnqc lower --rest int8` makes of the layers around the recurrent ones.

What these would catch: an embedding whose bits depend on the way of execution, stored weights that other floats are
made of, an option that changes what is written without it, a message with wrong sizes, an exit code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rnnqc
from tests.laws.law import law
from tests.runs.commands import Result
from tests.runs.lowered import INTEGER, NATIVE, STOCK, session
from tests.runs.sessions import LEVELS, assert_same_bits, run
from tests.subjects.protos import of_nodes, parse
from tests.subjects.whole_models import WholeModel, rounded_to_int8


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.onnx"
    onnx.save(WholeModel().model(), path)
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "w4a8"])
def test_the_law_with_an_int8_embedding(recipe: str) -> None:
    """Every form, way, level and number of threads: the same bits."""
    feeds = [WholeModel.feeds(seed) for seed in range(2)]
    forms = law(WholeModel(head=False).model(), recipe, feeds=feeds, dims={"T": 5}, rest="int8")
    assert [e.form for e in forms.stock.report.rest.entries] == ["int8 rows"]


@pytest.mark.few(1)
@pytest.mark.parametrize("tied", [True, False])
def test_stored_weights_are_those_of_int8(tied: bool) -> None:
    """The bits of the model whose float weights are rounded to int8, in every form, with optimizations and without.

    The LSTM quantizes the floats of the embedding in both: the override keeps it from taking the int8 rows.
    """
    proto, feeds, own = WholeModel(tied).model(), WholeModel.feeds(), ["*.input.chain=false"]
    for way, form in ((STOCK, "fused"), (NATIVE, "fused"), (INTEGER, "integer")):
        stored = rnnqc.lower(proto, form=form, rest="int8", overrides=own).proto
        rounded = rnnqc.lower(rounded_to_int8(proto), form=form, overrides=own).proto
        for level in (LEVELS[0], LEVELS[-1]):
            expected = run(session(rounded, way, level), feeds)
            assert_same_bits(expected, run(session(stored, way, level), feeds), f"{way} {level}")


def test_lower_tells_what_stays_float(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = cli("lower", source, "-o", out, "--json", tmp_path / "out.json")
    assert result.code == 0
    rest = json.loads((tmp_path / "out.json").read_text())["rest"]
    lines = [line for line in result.out.splitlines() if "stay float" in line]
    share = round(100 * rest["bytes"] / out.stat().st_size)
    kilobytes = f"{out.stat().st_size / 1e3:.0f} kB ({share} %)"
    (line,) = lines
    assert line == (
        f"rest      linear layers, embeddings and convolutions stay float: {rest['bytes']} B of {kilobytes}; "
        f"--rest int8 would store them in about {rest['int8_bytes']} B"
    )
    assert {e["status"] for e in rest["entries"]} == {"float"}
    assert rest["option"] == "float"


def test_lower_rest_int8(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = cli("lower", source, "-o", out, "--rest", "int8", "--strict-rest", "--json", tmp_path / "out.json")
    assert result.code == 0, result.text
    rest = json.loads((tmp_path / "out.json").read_text())["rest"]
    assert f"linear layers, embeddings and convolutions: {rest['float_bytes']} B -> {rest['bytes']} B" in result.out
    assert "SQNR on generated data of usual values: " in result.out
    assert [e["form"] for e in rest["entries"]].count("int8 rows") == 1
    onnx.checker.check_model(out, full_check=True)
    got = run(rnnqc.session(out, native=False), WholeModel.feeds())
    expected = run(rnnqc.session(source, native=False), WholeModel.feeds())
    for name, value in expected.items():
        assert 10 * np.log10(np.sum(value**2) / np.sum((value - got[name]) ** 2)) > 25.0


def test_by_default_the_rest_stays(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """`--rest float` writes the same file as no option."""
    one, two, three = (tmp_path / f"{k}.onnx" for k in range(3))
    assert cli("lower", source, "-o", one).code == 0
    assert cli("lower", source, "-o", two, "--rest", "float").code == 0
    assert cli("lower", source, "-o", three, "--rest", "int8").code == 0
    assert one.read_bytes() == two.read_bytes()
    assert len(three.read_bytes()) < len(one.read_bytes())
    again = tmp_path / "again.onnx"
    assert cli("lower", source, "-o", again, "--rest", "int8").code == 0
    assert again.read_bytes() == three.read_bytes()


def test_strict_rest(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = cli("lower", source, "-o", out, "--strict-rest")
    assert result.code == 3
    assert (
        "--strict-rest: 4 operator(s) around the recurrent layers stay float; the model was not written" in result.err
    )
    assert not out.exists()
    result = cli("lower", source, "-o", out, "--rest", "int8", "--form", "qonnx")
    assert result.code == 2
    assert not out.exists()


def test_what_stays_float_is_named(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """A weight that is read by something else as well."""
    proto = onnx.load(source)
    proto.graph.node.append(helper.make_node("Neg", ["kernel"], ["negative"], name="other"))
    proto.graph.output.append(helper.make_tensor_value_info("negative", onnx.TensorProto.FLOAT, [24, 16, 3]))
    onnx.save(proto, source)
    result = cli("lower", source, "-o", tmp_path / "out.onnx", "--rest", "int8")
    assert result.code == 0
    assert "1 operator(s) stay float" in result.out
    assert "its weight is read as floats by another operator. Found: 'kernel' is also read by Neg 'other'" in result.err
    assert cli("lower", source, "-o", tmp_path / "strict.onnx", "--rest", "int8", "--strict-rest").code == 3


def test_inspect_lists_them(cli: Callable[..., Result], source: Path) -> None:
    text = cli("inspect", source).out
    assert "linear layers, embeddings and convolutions stay float" in text
    assert text.count("int8") >= 4
    rest = json.loads(cli("inspect", source, "--json").out)["rest"]
    found = sorted((e["op"], e["weight"]) for e in rest["entries"])
    assert found == [("Conv", "kernel"), ("Gather", "table"), ("MatMul", "projection"), ("MatMul", "table")]
    assert rest["file_bytes"] == source.stat().st_size


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["embedded", "filtered", "logits"])
def test_an_override_leaves_one_weight_float(name: str) -> None:
    """Embedding, convolution or decoder, beside integers and floats: the others are stored as without the override."""
    proto = WholeModel(tied=False).model()
    for form in ("fused", "qcdq"):
        plain = rnnqc.lower(proto, form=form, rest="int8")
        made = rnnqc.lower(
            proto, form=form, rest="int8", overrides=[f"{name}*.weight.bits=none"], verify=form == "fused"
        )
        before, after = ({e.node.split(":")[0]: e for e in m.report.rest.entries} for m in (plain, made))
        assert before[name].status == "quantized" and after.pop(name).status == "float"
        assert after == {n: e for n, e in before.items() if n != name}
        floats = {t.name for t in made.proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
        assert {"embedded": "table", "filtered": "kernel", "logits": "decoder_table"}[name] in floats
    run(session(made.proto, STOCK), WholeModel.feeds())


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_an_override_stores_one_weight_as_float16(tied: bool) -> None:
    """The bits of the model whose decoder, or tied table, holds float16 values, others float, in every form."""
    proto, feeds = WholeModel(tied).model(), WholeModel.feeds()
    table = "table" if tied else "decoder_table"
    rounded = onnx.ModelProto()
    rounded.CopyFrom(proto)
    stored = next(t for t in rounded.graph.initializer if t.name == table)
    values = numpy_helper.to_array(stored).astype(np.float16).astype(np.float32)
    stored.CopyFrom(numpy_helper.from_array(values, table))
    others = ["features*", "filtered*", *([] if tied else ["embedded*"])]
    overrides = ["logits*.weight.store=float16", *(f"{name}.weight.bits=none" for name in others)]
    for form in ("fused", "integer", "qcdq"):
        made = rnnqc.lower(proto, form=form, rest="int8", overrides=overrides, verify=True)
        entries = {e.node.split(":")[0]: e for e in made.report.rest.entries}
        assert entries["logits"].form == "float16 storage" and entries["logits"].bytes == 2 * values.size
        expected = run(session(rnnqc.lower(rounded, form=form).proto, STOCK), feeds)
        assert_same_bits(expected, run(session(made.proto, STOCK), feeds), form)


def test_weights_in_functions() -> None:
    """Linear layers and embeddings in functions of an exporter stayed float, and no message named them."""
    text = """<ir_version: 10, opset_import: ["" : 17, "lib" : 1]>
    g (int64[N] tokens) => (float[N,80] y) { e = lib.embedding (tokens) p = lib.linear (e, w) y = lib.silu (p) }
    <domain: "lib", opset_import: ["" : 17]>
    embedding (i) => (r) { t = Constant <value = float[1] {1}> () r = Gather (t, i) }
    <domain: "lib", opset_import: ["" : 17]> linear (a, b) => (c) { c = MatMul (a, b) }
    <domain: "lib", opset_import: ["" : 17]> silu (a) => (c) { s = Sigmoid (a) c = Mul (a, s) }"""
    rng = np.random.default_rng(0)
    proto = parse(text, w=rng.standard_normal((64, 80)).astype(np.float32))
    table = numpy_helper.from_array(rng.standard_normal((200, 64)).astype(np.float32))
    proto.functions[0].node[0].attribute[0].t.CopyFrom(table)
    lowered = rnnqc.lower(proto, rest="int8", strict_rest=True)
    assert {e.op: e.form for e in lowered.report.rest.entries} == {"Gather": "int8 rows", "MatMul": "int8 storage"}
    assert [f.name for f in lowered.proto.functions] == ["silu"]
    feeds = {"tokens": np.array([3, -1, 7])}
    expected, found = (run(session(m, way), feeds)["y"] for m, way in ((proto, STOCK), (lowered.proto, NATIVE)))
    assert 10 * np.log10(np.sum(expected**2) / np.sum((expected - found) ** 2)) > 35


def test_a_large_weight_as_float16_is_told() -> None:
    """The report lists it as stored in float16, not as a float weight behind a Cast."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,64] x) => (float[N,64] y) { [fc] y = MatMul (x, w) }'
    report = rnnqc.lower(parse(text, w=weight), rest="int8", overrides=["fc.weight.store=float16"]).report.rest
    (entry,) = report.entries
    assert (entry.status, entry.form, entry.bytes) == ("quantized", "float16 storage", weight.size * 2)
    assert report.bytes == weight.size * 2


def test_overrides_of_the_rest_are_told(cli: Callable[..., Result], source: Path, tmp_path: Path) -> None:
    """Reported are overrides that match no operator, have no effect, or do not suit a tied table."""
    lower = ("lower", source, "-o", tmp_path / "out.onnx", "--rest", "int8", "--set")
    missing = cli(*lower, "logit.weight.bits=none").err
    assert "No quantization point matches 'logit.weight'" in missing and "embedded_Gather.weight" in missing
    found = cli(*lower, "embedded*.weight.bits=4")
    text = " ".join(found.err.split())
    assert found.code == 0 and "an override has no effect. Found: embedded*.weight.bits=4" in text
    found = cli(*lower, "logits*.weight.bits=none", "--strict-rest")
    text = " ".join(found.err.split())
    assert found.code == 3 and "bits = none for 'logits_MatMul.weight'" in text
    assert "(node 'embedded:Gather') stays float" in text, "a tied table has one form"
    without = cli("lower", source, "-o", tmp_path / "out.onnx", "--set", "logits*.weight.bits=8")
    assert without.code == 2 and "matches 'logits*.weight'" in without.err


def test_rules_of_a_recipe_file_count_as_overrides_do(cli: Callable[..., Result], tmp_path: Path) -> None:
    """The same bytes; told of where they have no effect; and kept in a file of formats."""
    onnx.save(WholeModel(tied=False).model(), source := tmp_path / "in.onnx")
    rule, saved = tmp_path / "mine.toml", tmp_path / "formats.toml"
    rule.write_text(
        'name = "mine"\nbase = "int8"\n[[rule]]\npoints = "logits*.weight"\nstore = "float16"\n'
        '[[rule]]\npoints = "embedded*.weight"\nbits = 4\n'
    )

    def types(path: Path) -> dict[str, int]:
        return {t.name: t.data_type for t in onnx.load(path).graph.initializer}

    rest = ("--rest", "int8")
    made = [tmp_path / f"{k}.onnx" for k in range(3)]
    found = cli("lower", source, "-o", made[0], *rest, "--recipe", rule)
    assert found.code == 0 and "has no effect. Found: embedded*.weight.bits=4" in " ".join(found.err.split())
    override = ("--set", "logits*.weight.store=float16", "--save-formats", saved)
    assert cli("lower", source, "-o", made[1], *rest, *override).code == 0
    assert cli("lower", source, "-o", made[2], *rest, "--recipe", saved).code == 0
    assert types(made[0])["decoder_table.float16"] == onnx.TensorProto.FLOAT16
    assert types(made[0]) == types(made[1])
    assert made[1].read_bytes() == made[2].read_bytes()
    found = cli("lower", source, "-o", made[0], *rest, "--recipe", rule, "--set", "logits*.weight.store=integer")
    assert found.code == 0 and "decoder_table.float16" not in types(made[0]), "the first that matches wins"


@pytest.mark.slow
def test_tuning_searches_linear_layers(tmp_path: Path, cli: Callable[..., Result]) -> None:
    """The recipe that is found lowers the linear layer to 4 bits, into as many bytes as `tune` says, and as good."""
    source, recipe, target = tmp_path / "in.onnx", tmp_path / "tuned.toml", tmp_path / "out.onnx"
    rng = np.random.default_rng(0)
    shapes = {"W": (1, 64, 640), "R": (1, 64, 16), "V": (16, 20480)}
    stored = {n: (rng.standard_normal(s) / 25).astype(np.float32) for n, s in shapes.items()}
    nodes = [
        helper.make_node("LSTM", ["X", "W", "R"], ["H"], name="lstm", hidden_size=16),
        helper.make_node("MatMul", ["H", "V"], ["Y"], name="out"),
    ]
    onnx.save(of_nodes(nodes, {"X": ("T", 1, 640)}, {"Y": ("T", 1, 1, 20480)}, stored), source)
    np.savez(tmp_path / "data.npz", X=rng.standard_normal((2, 5, 1, 640)).astype(np.float32))
    data, rest = ["--data", tmp_path / "data.npz"], ["--rest", "int8"]

    found = cli("tune", source, *data, "-o", recipe, "--min-sqnr", "18", *rest, "--json")
    assert found.code == 0, found.text
    assert 'points = "out.weight"' in recipe.read_text() and "--rest int8; lowering needs it" in recipe.read_text()
    lower = ("lower", source, "-o", target, "--recipe", recipe)
    without = cli(*lower)
    assert without.code == 0 and "no quantization point matches 'out.weight'" in " ".join(without.err.split())
    made = cli(*lower, *rest, "--json", tmp_path / "out.json")
    assert made.code == 0 and "matches" not in made.text, made.text
    report = json.loads((tmp_path / "out.json").read_text())
    sizes = sum(e["bytes"] for e in report["entries"]) + report["rest"]["bytes"]
    start, end = json.loads(found.out)["weight_bytes"]
    assert end == sizes < start
    (operator,) = (n.op_type for n in onnx.load(target).graph.node if "QuantLinear" in n.op_type)
    assert operator.startswith("QuantLinearInt4")
    assert cli("verify", source, target, *data, "--min-sqnr", "18").code == 0
