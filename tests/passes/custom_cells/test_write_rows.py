"""Recurrences whose states are columns, or that an Einsum multiplies, and become products of rows.

What these would catch: a value that is turned and used as it was, an axis of a Split or of a sequence that is not the
one before, a state that is turned once too often, a product that is taken for one of columns and is none.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.passes import WriteRows
from tests.passes.pass_testing import apply, in_front_of, nodes_of
from tests.runs.lowered import run_both
from tests.subjects.protos import parse

T, B, I, H = 5, 3, 6, 8  # noqa: E741 - steps, columns, inputs and units

before = partial(in_front_of, WriteRows)

SUM = "a# = Add (p#, q#) n# = Tanh (a#) h@ = Add (n#, h#)"
LSTM = """s# = Add (p#, q#) f# = Add (s#, bias) i#, o#, g#, k# = Split <axis = 0, num_outputs = 4> (f#)
    j# = Sigmoid (i#) l# = Sigmoid (o#) m# = Sigmoid (g#) t# = Tanh (k#) u# = Mul (m#, c#) v# = Mul (j#, t#)
    c@ = Add (u#, v#) w# = Tanh (c@) h@ = Mul (l#, w#)"""
GEMM = "q# = Gemm <transA = 1, alpha = 0.5, beta = 2.0> (R, h#, p#)"
COLUMNS, ROWS, HEADS, VECTORS = ("[8,3]", "[6,3]"), ("[3,8]", "[3,6]"), ("[2,8,3]", "[2,6,3]"), ("[8]", "[6]")
STEPS = {
    "matmul": (COLUMNS, f"p# = MatMul (W, x#) q# = MatMul (R, h#) {SUM}", 2),
    "gemm": (COLUMNS, f"p# = MatMul (W, x#) {GEMM} h@ = Tanh (q#)", 2),
    "gemm of rows": (COLUMNS, f"p# = MatMul (W, x#) y# = Transpose (h#) q# = Gemm <transB = 1> (R, y#, bias) {SUM}", 2),
    "gemm turns the state": (
        COLUMNS,
        "p# = MatMul (W, x#) y# = Transpose (p#) q# = Gemm <transA = 1> (h#, R, y#) a# = Tanh (q#) h@ = Transpose (a#)",
        2,
    ),
    "einsum of columns": (COLUMNS, f'p# = MatMul (W, x#) q# = Einsum <equation = "ij,jb->ib"> (R, h#) {SUM}', 2),
    "einsum of rows": (ROWS, f'p# = MatMul (x#, V) q# = Einsum <equation = "bj,ij->bi"> (h#, R) {SUM}', 1),
    "einsum that turns": (
        ROWS,
        f'p# = MatMul (x#, V) y# = Einsum <equation = "ij,bj->ib"> (R, h#) q# = Transpose (y#) {SUM}',
        1,
    ),
    "transposed": (ROWS, f"p# = MatMul (x#, V) y# = Transpose (h#) r# = MatMul (R, y#) q# = Transpose (r#) {SUM}", 1),
    "joined": (COLUMNS, f"e# = Concat <axis = 0> (x#, h#) p# = MatMul (WR, e#) q# = Mul (h#, bias) {SUM}", 1),
    "three axes": (HEADS, f"p# = MatMul (W, x#) q# = MatMul (R, h#) {SUM}", 2),
    "vectors": (VECTORS, f"p# = MatMul (W, x#) q# = MatMul (R, h#) {SUM}", 2),
    "lstm": (COLUMNS, f"p# = MatMul (W4, x#) q# = MatMul (R4, h#) {LSTM}", 2),
}  # fmt: skip
FORMS = ("unrolled", "scan", "reverse", "loop")


def recurrence(name: str, form: str) -> onnx.ModelProto:
    """Steps in the main graph, in a Scan, a Scan that runs backwards along the last axis, or a Loop."""
    (state, element), step, _ = STEPS[name]
    rng = np.random.default_rng(0)
    sizes = {"W": (H, I), "R": (H, H), "V": (I, H), "WR": (H, I + H), "W4": (4 * H, I), "R4": (4 * H, H)}
    arrays = {n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in sizes.items()}
    arrays["bias"] = rng.normal(0, 0.3, (4 * H if name == "lstm" else H, 1)).astype(np.float32)
    states = ["h", "c"] if name == "lstm" else ["h"]
    first = [step.replace("#", "0").replace("@", "1")]
    before_, after, last = ([f"{s}{k}" for s in states] for k in ("0", "1", "_last"))
    typed = ", ".join(f"float{state} {s}" for s in before_)
    sequence = f"[{T},{element[1:]}"
    if form == "unrolled":
        arrays |= {f"at{t}": np.array(t) for t in range(T)}
        lines = [
            f"x{t} = Gather <axis = 0> (x, at{t}) {step.replace('#', str(t)).replace('@', str(t + 1))}"
            for t in range(T)
        ]
        text = " ".join([*lines, *(f"{s}_last = Neg ({s}{T})" for s in states)])
    elif form == "loop":
        arrays["count"] = np.array(T)
        made = ", ".join(f"float{state} {s}" for s in after)
        body = f"b (int64 i, bool go, {typed}) => (bool on, {made}, float{state} each) {{ on = Identity (go)"
        text = f"{', '.join(last)}, every = Loop <body = {body} x0 = Gather <axis = 0> (x, i) {first[0]}"
        text += f" each = Identity (h1) }}> (count, , {', '.join(f'{s}_first' for s in states)})"
    else:
        made = ", ".join(f"float{state} {s}" for s in after)
        body = f"b ({typed}, float{element} x0) => ({made}, float{state} each) {{ {first[0]} each = Identity (h1) }}"
        turned = form == "reverse"
        axes = (
            "scan_input_directions = [1], scan_output_directions = [1], scan_input_axes = [-1], scan_output_axes = [1]"
        )
        if turned:
            sequence = f"{element[:-1]},{T}]"
        text = f"{', '.join(last)}, every = Scan <num_scan_inputs = 1, {f'{axes}, ' if turned else ''}body = {body}> "
        text += f"({', '.join(f'{s}_first' for s in states)}, x)"
    starts = before_ if form == "unrolled" else [f"{s}_first" for s in states]
    rank = len(state.split(",")) + 1
    every = f", float[{','.join('NMKL'[:rank])}] every" if form != "unrolled" else ""
    return parse(
        f'<ir_version: 9, opset_import: ["": 18]> m ({", ".join(f"float{state} {s}" for s in starts)}, '
        f"float{sequence} x) => ({', '.join(f'float{state} {s}' for s in last)}{every}) {{ {text} }}",
        **{n: a for n, a in arrays.items() if n in text},
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STEPS)
def test_products_become_those_of_rows(name: str, form: str) -> None:
    """All products are MatMuls with a constant on the right, and no Transpose is left in the step.

    One is, where the state itself was one of columns, and each step has it as a result.
    """
    proto = recurrence(name, form)
    model = before(proto)
    count = STEPS[name][2]
    assert apply(WriteRows(), model).statistics == {"products": count * (T if form == "unrolled" else 1)}
    assert not nodes_of(model, "Einsum", "Gemm")
    if form != "unrolled":
        (loop,) = nodes_of(model, "Scan", "Loop")
        turned = [n for n in loop.attrs["body"].nodes if n.op == "Transpose"]
        assert len(turned) == (name == "gemm turns the state")
    rng = np.random.default_rng(1)
    feeds = {
        i.name: rng.normal(0, 1, [d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in proto.graph.input
    }
    lowered = rnnqc.lower(proto, strict=True)
    assert [e.status for e in lowered.report.entries] == ["lowered"]
    outputs, wanted = run_both(lowered.proto, feeds), run_both(proto, feeds)
    for key, value in wanted.items():
        assert np.mean((outputs[key] - value) ** 2) < 1e-3 * np.mean(value**2), key


GRU = """p = MatMul (W, x) q = MatMul (R, h) a = Add (p, q) z = Sigmoid (a) p1 = MatMul (W1, x) q1 = MatMul (R1, h)
    a1 = Add (p1, q1) r = Sigmoid (a1) rh = Mul (r, h) p2 = MatMul (W2, x) q2 = MatMul (R2, rh) a2 = Add (p2, q2)
    n = Tanh (a2) d = Sub (h, n) e = Mul (z, d) h_next = Add (n, e)"""


def of_one_step(columns: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    sizes = {f"{n}{k}": (H, s) for n, s in (("W", I), ("R", H)) for k in ("", "1", "2")}
    return parse(
        f'<ir_version: 9, opset_import: ["": 18]> m (float[{I},{columns}] x, float[{H},{columns}] h) => '
        f"(float[{H},{columns}] h_next) {{ {GRU} }}",
        **{n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in sizes.items()},
    )  # fmt: skip


def test_a_step_of_one_column_is_a_layer() -> None:
    """A step of a stream: what comes in as a column goes out as one."""
    proto = of_one_step(1)
    (entry,) = rnnqc.lower(proto, strict=True).report.entries
    assert (entry.op, entry.status) == ("GRU", "lowered")
    feeds = {"x": np.full((I, 1), 0.5, np.float32), "h": np.linspace(-1, 1, H, dtype=np.float32)[:, None]}
    (made,) = run_both(rnnqc.lower(proto).proto, feeds).values()
    (wanted,) = run_both(proto, feeds).values()
    assert made.shape == wanted.shape == (H, 1)
    assert np.mean((made - wanted) ** 2) < 1e-3 * np.mean(wanted**2)


def test_layers_of_several_columns_stay() -> None:
    """They may mix the tokens of a sequence."""
    assert not apply(WriteRows(), before(of_one_step(4))).modified
