"""Data as programs hold it: dicts, arrays, tensors and loaders.

What these would catch: data that is read in another way than the same data from a file, labels taken for inputs, a
tensor that numpy cannot hold without a message, an import of torch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.data.given_data import array_of, open_feeds
from rnnqc.errors import UsageError
from tests.generate.layers import RecurrentCase
from tests.subjects.protos import parse

MODELS = Path(__file__).resolve().parents[2] / "models"
DIGITS, DATA = MODELS / "digits_lstm.onnx", MODELS / "digits_calibration.npz"
ARRAY = np.load(DATA)["x"]
"""Eight samples `[32,8,8]`."""


class Tensor:
    """A stub of a torch tensor with the methods used here."""

    def __init__(self, values: npt.NDArray[Any], *, known: bool = True) -> None:
        self.values, self.known, self.dtype = values, known, "torch.bfloat16"

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def numpy(self) -> npt.NDArray[Any]:
        if not self.known:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


class Loader:
    """A loader of batches (x, label), of which it does not say how many there are; it can be read again."""

    def __iter__(self) -> Iterator[list[Tensor]]:
        for sample in ARRAY:
            yield [Tensor(sample), Tensor(np.zeros(32, np.int64))]


WAYS = {
    "dict": {"x": ARRAY},
    "dict of tensors": {"x": Tensor(ARRAY)},
    "array": ARRAY,
    "tensor": Tensor(ARRAY),
    "loader": Loader(),
    "generator of dicts": ({"x": sample} for sample in ARRAY),
    "list of dicts of tensors": [{"x": Tensor(sample)} for sample in ARRAY],
    "tuple of arrays": tuple(ARRAY),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_the_same_statistics_as_from_a_file(way: str) -> None:
    assert rnnqc.calibrate(DIGITS, WAYS[way]).text == _of_the_file()


@functools.cache
def _of_the_file() -> str:
    return rnnqc.calibrate(DIGITS, DATA).text


def test_labels_of_a_loader() -> None:
    """The array after the inputs holds the labels."""
    held = np.load(MODELS / "digits_test.npz")
    labels = next(k for k in held.files if k != "x")
    pairs = [(held["x"][k : k + 90], held[labels][k : k + 90]) for k in range(0, 450, 90)]
    wanted = rnnqc.evaluate(DIGITS, MODELS / "digits_test.npz", "accuracy").value
    assert rnnqc.evaluate(DIGITS, pairs, "accuracy").value == wanted > 0.9


@pytest.mark.slow
def test_verification_reads_a_loader_again() -> None:
    """`verify` needs some of the calibration data after the calibration."""
    for data in (Loader(), iter(Loader()), {"x": ARRAY}, Tensor(ARRAY)):
        assert rnnqc.lower(DIGITS, calibration=data, verify=True).report.verified


def test_several_inputs_in_order() -> None:
    proto = RecurrentCase(T=3, B=2, I=4, H=4, initial_h=True).model()
    names = [i.name for i in proto.graph.input]
    assert len(names) == 2
    arrays = [np.full(2, float(k), np.float32) for k in range(2)]
    (feed,) = open_feeds([tuple(arrays)], proto)
    assert {k: v[0] for k, v in feed.items()} == dict(zip(names, (0.0, 1.0), strict=True))
    (feed,) = open_feeds([arrays[:1]], proto, carried=names[1:])
    assert list(feed) == names[:1]


def test_one_tuple_of_the_inputs() -> None:
    """A tuple of all inputs is one sample; with an additional leading axis it is several."""
    case = RecurrentCase(T=3, B=2, I=4, H=4, initial_h=True)
    arrays = [case.feeds()[i.name] for i in case.model().graph.input]
    for given in (tuple(arrays), [Tensor(a) for a in arrays], (*arrays, np.zeros(2))):
        (feed,) = open_feeds(given, case.model())
        assert all(feed[n].shape == case.feeds()[n].shape for n in case.feeds())
        assert ("label" in feed) == (len(given) == 3)
    assert len(list(open_feeds(tuple(np.stack([a] * 5) for a in arrays), case.model()))) == 5
    found = rnnqc.verify(case.model(), rnnqc.lower(case.model()), tuple(arrays))
    assert found.feeds == 1 and found.rows == rnnqc.verify(case.model(), rnnqc.lower(case.model()), [case.feeds()]).rows
    with pytest.raises(rnnqc.CompileError, match=r"sample 0: is a ndarray.*arrays named .*; arrays in this order"):
        rnnqc.verify(case.model(), rnnqc.lower(case.model()), tuple(arrays[:1]))


def test_rows_of_different_lengths(tmp_path: Path) -> None:
    """As an array of objects, as a list, and from numpy.savez: the message names a remedy, not a conversion."""
    rows = [ARRAY[0][:2], ARRAY[0][:3]]
    objects = np.empty(2, object)
    objects[:] = rows
    np.savez(tmp_path / "ragged.npz", x=objects)
    for data, found in (
        ({"x": objects}, "array 'x' is object"),
        ({"x": rows}, "a list cannot become a numpy array"),
        (tmp_path / "ragged.npz", "array 'x' holds objects"),
    ):
        with pytest.raises(rnnqc.CompileError, match=rf"{found}.*pad rows .* directory of \.npz, .* iterable of dicts"):
            rnnqc.calibrate(DIGITS, data)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (3, r"is a int\. Supported: \.npz"),
        ([3], r"sample 0: is a int|feed 0: is a int"),
        ([[ARRAY, ARRAY, ARRAY]], "is a list"),
        (Tensor(ARRAY, known=False), r"bfloat16.*BFloat16.*Resolution: convert it"),
        ({"y": ARRAY}, "no array for input 'x'"),
        ([{"x": ARRAY.astype(np.float64)}], "float64.*Supported: float32"),
    ],
)
def test_what_is_no_data(data: Any, wanted: str) -> None:
    with pytest.raises(rnnqc.CompileError, match=wanted):
        rnnqc.calibrate(DIGITS, data)


def test_torch_is_not_imported() -> None:
    rnnqc.calibrate(onnx.load(DIGITS), Loader(), limit=2)
    assert array_of([1, 2]).tolist() == [1, 2]
    assert "torch" not in vars(sys.modules["rnnqc.data.given_data"])


def test_files_in_each_other_s_place(tmp_path: Path) -> None:
    """Statistics where data belongs, and data where statistics belong: the message names the right place."""
    statistics = rnnqc.calibrate(DIGITS, {"x": ARRAY[:2]})
    statistics.save(tmp_path / "s.json")
    for given in (statistics, str(tmp_path / "s.json")):
        with pytest.raises(rnnqc.CompileError, match=r"give (it|a statistics file) as stats="):
            rnnqc.lower(DIGITS, calibration=given)
    for made in (lambda s: rnnqc.lower(DIGITS, stats=s), lambda s: rnnqc.report(DIGITS, rnnqc.lower(DIGITS), stats=s)):
        with pytest.raises(rnnqc.UsageError, match=r"is a file of arrays.*make one with rnnqc.calibrate.*calibration="):
            made(str(DATA))
        with pytest.raises(rnnqc.UsageError, match=r"the statistics are a dict.*what rnnqc\.calibrate returns"):
            made({"x": ARRAY})


def test_calls_of_a_stream_are_not_shuffled() -> None:
    """torch's DataLoader(shuffle=True) is refused: shuffled calls are not a stream."""

    class RandomSampler:
        pass

    class Shuffling(Loader):
        sampler = RandomSampler()

    proto = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x, float[2] h) => (float[2] y) { y = Add(x, h) }'
    )
    data = Shuffling()
    open_feeds(data, proto)
    with pytest.raises(UsageError, match="shuffles, and states go from call to call"):
        open_feeds(data, proto, ["h"])
