"""Matmuls of custom cells.

What these would catch: products of other weights or with another bias, codes that overflow on some processor, results
that depend on the form, on optimizations or on the batch, a recurrence that stays float in silence.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import rnnqc
from rnnqc.cells.custom_nodes import is_custom_node
from rnnqc.cli import main
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model
from rnnqc.proto.graph_walks import blocks_of, stored_tensors
from rnnqc.reporting.weights import weights_evidence
from tests.generate.layers import RecurrentCase
from tests.generate.renaming import STYLES, rename
from tests.runs.commands import in_process
from tests.runs.lowered import all_nodes
from tests.subjects.protos import parse

Array = npt.NDArray[Any]
I, H = 24, 32  # noqa: E741 - inputs and units
FORMS = ("fused", "integer", "qcdq")
HEADER = '<ir_version: 8, opset_import: ["": 17]>'
# A highway cell: h' = t * tanh(x W + h R + b) + (1 - t) * x V with t = sigmoid(h S).
STEP = """
  [in] p = MatMul (x, W)
  q = Gemm <transB = 1> (h, R, b)
  s = Add (p, q)
  u = Tanh (s)
  g = MatMul (h, S)
  t = Sigmoid (g)
  v = MatMul (x, V)
  one = Constant <value = float {1.0}> ()
  rest = Sub (one, t)
  left = Mul (t, u)
  right = Mul (rest, v)
  next = Add (left, right)
"""


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(7)
    shapes = {"W": (I, H), "R": (H, H), "b": (H,), "S": (H, H), "V": (I, H)}
    return {k: (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for k, s in shapes.items()}


def cell() -> onnx.ModelProto:
    return parse(f"{HEADER} cell (float[B,{I}] x, float[B,{H}] h) => (float[B,{H}] next) {{ {STEP} }}", **weights())


def looped() -> onnx.ModelProto:
    return rnnqc.layer(cell())


def written_out(steps: int = 4, one: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """The same recurrence unrolled, with one initial state."""
    one, made = one or cell(), onnx.ModelProto()
    made.CopyFrom(one)
    del made.graph.node[:], made.graph.input[:], made.graph.output[:]
    held = {t.name for t in one.graph.initializer}
    state = "h0"
    for k in range(steps):
        for node in one.graph.node:
            copy = made.graph.node.add()
            copy.CopyFrom(node)
            copy.name = f"{node.name}_{k}" if node.name else ""
            names = [state if n == "h" else n if n in held or not n else f"{n}_{k}" for n in node.input]
            del copy.input[:], copy.output[:]
            copy.input.extend(names)
            copy.output.extend(f"{n}_{k}" for n in node.output)
        state = f"next_{k}"
    x, h = one.graph.input
    for name, like in (*((f"x_{k}", x) for k in range(steps)), ("h0", h)):
        value = made.graph.input.add()
        value.CopyFrom(like)
        value.name = name
    made.graph.output.add().CopyFrom(one.graph.output[0])
    made.graph.output[0].name = state
    return made


def feeds_of(model: onnx.ModelProto, steps: int = 30, batch: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shapes = {"x": (steps, batch, I), "h0": (batch, H)}
    names = [i.name for i in model.graph.input]
    return {n: rng.standard_normal(shapes.get(n, (batch, I))).astype(np.float32) for n in names}


def run(model: onnx.ModelProto, feeds: dict[str, Array], level: str = "ORT_ENABLE_ALL") -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.few(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [looped, written_out])
def test_products_are_quantized_and_the_result_is_near(make: Any, form: str) -> None:
    model = make()
    feeds = feeds_of(model)
    lowered = rnnqc.lower(model, form=form)
    (entry,) = lowered.report.entries
    assert (entry.status, entry.form) == ("lowered", "products")
    assert entry.bytes < entry.float_bytes / 3.2, "a byte for four, and scales"
    kinds = [n.op_type for n in all_nodes(lowered.proto)]
    assert kinds.count("MatMulInteger") == (0 if form == "qcdq" else 4)
    want, got = run(model, feeds), run(lowered.proto, feeds)
    for a, b in zip(want, got, strict=True):
        assert 35.0 < sqnr_db(a, b) < 80.0


def test_a_product_by_hand() -> None:
    """One step from a state of zeros: codes, scales and bias as the pass says."""
    model = written_out(3)
    lowered = rnnqc.lower(model)
    arrays = {t.name: numpy_helper.to_array(t) for t in lowered.proto.graph.initializer}
    codes = {n: a for n, a in arrays.items() if n.endswith(".codes")}
    assert len(codes) == 4, "steps share the codes of their weights"
    (name,) = [n for n in codes if "q_0_Gemm.weight" in n]
    scale = arrays[name.removesuffix(".codes") + ".scale"]
    held = weights()["R"].T
    assert codes[name].dtype == np.uint8
    np.testing.assert_allclose((codes[name].astype(np.float32) - 128) * scale, held, atol=float(scale.max()) / 2 * 1.01)
    assert np.abs(codes[name].astype(int) - 128).max() == 127


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("recipe", ["int8", "pow2-int16"])
def test_unrolled_steps_that_do_not_do_the_same(recipe: str, form: str, tmp_path: Path) -> None:
    """They become no loop: matmuls with one matrix have one format, values between them stay float; notes say so."""
    model = written_out(4)
    (odd,) = (n for n in model.graph.node if n.output[0] == "u_2")
    assert odd.op_type == "Tanh"
    odd.op_type = "Softsign"
    feeds = feeds_of(model)
    lowered = rnnqc.lower(model, recipe, form, calibration=[feeds], verify=True)
    (entry,) = lowered.report.entries
    assert (entry.status, entry.form, entry.left) == ("lowered", "products", [])
    assert any(
        "Values between them stay float: the unrolled steps do not do the same." in n for n in lowered.report.notes
    )
    assert {p.rpartition(".")[2] for p in entry.points} <= {"weight", "hidden", "bias"}
    assert sum(p.endswith(".weight") for p in entry.points) == 4, "one for each matrix"
    (want,), (got,) = run(model, feeds), run(lowered.proto, feeds)
    assert sqnr_db(want, got) > {"int8": 35.0, "pow2-int16": 60.0}[recipe]
    lowered.save(tmp_path / "lowered.onnx")
    np.savez(tmp_path / "x.npz", **feeds)
    assert main(["dump", str(tmp_path / "lowered.onnx"), "-i", str(tmp_path / "x.npz"), "-o", str(tmp_path / "d")]) == 0
    (cell_of_index,) = json.loads((tmp_path / "d" / "index.json").read_text())["cells"].values()
    assert cell_of_index["steps"] == 4


def test_a_matrix_that_is_used_both_ways() -> None:
    """Used directly by MatMul and transposed by Gemm, it has different quantized values."""
    text = STEP.replace("g = MatMul (h, S)", "g = MatMul (h, R)")
    model = rnnqc.layer(
        parse(f"{HEADER} cell (float[B,{I}] x, float[B,{H}] h) => (float[B,{H}] next) {{ {text} }}", **weights())
    )
    feeds = feeds_of(model)
    for form in FORMS:
        assert sqnr_db(run(model, feeds)[0], run(rnnqc.lower(model, form=form).proto, feeds)[0]) > 35.0


def test_two_loops_that_share_their_weights() -> None:
    model = looped()
    (scan,) = [n for n in model.graph.node if n.op_type == "Scan"]
    again = onnx.NodeProto()
    again.CopyFrom(scan)
    again.name = "again"
    again.output[:] = [f"{o}_again" for o in scan.output]
    model.graph.node.append(again)
    for output in list(model.graph.output):
        copy = model.graph.output.add()
        copy.CopyFrom(output)
        copy.name = f"{output.name}_again"
    lowered = rnnqc.lower(model, strict=True)
    assert [e.form for e in lowered.report.entries] == ["products", "products"]
    feeds = feeds_of(model)
    got = run(lowered.proto, feeds)
    for a, b in zip(got[: len(got) // 2], got[len(got) // 2 :], strict=True):
        np.testing.assert_array_equal(a, b)


def stored(model: onnx.ModelProto) -> list[Array]:
    """The quantized weights of a file."""
    blocks = blocks_of([model.graph, *model.functions])
    arrays = [numpy_helper.to_array(t) for b in blocks for t in stored_tensors(b)]
    return [a for a in arrays if a.ndim == 2 and a.dtype in (np.uint8, np.int8)]


TWICE = f"""{HEADER} cell (float[B,{H}] x, float[B,{H}] h) => (float[B,{H}] next) {{
    [one] p = MatMul (h, S) t = Tanh (p) [two] q = MatMul (t, COPY) s = Add (q, x) next = Softsign (s) }}"""


@pytest.mark.few(4)
@pytest.mark.parametrize("copied", [False, True], ids=["one", "copies"])
@pytest.mark.parametrize("make", [rnnqc.layer, lambda one: written_out(4, one)], ids=["loop", "unrolled"])
@pytest.mark.parametrize("form", FORMS)
def test_equal_weights_are_stored_and_counted_once(form: str, make: Any, copied: bool) -> None:
    """Two products of one matrix, or of copies of it."""
    S = weights()["S"]
    one = parse(TWICE if copied else TWICE.replace("COPY", "S"), S=S, **({"COPY": S.copy()} if copied else {}))
    lowered = rnnqc.lower(make(one), form=form)
    (entry,) = lowered.report.entries
    assert [a.shape for a in stored(lowered.proto)] == [S.shape]
    assert entry.bytes == H * H + 4 * H


def test_equal_quantized_values_of_unequal_scales() -> None:
    """They share the quantized values, not the scales."""
    S = weights()["S"]
    model = rnnqc.layer(parse(TWICE, S=S, COPY=S * 2))
    lowered = rnnqc.lower(model)
    assert len(stored(lowered.proto)) == 1
    assert lowered.report.entries[0].bytes == H * H + 2 * 4 * H
    rng = np.random.default_rng(5)
    feeds = {i.name: rng.standard_normal((5, 3, H)).astype(np.float32) for i in model.graph.input}
    assert sqnr_db(run(model, feeds)[0], run(lowered.proto, feeds)[0]) > 35.0


def test_the_report_has_every_weight_of_a_shared_array() -> None:
    S = weights()["S"]
    model = rnnqc.layer(parse(TWICE, S=S, COPY=S.copy()))
    found = weights_evidence(Model.load(model), rnnqc.lower(model, form="qcdq"))
    assert sorted(e.point.rpartition("/")[2] for e in found) == ["one.weight", "two.weight"]


def named(left: str, right: str, size: float) -> onnx.ModelProto:
    """Two products of the same shape, one with weights of another size."""
    arrays = weights()
    arrays["V"] = arrays["V"] * np.float32(size)
    text = STEP.replace("[in] p", "[one] p").replace("v = MatMul", "[two] v = MatMul")
    model = rnnqc.layer(
        parse(f"{HEADER} cell (float[B,{I}] x, float[B,{H}] h) => (float[B,{H}] next) {{ {text} }}", **arrays)
    )
    body = next(n for n in model.graph.node if n.op_type == "Scan").attribute[0].g
    for old, new in (("step/one", left), ("step/two", right)):
        (node,) = [n for n in body.node if n.name == old]
        node.name = new
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "w4a8"])
def test_names_that_differ_in_replaced_characters(recipe: str) -> None:
    """Each product has the scales of its own weights, and all results are those of other names."""
    plain, alike = named("one", "two", 64.0), named("m 1", "m_1", 64.0)
    feeds = feeds_of(plain)
    expected, lowered = run(rnnqc.lower(plain, recipe).proto, feeds), rnnqc.lower(alike, recipe)
    assert {"m_1.weight", "m_1_2.weight"} < set(lowered.report.entries[0].points)
    for a, b in zip(expected, run(lowered.proto, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [looped, written_out])
def test_no_name_has_a_safe_character(make: Any) -> None:
    plain, alike = make(), make()
    rename(alike, STYLES["replaced"])
    feeds = feeds_of(plain)
    lowered = rnnqc.lower(alike, strict=True)
    assert len(lowered.report.entries[0].points) == len(rnnqc.lower(plain).report.entries[0].points)
    expected = run(rnnqc.lower(plain).proto, feeds)
    for a, b in zip(expected, run(lowered.proto, {STYLES["replaced"](n): f for n, f in feeds.items()}), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_matrix_as_it_stands_and_transposed_in_written_out_steps() -> None:
    """Columns are scaled, rows are not: products that share a matrix do not share their scales."""
    arrays = weights()
    arrays["R"] = arrays["R"] * np.geomspace(1e-3, 1.0, H, dtype=np.float32)[:, None]
    text = STEP.replace("g = MatMul (h, S)", "g = Gemm (h, R)").replace("(h, R, b)", "(h, R)")
    one = parse(f"{HEADER} cell (float[B,{I}] x, float[B,{H}] h) => (float[B,{H}] next) {{ {text} }}", **arrays)
    model = written_out(4, one)
    products = [p for p in rnnqc.lower(model).report.entries[0].points if p.endswith(".weight")]
    assert len(products) == 4
    feeds = feeds_of(model)
    separate = onnx.ModelProto()
    separate.CopyFrom(model)
    turned = numpy_helper.from_array(np.ascontiguousarray(arrays["R"].T), "R_turned")
    separate.graph.initializer.append(turned)
    for node in separate.graph.node:
        if node.op_type == "Gemm" and any(a.name == "transB" for a in node.attribute):
            node.input[1] = "R_turned"
            del node.attribute[:]
    for a, b in zip(run(rnnqc.lower(separate).proto, feeds), run(rnnqc.lower(model).proto, feeds), strict=True):
        np.testing.assert_array_equal(a, b)


def from_state(state: Array) -> onnx.ModelProto:
    """Steps from a state that the file holds, as exporters write zeros for a batch of known size."""
    model = written_out()
    inputs = [i for i in model.graph.input if i.name != "h0"]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.append(numpy_helper.from_array(state, "h0"))
    return model


@pytest.mark.few(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [0.0, 1.0], ids=["zeros", "learned"])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_first_step_from_a_constant_state(rows: int, scale: float, form: str) -> None:
    """Its matmuls are quantized like those of the other steps, so that no float weights remain."""
    state = (scale * np.random.default_rng(4).standard_normal((rows, H))).astype(np.float32)
    model, given = from_state(state), written_out()
    feeds = feeds_of(model)
    lowered = rnnqc.lower(model, form=form, strict=True)
    (entry,) = lowered.report.entries
    assert (entry.summary.partition(",")[0], entry.left) == ("4 products", [])
    assert entry.float_bytes == 4 * (2 * I * H + 2 * H * H), "the state is no weight"
    floats = [t for t in lowered.proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert max(int(np.prod(t.dims)) for t in floats) <= rows * H
    # With a known batch onnxruntime adds up the real products of form qcdq in another order.
    level = "ORT_DISABLE_ALL" if form == "qcdq" else "ORT_ENABLE_ALL"
    wanted = run(rnnqc.lower(given, form=form).proto, feeds | {"h0": np.repeat(state, 3 // rows, axis=0)}, level)
    np.testing.assert_array_equal(run(lowered.proto, feeds, level)[0], wanted[0])


def test_layers_behind_a_written_out_recurrence_stay_float() -> None:
    model = written_out()
    rng = np.random.default_rng(3)
    model.graph.initializer.append(
        numpy_helper.from_array(rng.standard_normal((H, H)).astype(np.float32), "head.weight")
    )
    last = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("MatMul", [last, "head.weight"], ["head"], "head"))
    model.graph.output[0].name = "head"
    kinds = {n.name: n.op_type for n in rnnqc.lower(model).proto.graph.node}
    assert kinds["head"] == "MatMul"
    assert sum(map(is_custom_node, kinds.values())) == 1


def test_weights_take_the_bits_of_the_recipe() -> None:
    model = looped()
    lowered = rnnqc.lower(model, form="integer", overrides=["*.weight.bits=4"])
    arrays = [
        t.values if isinstance(t.values, np.ndarray) else None
        for g in lowered.model.graphs()
        for n in g.nodes
        if n.op == "MatMulInteger"
        for t in [n.inputs[1]]
    ]
    assert len(arrays) == 4
    assert all(a is not None and np.abs(a.astype(int) - 128).max() == 7 for a in arrays)


@pytest.mark.parametrize(
    ("recipe", "overrides", "reason"),
    [
        ("int8", ["*.weight.bits=none"], "no 2 to 16 bits"),
        ("int8", ["*.hidden.bits=none"], "hidden states no bits"),
        ("int8", ["*.hidden.bits=12"], "a dynamic per-row scale"),
    ],
)
def test_recipes_that_leave_it_float(recipe: str, overrides: list[str], reason: str) -> None:
    (entry,) = rnnqc.lower(looped(), recipe, overrides=overrides).report.float_entries
    assert reason in entry.reason
    assert entry.found
    assert entry.action


@pytest.mark.parametrize("strict", [False, True])
def test_a_recipe_that_needs_data_is_refused_without(strict: bool) -> None:
    """The recipe is refused as for other layers, because nothing would be quantized."""
    with pytest.raises(rnnqc.CompileError, match=r'"Scan" \(node .*no statistics of .*calibration=DATA') as caught:
        rnnqc.lower(looped(), "pow2-int16", strict=strict)
    assert "recurrent nodes stay float" not in str(caught.value)


@pytest.mark.parametrize("recipe", ["int8", "brevitas-int8"])
def test_a_recurrence_without_a_product_that_can_be_integer_stays_float(recipe: str) -> None:
    """No recipe advises a calibration, which would find no layer to observe."""
    text = "q = Gemm <beta = 2.0> (h, S, b) next = Tanh (q)"
    arrays = {"S": np.eye(H, dtype=np.float32), "b": np.zeros(H, np.float32)}
    head = HEADER
    model = parse(f"{head} cell (float[B,{H}] x, float[B,{H}] h) => (float[B,{H}] next) {{ {text} }}", **arrays)
    (entry,) = rnnqc.lower(rnnqc.layer(model), recipe).report.float_entries
    assert "beta = 2.0" in entry.found


def test_a_recurrence_without_data_stays_float_beside_what_is_lowered() -> None:
    case = RecurrentCase(T=3, B=2, I=4, H=5)
    both = onnx.compose.merge_models(looped(), case.model(), io_map=[], prefix2="two/")
    overrides = ["layer.step/*.weight.bits=16", "layer.step/*.hidden.bits=16"]
    status = {e.op: e.status for e in rnnqc.lower(both, overrides=overrides).report.entries}
    assert status == {"Scan": "float", "LSTM": "lowered"}


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("q = Gemm <transB = 1> (h, R, b)", "q = Gemm <transB = 1, beta = 2.0> (h, R, b)", "beta = 2.0"),
        ("g = MatMul (h, S)", "k = Identity (h) g = MatMul (S2, k)", "multiplies"),
    ],
)
def test_products_of_other_kinds_stay(before: str, after: str, found: str) -> None:
    """The other products of the recurrence are quantized all the same."""
    text = STEP.replace(before, after)
    arrays = weights() | {"S2": np.eye(3, dtype=np.float32)}
    batch = 3 if "S2" in after else "B"
    model = parse(
        f"{HEADER} cell (float[{batch},{I}] x, float[{batch},{H}] h) => (float[{batch},{H}] next) {{ {text} }}",
        **arrays,
    )
    layer = rnnqc.layer(model)
    lowered = rnnqc.lower(layer)
    kinds = [n.op for g in lowered.model.graphs() for n in g.nodes]
    assert kinds.count("MatMulInteger") == 3
    feeds = feeds_of(layer)
    assert sqnr_db(run(layer, feeds)[0], run(lowered.proto, feeds)[0]) > 30.0


def _in_a_branch(prefix: str, more: str) -> str:
    """An If without a name around a loop that is called `loop`."""
    step = f"""[{prefix}_p] {prefix}p = MatMul ({prefix}h, R) {prefix}q = Add ({prefix}p, {prefix}x)
        {more} {prefix}n = Tanh ({prefix}q) {prefix}o = Mul ({prefix}n, {prefix}x)"""
    body = f"b (float[3,{H}] {prefix}h, float[3,{H}] {prefix}x) => (float[3,{H}] {prefix}o, float[3,{H}] {prefix}o2)"
    scan = f"""[loop] {prefix}last, {prefix}y = Scan <num_scan_inputs = 1, body = {body} {{
        {step} {prefix}o2 = Identity ({prefix}o) }}> (zero, x)"""
    then = f"then_branch = t () => (float[5,3,{H}] {prefix}y) {{ {scan} }}"
    other = f"else_branch = e () => (float[5,3,{H}] {prefix}e) {{ {prefix}e = Identity (x) }}"
    return f"{prefix}r = If (go) <{then}, {other}>"


def test_loops_of_one_name_in_branches_without_names() -> None:
    """Each has a line of its own, with its own products and bytes."""
    more = "[second] bs = MatMul (bh, S) bq2 = Add (bs, bq)"
    second = _in_a_branch("b", more).replace("Tanh (bq)", "Tanh (bq2)")
    text = f"""{HEADER} g (float[5,3,{H}] x, bool go) => (float[5,3,{H}] y) {{
        zero = Constant <value = float[3,{H}] {{{", ".join(["0.0"] * 3 * H)}}}> ()
        {_in_a_branch("a", "")} {second} y = Add (ar, br) }}"""
    lowered = rnnqc.lower(parse(text, R=weights()["R"], S=weights()["S"]))
    first, other = lowered.report.entries
    assert first.node != other.node
    assert first.node.rpartition("/")[2] == other.node.rpartition("/")[2] == "loop"
    assert (first.summary, other.summary) == ("1 products, 0 of 5 values", "2 products, 0 of 7 values")
    assert 0 < first.bytes < other.bytes
    assert not set(first.points) & {p for p in other.points if "second" in p}


PROJECTED = f"""{HEADER} g (float[T,B,{I}] x, float[B,{H}] h) => (float[T,B,{H}] y, float[B,{H}] last) {{
    [projection] p = MatMul (x, V) [shift] px = Add (p, b)
    [layer] last, y = Scan <num_scan_inputs = 1, body = body (float[B,{H}] s, float[B,{H}] e)
        => (float[B,{H}] n, float[B,{H}] m) {{
        [from_h] q = MatMul (s, R) g = Add (q, e) t = Tanh (g) k = Sigmoid (q) n = Mul (t, k) m = Identity (n)
    }}> (h, px)
}}"""
BRANCHED = f"""{HEADER} g (float[T,B,{H}] x, float[B,{H}] h, bool yes) => (float[B,{H}] last) {{
    [layer] last, y = Scan <num_scan_inputs = 1, body = body (float[B,{H}] s, float[B,{H}] e)
        => (float[B,{H}] n, float[B,{H}] m) {{
        [from_h] q = MatMul (s, R)
        [way] w = If (yes) <then_branch = a () => (float[B,{H}] wa) {{ [inner] wa = MatMul (e, S) }},
            else_branch = o () => (float[B,{H}] wo) {{ wo = Identity (e) }}>
        g = Add (q, w) t = Tanh (g) k = Sigmoid (q) n = Mul (t, k) m = Identity (n) }}> (h, x)
}}"""


@pytest.mark.parametrize(
    ("text", "node", "names", "reason"),
    [
        (PROJECTED, "projection", "VRb", "computed before the loop"),
        (BRANCHED, "inner", "RS", "branches of an If"),
    ],
    ids=["projection", "branch"],
)
def test_products_that_stay_float_are_listed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, node: str, names: str, reason: str
) -> None:
    """The recurrence is lowered; what is left of it is named and counted, and --strict refuses it."""
    held = {k: v for k, v in weights().items() if k in names}
    model = parse(text, **held)
    (entry,) = rnnqc.lower(model).report.entries
    assert (entry.status, len(entry.left)) == ("lowered", 1)
    assert f"node {node!r} (MatMul)" in entry.left[0]
    assert reason in entry.reason
    assert entry.float_bytes == sum(a.nbytes for a in held.values() if a.ndim == 2)
    assert entry.bytes > held[names[0] if node == "projection" else "S"].nbytes
    with pytest.raises(rnnqc.CompileError, match=reason):
        rnnqc.lower(model, strict=True)
    onnx.save(model, tmp_path / "in.onnx")
    done = in_process(capfd, "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--strict")
    assert (done.code, (tmp_path / "out.onnx").exists()) == (3, False)


def test_a_linear_layer_in_front_is_none_of_it() -> None:
    """Neither if steps multiply its result, nor if an activation follows it."""
    text = PROJECTED.replace("g = Add (q, e)", "ee = MatMul (e, S) g = Add (q, ee)")
    squashed = PROJECTED.replace("px = Add (p, b)", "pa = Add (p, b) px = Tanh (pa)")
    for source, names in ((text, "VRbS"), (squashed, "VRb")):
        (entry,) = rnnqc.lower(
            parse(source, **{k: v for k, v in weights().items() if k in names}), strict=True
        ).report.entries
        assert entry.left == []
