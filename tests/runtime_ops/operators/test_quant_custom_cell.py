"""The native operator for custom cells: invalid programs, nodes that do not fit them, and hostile ones.

What these would catch: a program that reads or writes beyond a value (the process dies), a message that does not say
what is wrong, a shape that is not checked, an index that reads beyond a table.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import settings
from onnx import TensorProto, helper, numpy_helper

from tests.native.quant_lstm_cases import native_session

PROGRAM = """state f32 3
input f32 4
constant f32 3
matrix u8 4 3
number u8 80
number f32 3d000000
quantize 1 5 4
product 6 3 4 4
to_f32 7
mul 8 5
add 9 2
add 10 0
call Tanh 13 11
next 12
output 12
"""
CONSTANTS = {"bias": np.float32([0.5, -0.5, 0.25]), "w": np.arange(12, dtype=np.uint8).reshape(4, 3) + 120}
FEEDS = {"x": np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 2, 4), "h": np.zeros((2, 3), np.float32)}


def model(program: str = PROGRAM, constants: dict[str, Any] | None = None, **attributes: Any) -> onnx.ModelProto:
    held = CONSTANTS if constants is None else constants
    node = helper.make_node(
        "QuantCustomCell", ["h", "x", *held], ["h_next", "Y"], "cell", domain="ai.rnnqc", program=program, **attributes
    )
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("h", "x")]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("h_next", "Y")]
    tensors = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph([node], "g", given, made, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.rnnqc", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def outputs(proto: onnx.ModelProto, feeds: dict[str, Any] | None = None) -> list[Any]:
    return list(native_session(proto).run(None, feeds or FEEDS))


def test_a_program_against_numpy() -> None:
    state, rows = np.zeros((2, 3), np.float32), []
    w = CONSTANTS["w"].astype(np.int32) - 128
    tanh = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[a,b] x) => (float[a,b] y) { y = Tanh (x) }'
    )
    session = ort.InferenceSession(tanh.SerializeToString(), providers=["CPUExecutionProvider"])
    for x in FEEDS["x"]:
        codes = np.clip(np.rint(x / np.float32(0.03125)), -128, 127).astype(np.int32)
        sums = (codes @ w).astype(np.float32) * np.float32(0.03125) + CONSTANTS["bias"]
        (state,) = session.run(None, {"x": sums + state})
        rows.append(state)
    last, y = outputs(model())
    assert (last.tobytes(), y.tobytes()) == (state.tobytes(), np.stack(rows).tobytes())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("add 10 0", "add 10 99", "line 12 .* 99 is not 0 .. 10"),
        ("add 10 0", "add 10", "expected 3 words"),
        ("add 10 0", "add 10 7", "value 7 is i32, expected f32"),
        ("add 10 0", "add 10 3", "value 3 is a matrix"),
        ("add 10 0", "twist 10 0", "no such instruction.*newer"),
        ("add 10 0", "slice 10 2 2 1", "ends outside of 3 columns"),
        ("add 10 0", "slice 10 0 2 99999999999999999999", "is not -3 .. 3"),
        ("product 6 3 4 4", "product 6 2 4 4", "value 2 is no matrix"),
        ("matrix u8 4 3", "matrix u8 5 3", r"the matrix has 5 rows"),
        ("number u8 80", "number u8 zz", "no hexadecimal number"),
        ("next 12", "next 12 12", "there are fewer states"),
        ("next 12", "next 6", "expected f32"),
        ("next 12\n", "", "what 0 of 1 states become"),
        ("next 12", "next 2", "the same for all rows"),
        ("call Tanh 13 11", "call Loop 13 11", '"Loop" is no operator that can be called'),
        ("call Tanh 13 11", "call Tanh 13 11 11", "call of Tanh with 2 operands"),
        ("call Tanh 13 11", "call Tanh 99 11", "onnxruntime reports"),
        ("call Tanh 13 11", "call LayerNormalization 17 11 2 axis=i:0", "an axis that is not the last one"),
        ("call Tanh 13 11", "call Elu 6 11 alpha=1", "is no attribute"),
        ("call Tanh 13 11", "call Elu 6 11 alpha=x:1", "is no attribute"),
        ("call Tanh 13 11", "call Softmax 13 11 axis=l:0", "an axis that is not the last one"),
        ("call Tanh 13 11", "call Pow 15 2 2", "the same for all rows"),
        ("state f32 3", "state i32 3", "a state is f32"),
        ("state f32 3", "state f32 0", "0 is not 1"),
        ("constant f32 3", "constant f32 4", "operands of"),
    ],
)  # fmt: skip
def test_wrong_programs(old: str, new: str, message: str) -> None:
    assert PROGRAM.count(old) == 1
    with pytest.raises(Exception, match=f'(?s)QuantCustomCell node "cell": .*{message}'):
        outputs(model(PROGRAM.replace(old, new)))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("", "ReduceMean without attribute axes"),
        ("axes=i:1", "ReduceMean without attribute axes"),
        ("axes=l:0,1", "an axis that is not the last one"),
        ("axes=l:1 keepdims=i:0", "makes no column"),
    ],
)
def test_reductions_of_other_axes(attributes: str, message: str) -> None:
    program = PROGRAM.replace("call Tanh 13 11", f"call ReduceMean 13 11 {attributes}\nadd 12 2")
    with pytest.raises(Exception, match=message):
        outputs(model(program.replace("next 12", "next 13").replace("output 12", "output 13")))


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"bias": CONSTANTS["bias"]}, "it has 3 inputs, and its program 4"),
        ({**CONSTANTS, "bias": np.zeros(4, np.float32)}, r"input 2 has shape \[4\], expected \[3\]"),
        ({**CONSTANTS, "bias": np.zeros((3, 1), np.float32)}, r"input 2 has shape \[3, 1\]"),
        ({**CONSTANTS, "w": CONSTANTS["w"].T.copy()}, r"input 3 has shape \[3, 4\], expected \[4, 3\]"),
        ({**CONSTANTS, "w": CONSTANTS["w"].astype(np.int8)}, "input 3 has element type int8, its program uint8"),
    ],
)
def test_wrong_constants(constants: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        outputs(model(constants=constants))


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": np.zeros((3, 2), np.float32)}, "input 1 has shape"),
        ({"x": np.zeros((3, 2, 5), np.float32)}, r"input 1 has shape \[3, 2, 5\], expected \[3, 2, 4\]"),
        ({"h": np.zeros((3, 3), np.float32)}, r"input 0 has shape \[3, 3\], expected \[2, 3\]"),
        ({"x": np.zeros((0, 2, 4), np.float32)}, "an empty sequence"),
    ],
)
def test_wrong_inputs(feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        outputs(model(), {**FEEDS, **feeds})


def test_attributes() -> None:
    with pytest.raises(Exception, match="attribute reverse is 2, expected 0 or 1"):
        outputs(model(reverse=2))
    with pytest.raises(Exception, match="has version 9 of the operator"):
        outputs(model(operator_version=9))
    turned = {**FEEDS, "x": FEEDS["x"][::-1].copy()}
    last, y = outputs(model(reverse=1), turned)
    wanted, forward = outputs(model())
    assert (last.tobytes(), y[::-1].tobytes()) == (wanted.tobytes(), forward.tobytes())


def test_constants_that_are_given_at_each_call() -> None:
    """As in a model whose initializers are inputs."""
    proto = model()
    wanted = [a.tobytes() for a in outputs(proto)]
    del proto.graph.initializer[:]
    kinds = {"bias": TensorProto.FLOAT, "w": TensorProto.UINT8}
    proto.graph.input.extend(helper.make_tensor_value_info(n, k, None) for n, k in kinds.items())
    assert [a.tobytes() for a in outputs(proto, {**FEEDS, **CONSTANTS})] == wanted


@pytest.mark.parametrize("index", [3, -4, 2**31 - 1])
def test_an_index_beyond_a_table(index: int) -> None:
    bits = f"{np.float32(index).view(np.uint32):x}"
    program = (
        f"state f32 1\ninput f32 1\nconstant f32 3\nnumber f32 {bits}\nmul 1 3\nto_i32 4\ntake 2 5\nnext 6\noutput 6\n"
    )
    feeds = {"x": np.ones((1, 1, 1), np.float32), "h": np.zeros((1, 1), np.float32)}
    with pytest.raises(Exception, match=r"index -?\d+ of a table of 3 entries"):
        outputs(model(program, {"table": np.zeros(3, np.float32)}), feeds)


def test_programs_that_random_changes_made() -> None:
    """They are refused with a message, or run: memory that is not theirs stays untouched (run it with sanitizers)."""
    rng = random.Random(4)
    ran = refused = 0
    for _ in range(max(120, settings().max_examples)):
        words = PROGRAM.split("\n")
        for _ in range(rng.randint(1, 3)):
            line = rng.randrange(len(words))
            parts = words[line].split()
            if not parts:
                continue
            place = rng.randrange(len(parts))
            parts[place] = rng.choice(
                ["0", "1", "2", "3", "12", "-1", "4", "u8", "f32", "i32", "64", "slice", "concat", "1048576"]
            )
            words[line] = " ".join(parts)
        try:
            outputs(model("\n".join(words)))
            ran += 1
        except Exception as error:
            assert "QuantCustomCell" in str(error) or "ONNXRuntimeError" in str(error)
            refused += 1
    assert ran > 4
    assert refused > 40
