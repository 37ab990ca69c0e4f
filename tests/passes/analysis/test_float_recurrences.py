"""Recurrences that are written out, as Keras exports them with PyTorch's backend.

What these would catch: a recurrence that is not listed, so that `--strict` accepts it; products that are no recurrence
and are listed as one.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError
from tests.runs.lowered import run_both
from tests.subjects.protos import parse
from tests.subjects.torch.exports import exported, needed

STEPS = 5


def with_a_step_more() -> onnx.ModelProto:
    """Each step is held by a mask from outside; one more is computed in front, of which the shape alone is used."""
    lines = ["p = Gather <axis = 1> (x, t0) q = MatMul (p, W) extra = Tanh (q)", "size = Shape (extra)"]
    lines += [
        "h0 = ConstantOfShape (size)",
        "e = MatMul (extra, R) size_e = Shape (e) zeros = ConstantOfShape (size_e)",
    ]
    for t in range(STEPS):
        lines.append(f"m{t} = Gather <axis = 1> (mask, c{t})")
        lines.append(f"x{t} = Gather <axis = 1> (x, t{t}) p{t} = MatMul (x{t}, W) r{t} = MatMul (h{t}, R)")
        lines.append(f"s{t} = Add (p{t}, r{t}) n{t} = Tanh (s{t}) h{t + 1} = Where (m{t}, n{t}, h{t})")
    rng = np.random.default_rng(0)
    stored = {f"t{t}": np.array(t) for t in range(STEPS)} | {f"c{t}": np.array([t]) for t in range(STEPS)}
    return parse(
        f'<ir_version: 9, opset_import: ["": 18]> m (float[B,{STEPS},8] x, bool[B,{STEPS}] mask) => (float[B,8] y) '
        f"{{ {' '.join(lines)} y = Add (h{STEPS}, zeros) }}",
        W=rng.normal(0, 0.4, (8, 8)).astype(np.float32), R=rng.normal(0, 0.4, (8, 8)).astype(np.float32), **stored,
    )  # fmt: skip


def test_a_step_in_front_hides_no_recurrence() -> None:
    """The first product with R leads to no other."""
    found = rnnqc.inspect(with_a_step_more())
    assert [n.status for n in found.nodes] == ["lowered"]
    assert found.nodes[0].attributes["sequence_length"] == STEPS
    rng = np.random.default_rng(1)
    mask = np.ones((3, STEPS), bool)
    mask[1, 2:] = mask[2, 1] = False
    feed = {"x": rng.standard_normal((3, STEPS, 8)).astype(np.float32), "mask": mask}
    lowered = rnnqc.lower(with_a_step_more(), strict=True)
    a, b, c = (
        rnnqc.session(m, native=n).run(None, feed)[0]
        for m, n in ((with_a_step_more(), False), (lowered, False), (lowered, True))
    )
    assert np.array_equal(b, c)
    assert np.mean((a - b) ** 2) < 1e-3 * np.mean(a**2)


def convolutional() -> onnx.ModelProto:
    """A state that goes through a convolution, whose kernel every step cuts out of the stored one again."""
    lines = []
    for t in range(STEPS):
        lines.append(f"x{t} = Gather <axis = 1> (x, t{t}) k{t}, l{t} = Split <axis = 3, num_outputs = 2> (K)")
        lines.append(f"w{t} = Transpose <perm = [3, 2, 0, 1]> (k{t})")
        lines.append(f"c{t} = Conv <pads = [1, 1, 1, 1]> (h{t}, w{t}) s{t} = Add (c{t}, x{t}) h{t + 1} = Tanh (s{t})")
    kernel = np.random.default_rng(0).normal(0, 0.2, (3, 3, 4, 8)).astype(np.float32)
    return parse(
        f'<ir_version: 9, opset_import: ["": 18]> m (float[B,{STEPS},4,6,6] x, float[B,4,6,6] h0) '
        f"=> (float[B,4,6,6] y) {{ {' '.join(lines)} y = Neg (h{STEPS}) }}",
        K=kernel, **{f"t{t}": np.array(t) for t in range(STEPS)},
    )  # fmt: skip


def test_a_convolution_that_comes_back_is_listed() -> None:
    (node,) = rnnqc.inspect(convolutional()).nodes
    assert (node.op, node.status) == ("Conv", "float") and f"these {STEPS} unrolled steps" in node.refusal[0]
    with pytest.raises(CompileError, match="recurrent nodes stay float"):
        rnnqc.lower(convolutional(), strict=True)


STEP = 'p{t} = Einsum <equation = "bhd,hde->bhe"> (h{t}, W) s{t} = Add (p{t}, x{t}) h{n} = Tanh (s{t})'


def by_heads(loop: bool) -> onnx.ModelProto:
    """A state that each head multiplies by a matrix of its own."""
    if loop:
        body = f"b (float[B,4,16] h0, float[B,4,16] x0) => (float[B,4,16] h1) {{ {STEP.format(t=0, n=1)} }}"
        lines = [f"y = Scan <num_scan_inputs = 1, body = {body}> (h, x)"]
    else:
        lines = [f"x{t} = Gather <axis = 0> (x, t{t}) {STEP.format(t=t, n=t + 1)}" for t in range(STEPS)]
        lines = ["h0 = Identity (h)", *lines, f"y = Neg (h{STEPS})"]
    return parse(
        f'<ir_version: 9, opset_import: ["": 18]> m (float[B,4,16] h, float[{STEPS},B,4,16] x) => (float[B,4,16] y) '
        f"{{ {' '.join(lines)} }}",
        W=np.random.default_rng(0).normal(0, 0.2, (4, 16, 16)).astype(np.float32),
        **({} if loop else {f"t{t}": np.array(t) for t in range(STEPS)}),
    )  # fmt: skip


@pytest.mark.parametrize("loop", [True, False])
def test_an_einsum_that_comes_back_is_listed(loop: bool) -> None:
    """Its weights are stored with the rest all the same: no custom cell quantizes them."""
    (node,) = rnnqc.inspect(by_heads(loop)).nodes
    assert (node.op, node.status) == ("Scan" if loop else "Einsum", "float"), node
    assert "multiplied by an operator other than MatMul and Gemm" in node.refusal[0]
    with pytest.raises(CompileError, match="recurrent nodes stay float"):
        rnnqc.lower(by_heads(loop), strict=True)
    lowered = rnnqc.lower(by_heads(loop), rest="int8")
    assert {e.form for e in lowered.report.rest.entries} == {"int8 storage"}


SPIKES = "spike{t} = Greater (h{t}, limit) on{t} = Cast <to = 1> (spike{t})"
CHOICE = "spike{t} = Greater (x{t}, limit) on{t} = Cast <to = 1> (spike{t})"


def spiking(told: str) -> onnx.ModelProto:
    """A membrane that leaks, and a product with what `told` makes of it or of the input."""
    lines = []
    for t in range(STEPS):
        lines.append(f"x{t} = Gather <axis = 0> (x, t{t}) p{t} = MatMul (x{t}, W) {told.format(t=t)}")
        lines.append(f"r{t} = MatMul (on{t}, R) k{t} = Mul (h{t}, decay) s{t} = Add (p{t}, r{t})")
        lines.append(f"h{t + 1} = Add (k{t}, s{t})")
    rng = np.random.default_rng(0)
    arrays = {"W": rng.normal(0, 0.7, (8, 8)), "R": rng.normal(0, 0.7, (8, 8)), "decay": 0.8, "limit": 0.5}
    return parse(
        f'<ir_version: 9, opset_import: ["": 18]> m (float[{STEPS},B,8] x, float[B,8] h0) => (float[B,8] y) '
        f"{{ {' '.join(lines)} y = Neg (h{STEPS}) }}",
        **{k: np.asarray(v, np.float32) for k, v in arrays.items()}, **{f"t{t}": np.array(t) for t in range(STEPS)},
    )  # fmt: skip


def test_spikes_are_a_state() -> None:
    """A product with floats that a comparison of the state makes is one with the state."""
    (node,) = rnnqc.inspect(spiking(SPIKES)).nodes
    assert (node.status, node.attributes["products"]) == ("lowered", 2)
    lowered = rnnqc.lower(spiking(SPIKES), strict=True).proto
    feed = {
        n: np.random.default_rng(1).standard_normal(s).astype(np.float32) for n, s in (("x", (5, 3, 8)), ("h0", (3, 8)))
    }
    a, b = (rnnqc.session(lowered, native=n).run(None, feed)[0] for n in (False, True))
    assert np.array_equal(a, b)


def test_comparisons_of_the_input_are_no_state() -> None:
    """No product reads the state: the recurrence has no matrix."""
    found = rnnqc.inspect(spiking(CHOICE))
    assert not found.nodes and [e.mixed for e in found.elementwise] == [""]


def softened(elements: bool) -> onnx.ModelProto:
    """A state that a softmax weights in front of its product: steps with elements of a sequence, or layers."""
    lines = ["x0 = Gather <axis = 0> (x, t0) p0 = MatMul (x0, W)"]
    for t in range(STEPS):
        if elements and t:
            lines.append(f"x{t} = Gather <axis = 0> (x, t{t}) p{t} = MatMul (x{t}, W)")
        lines.append(f"a{t} = Softmax (h{t}) b{t} = Mul (a{t}, h{t}) r{t} = MatMul (b{t}, R)")
        lines.append(f"s{t} = Add (r{t}, p{t if elements else 0}) h{t + 1} = Tanh (s{t})")
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(0, 0.7, (8, 8)).astype(np.float32) for n in "WR"}
    return parse(
        f'<ir_version: 9, opset_import: ["": 18]> m (float[{STEPS},B,8] x, float[B,8] h0) => (float[B,8] y) '
        f"{{ {' '.join(lines)} y = Neg (h{STEPS}) }}",
        **arrays, **{f"t{t}": np.array(t) for t in range(STEPS if elements else 1)},
    )  # fmt: skip


def test_a_softmax_in_a_step_hides_no_recurrence() -> None:
    (node,) = rnnqc.inspect(softened(elements=True)).nodes
    assert (node.status, node.attributes["sequence_length"]) == ("lowered", STEPS)
    rnnqc.lower(softened(elements=True), strict=True)


def test_layers_with_a_softmax_and_one_matrix_are_none() -> None:
    """Attention in layers that share their weights: every layer reads the same."""
    assert not rnnqc.inspect(softened(elements=False)).nodes


@pytest.mark.parametrize(("columns", "count"), [(4, 0), (6, 1)])
def test_small_matrices(columns: int, count: int) -> None:
    """Layers of few units are layers; a chain of 4x4 matrices moves points."""
    rng = np.random.default_rng(0)
    lines = [f"r{t} = MatMul (h{t}, R) h{t + 1} = Mul (r{t}, x{t})" for t in range(STEPS)]
    given = ", ".join(f"float[B,{columns}] {n}" for n in ("h0", *(f"x{t}" for t in range(STEPS))))
    proto = parse(
        f'<ir_version: 9, opset_import: ["": 18]> m ({given}) => (float[B,{columns}] y) '
        f"{{ {' '.join(lines)} y = Neg (h{STEPS}) }}",
        R=rng.normal(0, 0.4, (columns, columns)).astype(np.float32),
    )
    assert len(rnnqc.inspect(proto).nodes) == count


UNITS, INPUTS = 16, 12
ROW, COLUMN = (f"[B,{UNITS}]", f"[B,{INPUTS}]"), (f"[{UNITS},B]", f"[{INPUTS},B]")
SUM = "a# = Add (p#, q#) h@ = Tanh (a#)"
FROM_ROWS, FROM_COLUMNS = "p# = MatMul (x#, V)", "p# = MatMul (W, x#)"
EXPANDED = """n# = Shape <end = 1> (x#) m# = Concat <axis = 0> (n#, square) w# = Expand (R, m#)
    u# = Unsqueeze (h#, two) r# = MatMul (w#, u#) q# = Squeeze (r#, two)"""
HYPER = """g# = MatMul (x#, G) w# = Reshape (g#, whole)
    u# = Unsqueeze (h#, one) r# = MatMul (u#, w#) q# = Squeeze (r#, one)"""
PRODUCTS = {
    "columns": (COLUMN, f"{FROM_COLUMNS} q# = MatMul (R, h#) {SUM}"),
    "columns by Gemm": (COLUMN, f"{FROM_COLUMNS} q# = Gemm <transA = 1, alpha = 0.5> (R, h#, p#) h@ = Tanh (q#)"),
    "columns by Einsum": (COLUMN, f'{FROM_COLUMNS} q# = Einsum <equation = "ij,jb->ib"> (R, h#) {SUM}'),
    "transposed": (ROW, f"{FROM_ROWS} c# = Transpose (h#) r# = MatMul (R, c#) q# = Transpose (r#) {SUM}"),
    "transposed weights": (ROW, f"{FROM_ROWS} w# = Transpose (R) q# = MatMul (h#, w#) {SUM}"),
    "onnxruntime's": (ROW, f"{FROM_ROWS} q# = com.microsoft.FusedMatMul <transB = 1> (h#, R) {SUM}"),
    "weights for each row": (
        ROW,
        " ".join([FROM_ROWS, EXPANDED, SUM]),
    ),
    "an input": (ROW, f"{FROM_ROWS} q# = MatMul (h#, given) {SUM}"),
    "computed in each step": (
        ROW,
        " ".join([FROM_ROWS, HYPER, SUM]),
    ),
}
LOWERED = ("columns", "columns by Gemm", "columns by Einsum", "transposed", "transposed weights")


def of_steps(shapes: tuple[str, str], step: str, loop: bool) -> onnx.ModelProto:
    """A recurrence with a state `h` and elements `x`, in a Scan or unrolled; `step` marks the values of a step."""
    state, element = shapes
    rng = np.random.default_rng(0)
    sizes = {"W": (UNITS, INPUTS), "R": (UNITS, UNITS), "V": (INPUTS, UNITS), "G": (INPUTS, UNITS * UNITS)}
    arrays = {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in sizes.items()}
    arrays |= {n: np.array(v) for n, v in (("one", [1]), ("two", [2]), ("square", [UNITS, UNITS]))}
    arrays["whole"] = np.array([-1, UNITS, UNITS])
    lines = [step.replace("#", str(t)).replace("@", str(t + 1)) for t in range(1 if loop else STEPS)]
    if loop:
        text = f"y = Scan <num_scan_inputs = 1, body = b (float{state} h0, float{element} x0) => (float{state} h1) "
        text += f"{{ {lines[0]} }}> (h, x)"
    else:
        arrays |= {f"at{t}": np.array(t) for t in range(STEPS)}
        lines = [f"x{t} = Gather <axis = 0> (x, at{t}) {line}" for t, line in enumerate(lines)]
        text = " ".join(["h0 = Identity (h)", *lines, f"y = Neg (h{STEPS})"])
    given = f", float[{UNITS},{UNITS}] given" if "given" in text else ""
    return parse(
        f'<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> m '
        f"(float{state} h, float[{STEPS},{element[1:]} x{given}) => (float{state} y) {{ {text} }}",
        **arrays,
    )


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("written", PRODUCTS)
def test_products_in_all_writings(written: str, loop: bool) -> None:
    """A state is multiplied from either side, by any operator, by constants or by what is computed.

    A loop and unrolled steps say the same. Strict lowering accepts a recurrence only if no product of it stays float.
    """
    proto = of_steps(*PRODUCTS[written], loop)
    assert len(rnnqc.inspect(proto).nodes) == 1
    (entry,) = rnnqc.lower(proto).report.entries
    if written in LOWERED:
        assert entry.status == "lowered"
        rnnqc.lower(proto, strict=True)
    else:
        with pytest.raises(CompileError, match="recurrent nodes stay float"):
            rnnqc.lower(proto, strict=True)


def layers_with_one_matrix(product: str, weights: str = "W{t}") -> onnx.ModelProto:
    """Layers with weights of their own, and one matrix that mixes the nodes of a graph in each."""
    rng = np.random.default_rng(0)
    lines = ["h0 = Identity (x)"]
    for t in range(STEPS):
        layer = f"p{t} = MatMul (h{t}, {weights}) {product} r{t} = Relu (q{t}) h{t + 1} = Add (h{t}, r{t})"
        lines.append(layer.format(t=t))
    arrays = {f"W{t}": rng.normal(0, 0.3, (8, 8)).astype(np.float32) for t in range(STEPS)}
    return parse(
        '<ir_version: 9, opset_import: ["": 18]> m (float[B,9,8] x, float[9,9] given) => (float[B,9,8] y) '
        f"{{ {' '.join(lines)} y = Neg (h{STEPS}) }}",
        A=rng.normal(0, 0.3, (9, 9)).astype(np.float32), **arrays,
    )  # fmt: skip


@pytest.mark.parametrize("product", [
    "q{t} = MatMul (A, p{t})",
    'q{t} = Einsum <equation = "ij,bjk->bik"> (A, p{t})',
    "u{t} = Transpose <perm = [0, 2, 1]> (p{t}) v{t} = MatMul (u{t}, A) q{t} = Transpose <perm = [0, 2, 1]> (v{t})",
    "q{t} = MatMul (given, p{t})",
    "m{t} = MatMul (A, h{t}) g{t} = Add (m{t}, p{t}) q{t} = Add (g{t}, h{t})",
])  # fmt: skip
def test_layers_of_a_graph_network_are_none(product: str) -> None:
    """They share the adjacency matrix, on either side, and nothing else."""
    assert not rnnqc.inspect(layers_with_one_matrix(product)).nodes


def test_layers_that_share_all_weights_are_steps() -> None:
    assert len(rnnqc.inspect(layers_with_one_matrix("q{t} = MatMul (A, p{t})", "W0")).nodes) == 1


def powers(step: str) -> onnx.ModelProto:
    lines = " ".join(step.format(t=t, n=t + 1, k=max(t - 1, 0)) for t in range(STEPS))
    return parse(
        '<ir_version: 9, opset_import: ["": 18]> m (float[9,8] h0, float[9,9] given) => (float[9,8] y) '
        f"{{ {lines} y = Neg (h{STEPS}) }}",
        A=np.random.default_rng(0).normal(0, 0.3, (9, 9)).astype(np.float32), two=np.float32(2),
    )  # fmt: skip


@pytest.mark.parametrize(("step", "count"), [
    ("q{t} = MatMul (A, h{t}) s{t} = Mul (q{t}, two) h{n} = Sub (s{t}, h{k})", 0),
    ("q{t} = MatMul (A, h{t}) h{n} = Add (q{t}, h0)", 0),
    ("q{t} = MatMul (given, h{t}) h{n} = Add (q{t}, h0)", 0),
    ("q{t} = MatMul (A, h{t}) s{t} = Add (q{t}, h0) h{n} = Tanh (s{t})", 1),
])  # fmt: skip
def test_powers_of_a_matrix_are_none(step: str, count: int) -> None:
    """Chebyshev polynomials and diffusion on a graph are linear; a fixed point that is not counts as steps."""
    assert len(rnnqc.inspect(powers(step)).nodes) == count


def test_weights_of_both_branches() -> None:
    """An If chooses the recurrent weights: the projection alone becomes integer, and strict lowering refuses that."""
    body = """b (float[B,16] s, float[B,12] e) => (float[B,16] n) {
        p = MatMul (e, V) q = MatMul (s, R) a = Add (p, q) n = Tanh (a) }"""
    branches = """then_branch = t () => (float[16,16] r1) { r1 = Identity (R1) },
        else_branch = e () => (float[16,16] r2) { r2 = Identity (R2) }"""
    rng = np.random.default_rng(0)
    shapes = {"V": (12, 16), "R1": (16, 16), "R2": (16, 16)}
    proto = parse(
        '<ir_version: 9, opset_import: ["": 18]> m (bool k, float[B,16] h, float[5,B,12] x) => (float[B,16] y) '
        f"{{ R = If <{branches}> (k) y = Scan <num_scan_inputs = 1, body = {body}> (h, x) }}",
        **{n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in shapes.items()},
    )
    with pytest.raises(CompileError, match="what multiplies its state is no constant matrix"):
        rnnqc.lower(proto, strict=True)


def test_a_product_belongs_to_one_recurrence() -> None:
    """Of a network between the steps of a GRU two recurrences were read that had products in common."""
    torch = needed("a network between the steps of a GRU")
    from tests.subjects.torch.recurrences import OdeGru

    torch.manual_seed(0)
    x = torch.randn(6, 2, 12)
    proto = exported(OdeGru(12, 16), [x], False)
    lowered = rnnqc.lower(proto, strict=True).proto
    feeds = {proto.graph.input[0].name: x.numpy()}
    (made,), (wanted,) = (list(run_both(m, feeds).values()) for m in (lowered, proto))
    assert np.mean((made - wanted) ** 2) < 1e-3 * np.mean(wanted**2)
