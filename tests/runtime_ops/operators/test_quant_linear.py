"""The native linear layer inside onnxruntime against numpy: the same bytes, on every instruction set.

What these would catch: a block of columns or a row that is left out, computed twice or written beyond the output, a
zero point that does not meet its column sum, a division among threads that changes a bit, an input that is not checked.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given

from rnnqc.cells.linear_nodes import KINDS
from tests.native.bundles import bundled, spread
from tests.native.kernel_calls import AVAILABLE, Guarded
from tests.native.quant_linear_cases import LinearCase, linear_case, linear_cases, run_native
from tests.native.quant_lstm_cases import Arrays, assert_same_bits, native_session

PLAIN, PACKED = KINDS[:2]
STATIC = next(kind for kind in KINDS if kind.name == "QuantLinearStatic")
UNEVEN = next(kind for kind in KINDS if kind.name == "QuantLinearInt4Uneven")


def check(case: LinearCase, threads: int = 1, isa: str | None = None) -> Arrays:
    found = run_native(case, threads, isa)
    assert_same_bits(found, case.expected())
    return found


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


@given(linear_cases())
def test_any_configuration(case: LinearCase) -> None:
    check(case)


@pytest.mark.few(2)
@pytest.mark.parametrize("isa", AVAILABLE)
@bundled(
    "rows, inputs, outputs",
    spread(9, [1, 2, 5, 6, 7, 17, 97], [1, 4, 31, 64, 65, 130], [1, 15, 16, 63, 64, 65, 127, 128, 200]),
    few=14,
)
def test_sizes(isa: str, rows: int, inputs: int, outputs: int) -> None:
    for kind in (PLAIN, PACKED):
        check(linear_case((rows,), inputs, outputs, rows, kind), isa=isa)


@pytest.mark.parametrize("rows", [1, 7])
def test_large_weights_of_sets(rows: int) -> None:
    """Of 2^23 weights or more, which kernels read as indices of sets; the last block of columns is not whole."""
    check(linear_case((rows,), 3000, 2801, rows, UNEVEN), threads=2)


@pytest.mark.parametrize("isa", AVAILABLE)
@bundled("rows, outputs, packed", spread(3, [1, 2, 7, 40], [1, 17, 64, 65, 131], [0, 1]))
def test_nothing_is_touched_beyond_the_arrays(isa: str, rows: int, outputs: int, packed: int, guarded: Guarded) -> None:
    """X and Y end at guard pages; Y is not zero before."""
    case = linear_case((rows,), 33, outputs, outputs, KINDS[packed])
    x, expected = guarded.array(case.inputs["X"]), case.expected()["Y"]
    y = guarded.empty(expected.shape, np.float32)
    session = native_session(case.model(), 1, isa)
    binding = session.io_binding()
    binding.bind_input("X", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("Y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    assert_same_bits({"Y": y}, {"Y": expected})


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("threads", [2, 3])
@bundled("rows, outputs", [(1, 2000), (2, 2000), (64, 700), (300, 65), (300, 64)])
def test_threads(kind: Any, threads: int, rows: int, outputs: int) -> None:
    """Wide enough to be divided by columns, high enough to be divided by rows."""
    check(linear_case((rows,), 520, outputs, rows, kind), threads)


def test_largest_sums() -> None:
    """Rows whose sums come next to the limits of int32."""
    case = linear_case((3,), 65024, 3)
    case.inputs["X"][...] = np.float32([[1], [-1], [0]])
    case.inputs["W"][...] = np.int8([-128, 127, 1])
    check(case)


def test_rows_are_independent() -> None:
    case = linear_case((37,), 70, 90)
    session, whole = native_session(case.model()), case.expected()["Y"]
    for begin, end in ((0, 1), (1, 8), (8, 37)):
        part = session.run(None, {"X": case.inputs["X"][begin:end]})[0]
        assert_same_bits({"Y": part}, {"Y": whole[begin:end]})


@bundled("shape, kind", spread(7, [(), (1,), (2, 3), (2, 1, 3, 2), (0,), (3, 0), (0, 3)], KINDS))
def test_any_rank(shape: tuple[int, ...], kind: Any) -> None:
    assert check(linear_case(shape, 5, 7, kind=kind))["Y"].shape == (*shape, 7)


def test_special_values() -> None:
    """NaN counts as 0, infinities saturate, rows of zeros give the bias."""
    case = linear_case((6,), 8, 5)
    x = case.inputs["X"]
    x[0, 0], x[1, 1], x[2, 2], x[3], x[4], x[5, 0] = np.nan, np.inf, -np.inf, 0, np.nan, 1e-45
    found = run_native(case)["Y"]
    assert np.isfinite(found).all()
    assert (found[3] == found[4]).all()
    np.testing.assert_array_equal(found[3], np.broadcast_to(case.inputs["B"], 5))
    clean = LinearCase(case.kind, {**case.inputs, "X": np.where(np.isnan(x), np.float32(0), x)}, case.attributes)
    assert_same_bits({"Y": found}, run_native(clean))
    check(case)


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_weights_that_are_not_constant(kind: Any) -> None:
    case = linear_case((3,), 40, 70, kind=kind)
    for name in set(case.inputs) - {"X"}:
        check(LinearCase(case.kind, case.inputs, case.attributes, set(case.inputs) - {"X", name}))
    check(LinearCase(case.kind, case.inputs, case.attributes, ()))


def test_calls_at_the_same_time() -> None:
    case = linear_case((50,), 300, 700)
    session, expected = native_session(case.model(), 2), case.expected()["Y"]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(
            lambda rows: (rows, session.run(None, {"X": case.inputs["X"][:rows]})[0]), [50, 1, 7] * 9
        ):
            assert_same_bits({"Y": found[1]}, {"Y": expected[: found[0]]})


def _changed(name: str, value: Any, kind: Any = PLAIN) -> LinearCase:
    case = linear_case((3,), 40, 21, kind=kind)
    if name in case.inputs:
        case.inputs[name] = value
    else:
        case.attributes[name] = value
    return case


REFUSED = [
    (r"input W has shape \[40, 20\], expected \[K, N\] = \[\?, 21\]", _changed("W", np.zeros((40, 20), np.int8))),
    (r"input W has shape \[0, 21\], expected 1 .. 65024 rows", _changed("W", np.zeros((0, 21), np.int8))),
    (r"input W has shape \[65025, 21\], expected 1", _changed("W", np.zeros((65025, 21), np.int8))),
    (r"input W has element type int16, expected int8 or uint8", _changed("W", np.zeros((40, 21), np.int16))),
    (r"input W has shape \[40, 10\], expected \[K, ceil", _changed("W", np.zeros((40, 10), np.uint8), PACKED)),
    (r"input B has shape \[20\], expected \[N\] or \[1\]", _changed("B", np.zeros(20, np.float32))),
    (r"input B has element type int32, expected float", _changed("B", np.zeros(21, np.int32))),
    (r"input multiplier has shape \[21, 1\]", _changed("multiplier", np.zeros((21, 1), np.float32))),
    (
        r"input W_group_multiplier has shape \[1, 21\], expected \[G, N\] = \[2, 21\]",
        _changed("W_group_multiplier", np.ones((1, 21), np.uint8), PACKED),
    ),
    (
        r"input W: the group multiplier at \[0, 0\] is 0",
        _changed("W_group_multiplier", np.zeros((2, 21), np.uint8), PACKED),
    ),
    ("group_size is 0; expected both or neither", _changed("group_size", 0, PACKED)),
    ("group_size is 33, expected a multiple of 32", _changed("group_size", 33, PACKED)),
    ("group_size is 32; expected both or neither", _changed("group_size", 32)),
    (r'x_mode is "rows"; .* Use a newer', _changed("x_mode", "rows")),
    ("x_scale is 0, expected a finite number above 0", _changed("x_mode", "static")),
    ("x_zero_point is 256", _changed("x_zero_point", 256, STATIC)),
    ("input X has element type float, expected uint8 for this x_mode", _changed("x_mode", "codes")),
]


@pytest.mark.parametrize(("message", "case"), REFUSED, ids=[text[:60] for text, _ in REFUSED])
def test_wrong_nodes_are_refused(message: str, case: LinearCase) -> None:
    with pytest.raises(Exception, match=message) as caught:
        native_session(case.model())
    assert 'node "fc/1": ' in str(caught.value)


def test_wrong_rows_are_refused() -> None:
    session = native_session(linear_case((3,), 40, 21).model())
    for shape in ((3, 39), (0, 41)):
        with pytest.raises(Exception, match=r'node "fc/1": input X has shape .*, expected \[\.\., K\] with K = \[40\]'):
            session.run(None, {"X": np.zeros(shape, np.float32)})


def test_reserved_inputs_are_refused() -> None:
    model = linear_case((3,), 40, 21, kind=PACKED).model()
    model.graph.node[0].input.append("X")
    with pytest.raises(Exception, match=r'node "fc/1": input 5 \(reserved\) is reserved'):
        native_session(model)


def test_shapes_are_inferred() -> None:
    """From onnxruntime 1.28 on; what follows a linear layer knows the rank and the columns."""
    model = linear_case((3,), 40, 21).model()
    for value, dims in ((model.graph.input[0], ["rows", 40]), (model.graph.output[0], None)):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, 1, dims))
    (output,) = native_session(model).get_outputs()
    assert output.shape == ["rows", 21]


def test_all_names_have_a_kernel() -> None:
    assert len({k.name for k in KINDS}) == 3 * 5  # modes of x and widths of W, of four bits with codebooks, too
    for kind in KINDS:
        check(linear_case((2,), 5, 7, kind=kind))
