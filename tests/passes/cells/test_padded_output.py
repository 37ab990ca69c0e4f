"""Uses of a padded output (`sequence_lens`): operators that look for zeros, remove steps, or read the padding.

What these would catch: a layer that is lowered where its zeros are looked for, one that stays float for a mask from the
lengths, for a threshold or for a reduction over units; a use behind Transpose, Squeeze, Reshape or in a branch that is
not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import Outcome
from rnnqc.passes import DecomposeLstm
from tests.passes.pass_testing import before, declines, nodes_of
from tests.runs.lowered import NATIVE, STOCK, WAYS, lower_all, session
from tests.runs.sessions import assert_same_bits, run
from tests.subjects.protos import parse
from tests.subjects.torch.exports import exported, needed

HEAD = """<ir_version: 8, opset_import: ["": 17]> g (float[T, B, 2] X, int32[B] lens, bool[N] mask) => (Z)
<int64[1] one = {1}, int64[1] zeroth = {0}, int64[1] last = {-1}, int64[1] flat = {-1}, int64[2] rows = {-1, 4},
 int64[3] merged = {0, 0, -1}, float nothing = {0.0}, float half = {0.5}> {
  Y, Y_h = GRU <hidden_size = 4> (X, W, R, "", lens)
  y = Squeeze (Y, one)
  p = Reshape (y, rows)
"""
CHOSEN = {
    "boolean index": "a = Abs (y)  s = ReduceSum (a, last)  m = Greater (s, nothing)  i = NonZero (m)"
    "  t = Transpose (i)  Z = GatherND (y, t)",
    "non-zeros": "Z = NonZero (y)",
    "squares, Compress": "q = Mul (p, p)  s = ReduceMax <axes = [1], keepdims = 0> (q)  e = Equal (s, nothing)"
    "  m = Not (e)  Z = Compress <axis = 0> (p, m)",
    "cast": "a = Abs (p)  s = ReduceMax <axes = [1], keepdims = 0> (a)  m = Cast <to = 9> (s)"
    "  Z = Compress <axis = 0> (p, m)",
    "behind Transpose and Reshape": "t = Transpose <perm = [0, 2, 1, 3]> (Y)  r = Reshape (t, merged)  Z = NonZero (r)",
}
NOTES = {
    "Compress by the lengths": ("Z = Compress <axis = 0> (p, mask)", "is compacted", '"Compress"'),
    "GatherND by the lengths": (
        "i = NonZero (mask)  t = Transpose (i)  Z = GatherND (p, t)",
        "compacted",
        '"GatherND"',
    ),
    "Gather by the lengths": (
        "i = NonZero (mask)  j = Squeeze (i, zeroth)  Z = Gather (p, j)",
        "compacted",
        '"Gather"',
    ),
    "largest of all steps": ("Z = ReduceMax <axes = [0]> (Y)", "are read as data", '"ReduceMax"'),
    "mean of all steps": (
        "t = Transpose <perm = [1, 0, 2]> (y)  Z = ReduceMean <axes = [1]> (t)",
        "read",
        "ReduceMean",
    ),
    "of two directions": (
        "t = Transpose <perm = [0, 2, 1, 3]> (Y)  r = Reshape (t, merged)  Z = ReduceMax <axes = [-3]> (r)",
        "read as data",
        '"ReduceMax"',
    ),
    "masked": ("e = Equal (y, nothing)  Z = Where (e, half, y)", "taken for padding", '"Where"'),
}
SILENT = {
    "nothing": "Z = Identity (y)",
    "units": "Z = ReduceMax <axes = [-1]> (y)",
    "a sum of all steps": "Z = ReduceSum (y, zeroth)",
    "a threshold": "s = ReduceMax <axes = [2], keepdims = 0> (y)  m = Greater (s, half)  Z = NonZero (m)",
    "an index": "Z = Gather <axis = 0> (y, one)",
    "a bias": "b = Add (y, half)  Z = ReduceMax <axes = [0]> (b)",
    "states": "Z = NonZero (Y_h)",
}


def model(tail: str, lengths: bool = True) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    w, r = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((1, 12, 2), (1, 12, 4)))
    text = HEAD if lengths else HEAD.replace(', "", lens', "")
    return parse(f"{text} {tail} }}", W=w, R=r)


def notes(proto: onnx.ModelProto) -> list[Any]:
    found = DecomposeLstm()(before("decompose-lstm", proto)).remarks
    return [r for r in found if r.outcome is Outcome.NOTE and r.action]


@pytest.mark.parametrize("name", CHOSEN)
def test_zeros_that_choose_steps(name: str) -> None:
    proto = model(CHOSEN[name])
    result = declines(DecomposeLstm(), before("decompose-lstm", proto), "by looking for zeros")
    (remark,) = result.remarks
    used = "NonZero" if "NonZero" in CHOSEN[name] else "Compress"
    assert remark.found.startswith(f'sequence_lens, and usage of Y by "{used}" (node ')
    assert "lengths" in remark.action


@pytest.mark.parametrize("name", CHOSEN)
def test_without_lengths_there_is_no_padding(name: str) -> None:
    loaded = before("decompose-lstm", model(CHOSEN[name], lengths=False))
    DecomposeLstm()(loaded)
    assert not nodes_of(loaded, "GRU")


@pytest.mark.parametrize("name", NOTES)
def test_uses_worth_a_word(name: str) -> None:
    tail, reason, found = NOTES[name]
    (note,) = notes(model(tail))
    assert reason in note.reason and found in note.found and note.found.startswith("sequence_lens, and usage of Y by ")
    (entry,) = rnnqc.lower(model(tail)).report.entries
    assert (entry.status, entry.reason) == ("lowered", note.reason)


@pytest.mark.parametrize("name", SILENT)
def test_ordinary_uses(name: str) -> None:
    assert notes(model(SILENT[name])) == []


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [n for n in NOTES if n != "masked"])
def test_meaning_is_kept(name: str) -> None:
    """The same steps are removed, and padding is 0, in every way of executing the lowered layer."""
    proto = model(NOTES[name][0])
    rng = np.random.default_rng(1)
    lens = np.array([3, 0, 5], np.int32)
    mask = (np.arange(5)[:, None] < lens).ravel()
    feeds = {"X": rng.standard_normal((5, 3, 2)).astype(np.float32), "lens": lens, "mask": mask}
    results = lower_all(proto, {"T": 5})
    expected = run(session(results[STOCK].proto, STOCK), feeds)
    wanted = run(session(proto, STOCK), feeds)["Z"]
    assert expected["Z"].shape == wanted.shape
    np.testing.assert_allclose(expected["Z"], wanted, atol=0.05)
    for way in WAYS:
        assert_same_bits(expected, run(session(results[way].proto, way), feeds), way)


@pytest.mark.few(1)
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("index", ["zeros", "lengths"])
def test_exports_of_torch(cell: str, layers: int, index: str) -> None:
    """Steps removed by a boolean index: only the last layer is affected, and only if the index looks for zeros."""
    torch = needed("indexing of a padded sequence")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(torch.nn, cell)(5, 6, num_layers=layers, batch_first=True)

        def forward(self, x: Any, lens: Any) -> Any:
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lens, batch_first=True, enforce_sorted=False)
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)
            steps = torch.arange(x.shape[1])[None, :] < lens[:, None]
            return y[steps if index == "lengths" else y.abs().sum(-1) > 0]

    torch.manual_seed(0)
    x, lens = torch.randn(3, 7, 5), torch.tensor([2, 7, 4])
    axes = {"x": {0: "B", 1: "T"}, "lens": {0: "B"}, "y": {0: "N"}}
    net = Net()
    names: Sequence[str] = ("x", "lens")
    proto = exported(net, (x, lens), False, input_names=list(names), output_names=["y"], dynamic_axes=axes)
    entries = rnnqc.lower(proto).report.entries
    last = "float" if index == "zeros" else "lowered"
    assert [e.status for e in entries] == ["lowered"] * (layers - 1) + [last]
    assert ("by looking for zeros" if index == "zeros" else "is compacted") in entries[-1].reason
    feeds = {"x": x.numpy(), "lens": lens.numpy()}
    with torch.no_grad():
        wanted = net(x, lens).numpy()
    for way in (STOCK, NATIVE):
        found = run(session(rnnqc.lower(proto).proto, way), feeds)["y"]
        assert found.shape == wanted.shape == (13, 6)
        np.testing.assert_allclose(found, wanted, atol=0.05)
