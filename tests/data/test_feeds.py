"""Inputs: generated from a signature, and read from files.

What these would catch: data that changes from run to run, sizes that do not agree between inputs, token numbers beyond
an embedding, a wrong file that is accepted.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given

from rnnqc.data.feeds import check_feed, true_inputs
from rnnqc.data.generated_feeds import generate_feeds
from rnnqc.data.given_data import Data, open_feeds
from rnnqc.data.npz import npz_bytes, read_npz
from rnnqc.data.streaming import checked
from rnnqc.errors import CompileError
from tests.generate.layers import RecurrentCase
from tests.generate.strategies import lstm_cases
from tests.runs.sessions import assert_same_bits, plain_session, run, save_arrays
from tests.subjects.protos import parse, rich_model

CASE = RecurrentCase(dynamic_time=True, dynamic_batch=True, lens=(3, 5), initial_h=True)


def _read(source: Data, proto: onnx.ModelProto) -> list[dict[str, npt.NDArray[Any]]]:
    """All feeds, checked as calibration does."""
    return list(checked(open_feeds(source, proto), proto, None, (), padded=False))


def test_inputs_without_initializers() -> None:
    assert [v.name for v in true_inputs(rich_model())] == ["X", "condition", "list", "maybe"]


def test_same_seed_same_feeds() -> None:
    first, again, other = (generate_feeds(CASE.model(), seed) for seed in (3, 3, 4))
    assert_same_bits(first, again, "the same seed")
    assert not np.array_equal(first["X"], other["X"])


def test_one_sequence_of_extreme_feeds_has_no_step() -> None:
    """One extreme feed has no steps, another one has all; usual feeds are never empty."""
    model = CASE.model()
    usual, extreme = (generate_feeds(model, extreme=e) for e in (False, True))
    assert usual["sequence_lens"].min() > 0
    assert (extreme["sequence_lens"][0], extreme["sequence_lens"][-1]) == (len(extreme["X"]), 0)
    assert np.abs(extreme["X"]).max() > 2 * np.abs(usual["X"]).max()


@given(lstm_cases())
def test_generated_feeds_fit_and_run(case: RecurrentCase) -> None:
    model = case.model()
    feeds = generate_feeds(model)
    check_feed(feeds, model, "generated")
    outputs = run(plain_session(model), feeds)
    assert all(np.isfinite(v).all() for v in outputs.values())


def test_symbols_of_one_name_have_one_size() -> None:
    feeds = generate_feeds(CASE.model())
    steps, batch, _ = feeds["X"].shape
    assert steps != batch
    assert feeds["sequence_lens"].shape == (batch,)
    assert feeds["initial_h"].shape == (1, batch, CASE.H)
    assert feeds["sequence_lens"].dtype == np.int32
    assert feeds["sequence_lens"].max() == steps, "one sequence has full length"
    assert feeds["sequence_lens"].min() >= 1
    assert np.abs(feeds["initial_h"]).max() <= 1


def test_tokens_are_rows_of_the_embedding() -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (int64[batch, seq] tokens) => (float[A, B, C] '
        "y) { y = Gather(table, tokens) }"
    )
    model = parse(text, table=np.zeros((7, 2), np.float32))
    tokens = generate_feeds(model)["tokens"]
    assert tokens.dtype == np.int64
    assert 0 <= tokens.min() <= tokens.max() < 7
    assert tokens.max() > 1
    assert tokens.shape[1] > tokens.shape[0], "the axis called seq is time"


def test_tokens_that_are_floats() -> None:
    """Keras' inputs are floats unless their type is given: tokens were normal numbers, and Gather failed."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[batch, seq] tokens)
        => (float[A, B, C] y, bool[batch, seq] mask) {
      zero = Constant<value = float {0}> () mask = Equal (tokens, zero)
      rows = Cast<to = 6> (tokens) y = Gather (table, rows) }"""
    tokens = generate_feeds(parse(text, table=np.zeros((7, 2), np.float32)))["tokens"]
    assert tokens.dtype == np.float32
    assert tokens.min() >= 0 and 1 < tokens.max() < 7 and np.array_equal(tokens, np.round(tokens))


def test_features_of_which_one_is_an_index() -> None:
    """The other features stay real numbers of the requested magnitude."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[batch, seq, 3] x)
        => (float[A, B, C] y, float[batch, seq, 3] z) {
      two = Constant<value = int64 {2}> () last = Gather<axis = 2> (x, two)
      rows = Cast<to = 7> (last) y = Gather (table, rows) z = Neg (x) }"""
    x = generate_feeds(parse(text, table=np.zeros((2, 2), np.float32)), extreme=True)["x"]
    assert x.min() >= 0 and x.max() <= 1 and not np.array_equal(x, np.round(x))


def test_tokens_that_may_count_from_the_end_and_are_masked() -> None:
    """As Keras writes them with torch's backend: compared with 0 for the mask, they are no choice of 0 alone."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (int32[batch, seq] tokens)
      => (float[A, B, C] y, bool[batch, seq] mask) {
      zero = Constant <value = int32 {0}> () rows = Constant <value = int32 {7}> ()
      mask = Equal (tokens, zero) below = Less (tokens, zero) from_end = Add (tokens, rows)
      index = Where (below, from_end, tokens) y = Gather (table, index) }"""
    tokens = generate_feeds(parse(text, table=np.zeros((7, 2), np.float32)))["tokens"]
    assert tokens.min() >= 0 and 1 < tokens.max() < 7


def test_tokens_whose_choice_is_written_as_a_sum_of_products() -> None:
    """As tf2onnx writes Keras' embedding with `mask_zero`: all tokens were 0, so that everything was masked."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (int32[batch, seq] tokens)
      => (float[A, B, C] y, bool[batch, seq] mask) {
      zero = Constant <value = int32 {0}> () rows = Constant <value = int32 {7}> ()
      mask = Equal (tokens, zero) below = Less (tokens, zero) other = Not (below) from_end = Add (tokens, rows)
      a = Cast<to = 6> (below) b = Cast<to = 6> (other) p = Mul (from_end, a) q = Mul (tokens, b)
      index = Add (p, q) y = Gather (table, index) }"""
    tokens = generate_feeds(parse(text, table=np.zeros((7, 2), np.float32)))["tokens"]
    assert tokens.min() >= 0 and 1 < tokens.max() < 7


def test_types() -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float16[2] a, double[3] b, bool[2] c, uint8[2] '
        "d, float e) => (float16[2] a) {}"
    )
    feeds = generate_feeds(parse(text))
    assert {k: (str(v.dtype), v.shape) for k, v in feeds.items()} == {
        "a": ("float16", (2,)),
        "b": ("float64", (3,)),
        "c": ("bool", (2,)),
        "d": ("uint8", (2,)),
        "e": ("float32", ()),
    }


def test_texts_cannot_be_generated() -> None:
    model = parse('<ir_version: 8, opset_import: ["": 17]> g (string[2] words) => (string[2] words) {}')
    with pytest.raises(CompileError, match=r"input 'words' .*cannot be generated.*give data"):
        generate_feeds(model)


def test_sequences_are_no_tensors() -> None:
    with pytest.raises(CompileError, match=r"input 'list' is no tensor"):
        generate_feeds(rich_model())


def test_npz_comes_back_whatever_the_names(tmp_path: Path) -> None:
    arrays: dict[str, npt.NDArray[Any]] = {
        "X": np.arange(3),
        "file": np.ones((2, 2), np.float32),
        "a/b:0": np.zeros((0, 2)),
        "ü": np.array(True),
    }
    (tmp_path / "a.npz").write_bytes(npz_bytes(arrays))
    assert_same_bits(arrays, read_npz(tmp_path / "a.npz"), "npz")
    assert npz_bytes(arrays) == npz_bytes(arrays)


def test_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"output 'y' of type object cannot be written"):
        npz_bytes({"y": np.array([{}], object)})
    np.savez(tmp_path / "o.npz", X=np.array([{}], object))
    with pytest.raises(CompileError, match=r"o\.npz: array 'X' holds objects"):
        read_npz(tmp_path / "o.npz")


def test_damaged_files(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "cut.npz", X=np.zeros(1000))
    data = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    with zipfile.ZipFile(tmp_path / "strange.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    for name, message in (
        ("text", "cannot be read"),
        ("cut", "cannot be read"),
        ("strange", "'readme.txt', which is no array"),
    ):
        with pytest.raises(CompileError, match=rf"{name}\.npz: .*{message}"):
            _read(str(tmp_path / f"{name}.npz"), CASE.model())


def test_one_feed_or_many_from_a_file(tmp_path: Path) -> None:
    feeds = CASE.feeds(padding=0.0)
    save_arrays(tmp_path / "one.npz", feeds)
    (one,) = _read(str(tmp_path / "one.npz"), CASE.model())
    assert_same_bits(feeds, {k: one[k] for k in feeds}, "one")
    save_arrays(tmp_path / "many.npz", {**feeds, "X": np.stack([feeds["X"], 2 * feeds["X"], feeds["X"]])})
    many = _read(str(tmp_path / "many.npz"), CASE.model())
    assert len(many) == 3
    np.testing.assert_array_equal(many[1]["X"], 2 * feeds["X"])
    np.testing.assert_array_equal(many[1]["initial_h"], feeds["initial_h"])


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"holds no \.npz files"):
        _read(str(tmp_path), CASE.model())
    for k in (2, 1):
        save_arrays(tmp_path / f"{k}.npz", {**CASE.feeds(padding=0.0), "X": np.full((5, 2, 3), k, np.float32)})
    assert [f["X"].ravel()[0] for f in _read(str(tmp_path), CASE.model())] == [1, 2]


def test_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_feeds_module.py").write_text(
        "import numpy as np\n"
        "def feeds():\n    yield {'x': np.ones(2, np.float32)}\n    yield {'x': [0.0, 1.0]}\n"
        "def broken():\n    raise KeyError('lost')\n"
    )
    monkeypatch.chdir(tmp_path)
    model = parse('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] x) {}')
    with pytest.raises(CompileError, match=r"array 'x' is float64.*Supported: float32"):
        _read("my_feeds_module:feeds", model)
    with pytest.raises(CompileError, match=r"my_feeds_module:broken: cannot be called \(KeyError: 'lost'\)"):
        _read("my_feeds_module:broken", model)
    with pytest.raises(CompileError, match=r"no_such_module:f: cannot be called"):
        _read("no_such_module:f", model)


def test_feeds_that_do_not_fit() -> None:
    model, good = CASE.model(), CASE.feeds(padding=0.0)
    check_feed({**good, "more": np.zeros(1)}, model, "data")
    for change, message in (
        ({"X": good["X"].astype(np.float64)}, r"data: array 'X' is float64.*Supported: float32"),
        ({"X": good["X"][0]}, r"data: array 'X' has shape \[2, 3\].*Supported: \[\?, \?, 3\]"),
        ({"X": good["X"][..., :2]}, r"data: array 'X' has shape \[5, 2, 2\]"),
    ):
        with pytest.raises(CompileError, match=message):
            check_feed({**good, **change}, model, "data")
    del good["initial_h"]
    with pytest.raises(CompileError, match=r"no array for input 'initial_h'; arrays: X, sequence_lens"):
        check_feed(good, model, "data")


def test_different_numbers_of_samples(tmp_path: Path) -> None:
    feeds = CASE.feeds(padding=0.0)
    stacked = {"X": np.stack([feeds["X"]] * 3), "initial_h": np.stack([feeds["initial_h"]] * 2)}
    save_arrays(tmp_path / "a.npz", {**feeds, **stacked})
    with pytest.raises(CompileError, match=r"different numbers of samples: \[2, 3\]"):
        _read(str(tmp_path / "a.npz"), CASE.model())


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"absent: no such file.*module:function"):
        _read(str(tmp_path / "absent"), CASE.model())


def test_a_carried_state_is_for_the_first_sample(tmp_path: Path) -> None:
    """An array with a state for each sample would silently restart the stream each time."""
    proto = CASE.model()
    feeds = [generate_feeds(proto, seed) for seed in range(3)]
    stacked = {k: np.stack([f[k] for f in feeds]) for k in feeds[0]}
    path = tmp_path / "data.npz"
    path.write_bytes(npz_bytes({**stacked, "initial_h": feeds[0]["initial_h"]}))
    assert [("initial_h" in f) for f in open_feeds(str(path), proto, ["initial_h"])] == [True, False, False]
    path.write_bytes(npz_bytes(stacked))
    assert len(list(open_feeds(str(path), proto))) == 3
    with pytest.raises(CompileError, match=r"'initial_h' of a carried state.*its value for the first call"):
        open_feeds(str(path), proto, ["initial_h"])


def test_rows_for_a_model_of_one_row() -> None:
    """Samples that stand along the batch of a model whose batch is 1: the message says how to write them."""
    proto = onnx.ModelProto()
    proto.graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, "T"]))
    with pytest.raises(CompileError, match=r"x\[:, None\] is 70 samples of \[1, 30\]"):
        check_feed({"x": np.zeros((70, 30), np.float32)}, proto, "data")
    with pytest.raises(CompileError, match="reshape the array"):
        check_feed({"x": np.zeros((70, 30, 2), np.float32)}, proto, "data")
    with pytest.raises(CompileError, match=r"give one call, x\[0\], where the leading axis counts samples"):
        check_feed({"x": np.zeros((70, 1, 30), np.float32)}, proto, "data")


@pytest.mark.parametrize(
    ("dims", "shape", "wanted"),
    [
        ([1, 1, 65], [4000, 65], "x[:, None, None] is 4000 samples of [1, 1, 65]."),
        (
            [1, 1, 65],
            [4000, 1, 65],
            "x[:, None] is 4000 samples of [1, 1, 65]; or export the model with a dynamic batch.",
        ),
        (["T", 1, 65], [4000, 20, 65], "reshape the array"),
        ([1, 65, 1], [40, 65], "x[:, None, :, None] is 40 samples of [1, 65, 1]."),
        ([1, "T", 65], [40, 65], "x[None] is one call of [1, 40, 65]."),
        (["T", 1, 65], [40, 65], "x[:, None] is one call of [40, 1, 65]."),
        (["T", "B", 65], [40, 65], "reshape the array"),
        ([1, 1, 65], [65], "x[None, None] is one call of [1, 1, 65]."),
        ([1, 1, 65], [40, 64], "reshape the array"),
        ([1, 1, 65], [], "reshape the array"),
    ],
)
def test_axes_that_are_missing(dims: list[int | str], shape: list[int], wanted: str) -> None:
    """The message says how to insert the axes and names the resulting shape, which fits."""
    proto = onnx.ModelProto()
    proto.graph.input.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims))
    x = np.zeros(shape, np.float32)
    with pytest.raises(CompileError) as caught:
        check_feed({"x": x}, proto, "data")
    assert f"Resolution: {wanted}" in str(caught.value)
    if wanted.startswith("x["):
        made = x[eval(wanted[2 : wanted.index("]")].replace(":", "slice(None)") + ",")]
        count = int(wanted.split(" is ")[1].split()[0]) if " samples of " in wanted else 1
        assert len(_read(made, proto)) == count
