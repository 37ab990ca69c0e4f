"""Files that attack: data outside the model's folder, links, pipes, archives and sizes that lie; and files that cannot
be written whole.

The rule for what is read: exit code 2, one message that names the file, nothing written. For what is written: whole or
not at all, whatever stops the command.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import rnnqc
from rnnqc.proto.external_data import ALLOW_LINKS
from rnnqc.proto.files import load_proto, word_for
from tests.generate.layers import RecurrentCase
from tests.runs.commands import HANGS, Result, in_process, in_subprocess
from tests.runs.sessions import run, save_arrays
from tests.subjects.protos import keep_outside, of_nodes

CASE = RecurrentCase()
GIGABYTE = 2**30


def _external(**entries: str) -> onnx.ModelProto:
    return keep_outside(CASE.model(), "W", **entries)


def _weights() -> bytes:
    return CASE.parameters()["W"].tobytes()


def _write(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def _refused(result: Result, *mentioned: str) -> None:
    assert result.code == 2, f"exit code {result.code}: {result.text}"
    assert "Traceback" not in result.text and "internal error" not in result.text, result.text
    assert result.err.strip(), "no message"
    assert not mentioned or any(text in result.err for text in mentioned), result.err


# ---- links ----------------------------------------------------------------------------------------------------------


def _cache(folder: Path) -> Path:
    """A model as the cache of huggingface_hub holds it: links to files called by their hashes."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    _write(_external(location="model.onnx_data"), blobs / "0123")
    (blobs / "4567").write_bytes(_weights())
    (snapshot / "model.onnx").symlink_to("../../blobs/0123")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/4567")
    return snapshot / "model.onnx"


def _hard(folder: Path) -> Path:
    (folder / "secret").write_bytes(_weights())
    (folder / "model").mkdir()
    os.link(folder / "secret", folder / "model" / "weights.bin")
    return _write(_external(location="weights.bin"), folder / "model" / "in.onnx")


LINKED = {"the cache of huggingface_hub": _cache, "a hard link": _hard}


@pytest.mark.parametrize("what", LINKED)
def test_links_need_permission(
    what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = LINKED[what](tmp_path)
    save_arrays(tmp_path / "feeds.npz", CASE.feeds())
    commands: list[list[str | Path]] = [
        ["lower", path, "-o", tmp_path / "out.onnx"],
        ["inspect", path],
        ["run", path, "-i", tmp_path / "feeds.npz", "-o", tmp_path / "out.npz"],
        ["verify", path, path],
        ["calibrate", path, "--data", tmp_path / "feeds.npz", "-o", tmp_path / "out.json"],
    ]
    for command in commands:
        result = in_process(capfd, *command)
        _refused(result, "link")
        assert ALLOW_LINKS in result.err
    with pytest.raises(rnnqc.CompileError, match="link"):
        rnnqc.session(path)
    assert not list(tmp_path.glob("out*"))

    monkeypatch.setenv(ALLOW_LINKS, "1")
    for command in commands:
        assert in_process(capfd, *command).code == 0, command
    expected = run(rnnqc.session(rnnqc.lower(CASE.model()).proto, native=False), CASE.feeds())
    got = run(rnnqc.session(tmp_path / "out.onnx", native=False), CASE.feeds())
    assert {k: v.tobytes() for k, v in expected.items()} == {k: v.tobytes() for k, v in got.items()}
    run(rnnqc.session(path), CASE.feeds())


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/hostname", "folder/../../secret", "..", ".", "", "a\0b", "folder"]
)
def test_permission_is_for_links_alone(
    location: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_LINKS, "1")
    (tmp_path / "secret").write_bytes(_weights())
    (tmp_path / "model" / "folder").mkdir(parents=True)
    path = _write(_external(location=location), tmp_path / "model" / "in.onnx")
    _refused(in_process(capfd, "lower", path, "-o", tmp_path / "out.onnx"), "in.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_a_link_that_comes_after_the_check_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates an exchange of the file between the check by name and the opening."""
    from rnnqc.proto import external_data

    monkeypatch.setattr(external_data, "_refuse_links", lambda *arguments: None)
    for k, path in enumerate((_cache(tmp_path), _hard(tmp_path))):
        with pytest.raises(rnnqc.CompileError, match="symbolic|symlink|hard link" if k else "(?i)symbolic"):
            rnnqc.lower(path)


@pytest.mark.slow
def test_data_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "weights.bin")
    path = _write(_external(location="weights.bin"), tmp_path / "in.onnx")
    _refused(in_subprocess("inspect", path, seconds=60), "weights.bin")


@pytest.mark.parametrize("offset", ["0", "4", str(2**40), str(2**63 - 1), str(2**64), "1e3", "٣", " 0", "0x10"])
@pytest.mark.parametrize("length", [None, "0", str(2**40), str(2**62)])
def test_spans_that_the_file_has_not(
    offset: str, length: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if (offset, length) == ("0", None):
        pytest.skip("is what it says")
    (tmp_path / "weights.bin").write_bytes(_weights())
    given = {"location": "weights.bin", "offset": offset} | ({"length": length} if length is not None else {})
    path = _write(_external(**given), tmp_path / "in.onnx")
    _refused(in_process(capfd, "inspect", path), "W")


def test_a_sparse_file_is_not_read_into_memory(tmp_path: Path) -> None:
    """Four gigabytes of nothing, and a shape that fits them."""
    with (tmp_path / "weights.bin").open("wb") as stream:
        stream.truncate(4 * GIGABYTE)
    model = _external(location="weights.bin")
    tensor = next(t for t in model.graph.initializer if t.name == "W")
    tensor.dims[:] = [1, 2**28, 4]
    path = _write(model, tmp_path / "in.onnx")
    _refused(in_subprocess("inspect", path, memory=3 * GIGABYTE), "W")


def test_protos_with_external_data_have_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime would use the working directory of the process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.bin").write_bytes(_weights())
    model = _external(location="weights.bin")
    for call in (rnnqc.lower, rnnqc.session, rnnqc.Model.load):
        with pytest.raises(rnnqc.CompileError, match="external data"):
            call(model)


# ---- other inputs ---------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_no_model(path: str) -> None:
    _refused(in_subprocess("inspect", path, memory=4 * GIGABYTE, seconds=60), path)


@pytest.mark.slow
def _of_onnxruntime(path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(CASE.model().SerializeToString(), options, providers=["CPUExecutionProvider"])


def _zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", _weights())


OTHERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "onnxruntime": (_of_onnxruntime, "lower the ONNX model that it was made from"),
    "TensorFlow Lite": (lambda path: path.write_bytes(b"\x1c\x00\x00\x00TFL3" + _weights()), "tf2onnx"),
    "HDF5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + _weights()), "docs/keras.md"),
    "ZIP": (_zipped, "docs/pytorch.md, docs/keras.md"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"W": _weights()}, 2)), "docs/pytorch.md"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_files_for_other_programs(what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The message says what such a file is, and how a model comes of it."""
    write, action = OTHERS[what]
    write(tmp_path / "model")
    result = in_process(capfd, "inspect", tmp_path / "model")
    _refused(result, "not an ONNX model, but")
    assert action in result.err


def _piped(*arguments: str | Path) -> str:
    """The output of a command that reads the model from a pipe."""
    done = subprocess.run(
        [sys.executable, "-m", "rnnqc", *arguments],
        input=CASE.model().SerializeToString(), capture_output=True, timeout=HANGS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_a_pipe_is_a_model(tmp_path: Path) -> None:
    """Would catch: a next command that reads a pipe which has given what it had."""
    out, page = tmp_path / "out.onnx", tmp_path / "page.html"
    said = _piped("lower", "/dev/stdin", "-o", out, "--report", page, "--models", "2")
    assert out.read_bytes() == rnnqc.lower(CASE.model()).proto.SerializeToString(deterministic=True)
    assert said.splitlines()[-1].split() == ["next", "rnnqc", "verify", "MODEL", str(out)]
    assert "/dev/stdin" not in " ".join(re.findall("rnnqc lower[^<]*", page.read_text()))


def test_commands_that_read_a_model_twice_take_a_pipe() -> None:
    assert "1 recurrent node(s)" in _piped("inspect", "/dev/stdin")
    assert "float" in _piped("bench", "/dev/stdin", "--rounds", "2")


def test_a_pipe_gives_what_is_new(tmp_path: Path) -> None:
    """One that a program opens again has another model."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for size in (4, 6):
        expected = CASE.replace(H=size).model()
        writer = threading.Thread(target=pipe.write_bytes, args=[expected.SerializeToString()])
        writer.start()
        assert load_proto(pipe) == expected
        writer.join()


@pytest.mark.parametrize(
    ("path", "word"),
    [("a.onnx", "a.onnx"), ("/dev/stdin", "MODEL"), ("/dev/fd/63", "MODEL"), ("/proc/self/fd/0", "MODEL")],
)
def test_names_of_files_for_later_commands(path: str, word: str, tmp_path: Path) -> None:
    assert word_for(path, "MODEL") == word
    os.mkfifo(tmp_path / "pipe")
    assert word_for(str(tmp_path / "pipe"), "MODEL") == "MODEL"


def _sparse_model(shape: Sequence[int], name: str = "W") -> onnx.ModelProto:
    model = CASE.model()
    dense = next(t for t in model.graph.initializer if t.name == name)
    model.graph.initializer.remove(dense)
    values = numpy_helper.from_array(np.array([0.5], np.float32), name)
    indices = numpy_helper.from_array(np.array([0], np.int64), "indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, list(shape)))
    return model


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", [(1, 2**40, 3), (1, 16, 2**33), (2**20, 2**20, 2**20), (1, -16, 3)])
def test_sparse_tensors_that_would_fill_the_memory(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = _write(_sparse_model(shape), tmp_path / "in.onnx")
    _refused(in_subprocess("lower", path, "-o", tmp_path / "out.onnx", memory=4 * GIGABYTE), "W")


@pytest.mark.parametrize("places", [[0], [[]]])
def test_a_sparse_scalar(places: list[object], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No shape at all; onnxruntime takes some of them."""
    model = _sparse_model((), "B")
    (tensor,) = model.graph.sparse_initializer
    tensor.indices.CopyFrom(numpy_helper.from_array(np.array(places, np.int64), "indices"))
    _refused(in_process(capfd, "lower", _write(model, tmp_path / "in.onnx"), "-o", tmp_path / "out.onnx"))


def test_sparse_weights_are_weights() -> None:
    lowered = rnnqc.lower(_sparse_model((1, 16, 3)))
    assert [e.status for e in lowered.report.entries] == ["lowered"]


def _computed(nodes: Sequence[onnx.NodeProto], **stored: np.ndarray) -> onnx.ModelProto:
    """W is what the nodes make of a few numbers."""
    model = CASE.model()
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "W"))
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in stored.items())
    kept = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *kept])
    return model


HUGE = np.array([1, 2**20, 2**20], np.int64)
LINE = np.zeros((1, 2**16, 1), np.float32)
BOMBS: dict[str, Callable[[], onnx.ModelProto]] = {
    "ConstantOfShape": lambda: _computed([helper.make_node("ConstantOfShape", ["n"], ["W"])], n=HUGE),
    "Expand": lambda: _computed([helper.make_node("Expand", ["x", "n"], ["W"])], x=np.float32(1).reshape(1), n=HUGE),
    "Tile": lambda: _computed([helper.make_node("Tile", ["x", "n"], ["W"])], x=LINE, n=np.array([1, 2**8, 2**16])),
    "a row and a column": lambda: _computed(
        [helper.make_node("Add", ["x", "y"], ["W"])], x=LINE, y=LINE.reshape(1, 1, -1)
    ),
    "a product": lambda: _computed([helper.make_node("MatMul", ["x", "y"], ["W"])], x=LINE, y=LINE.reshape(1, 1, -1)),
    "steps": lambda: _computed(
        [
            helper.make_node("Range", ["a", "b", "c"], ["r"]),
            helper.make_node("Cast", ["r"], ["f"], to=1),
            helper.make_node("Reshape", ["f", "s"], ["W"]),
        ],
        a=np.array(0), b=np.array(2**40), c=np.array(1), s=np.array([1, -1, 3]),
    ),
}  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize("what", BOMBS)
def test_constants_that_would_fill_the_memory(what: str, tmp_path: Path) -> None:
    """A kilobyte of model asks for terabytes: the layer stays float, or the model is refused."""
    path = _write(BOMBS[what](), tmp_path / "in.onnx")
    result = in_subprocess("lower", path, "-o", tmp_path / "out.onnx", memory=4 * GIGABYTE, seconds=100)
    assert result.code in (0, 2), result.text
    assert "Traceback" not in result.text and "internal error" not in result.text
    if result.code == 0:
        assert "the_lstm" in result.text


LEAST = np.array([-(2**63), 7])


def _least_by_minus_one(op: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Neg", ["one"], ["minus"]),
        helper.make_node(op, ["least", "minus"], ["r"]),
        helper.make_node("Cast", ["r"], ["W"], to=1),
    ]
    return _computed(nodes, one=np.array(1), least=LEAST)


FATAL: dict[str, Callable[[], onnx.ModelProto]] = {
    "the least integer by -1, Div": partial(_least_by_minus_one, "Div"),
    "the least integer by -1, Mod": partial(_least_by_minus_one, "Mod"),
    "elements that are not there": lambda: _computed(
        [helper.make_node("GatherND", ["x", "n"], ["W"])], x=LINE, n=np.full((1, 16, 3, 3), 2**40)
    ),
    "parts of 0 elements": lambda: _computed(
        [
            helper.make_node("SplitToSequence", ["x", "n"], ["s"]),
            helper.make_node("ConcatFromSequence", ["s"], ["W"], axis=0),
        ],
        x=LINE, n=np.array(0),
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("what", FATAL)
def test_constants_that_end_the_process(what: str, tmp_path: Path) -> None:
    """onnxruntime divides by zero, overflows, or reads beyond an array: such values count as not constant."""
    path = _write(FATAL[what](), tmp_path / "in.onnx")
    result = in_subprocess("lower", path, "-o", tmp_path / "out.onnx")
    assert result.code in (0, 2), result.text
    assert "W" in result.text and "Traceback" not in result.text


def test_usual_divisions_are_constants() -> None:
    model = _computed(
        [
            helper.make_node("Div", ["n", "four"], ["size"]),
            helper.make_node("Concat", ["one", "size", "rest"], ["shape"], axis=0),
            helper.make_node("Reshape", ["flat", "shape"], ["W"]),
        ],
        n=np.array([64]), four=np.array([4]), one=np.array([1]), rest=np.array([-1]),
        flat=CASE.parameters()["W"].reshape(-1),
    )  # fmt: skip
    assert [e.status for e in rnnqc.lower(model).report.entries] == ["lowered"]


def test_loops_in_loops_are_not_written_out_without_end(tmp_path: Path) -> None:
    path = _write(RecurrentCase(T=15000, placement="loop", opset=17).model(), tmp_path / "in.onnx")
    result = in_subprocess("lower", path, "-o", tmp_path / "out.onnx", "--unroll", memory=6 * GIGABYTE, seconds=100)
    _refused(result, "nodes")


def _damaged_cells() -> onnx.ModelProto:
    model = CASE.model()
    model.metadata_props.add(key="rnnqc.cells", value="[" * 200000)
    return model


def test_deep_metadata(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _refused(in_process(capfd, "inspect", _write(_damaged_cells(), tmp_path / "in.onnx")), "rnnqc.cells")


NESTED = {
    "--stats": ("stats.json", "[" * 200000),
    "--recipe": ("recipe.toml", "rule = " + "[" * 200000),
    "--set": (None, "*.bits=" + "[" * 100000),
}


@pytest.mark.parametrize("flag", NESTED)
def test_deep_settings(flag: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name, text = NESTED[flag]
    if name is not None:
        (tmp_path / name).write_text(text)
    path = _write(CASE.model(), tmp_path / "in.onnx")
    value = text if name is None else str(tmp_path / name)
    _refused(in_process(capfd, "lower", path, "-o", tmp_path / "out.onnx", f"{flag}={value}"))
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(
    "text", ["{cell:>999999999}", "{cell.__class__}", "{point!r:>99}", "{nobody}", "{", "{0}", "{}"]
)
def test_names_of_groups_are_no_programs(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A format of a recipe could ask for any amount of memory."""
    path = _write(CASE.model(), tmp_path / "in.onnx")
    (tmp_path / "recipe.toml").write_text(f'[[rule]]\npoints = "*"\nshare = "{text}"\nbits = 8\n')
    for flag in (f"--recipe={tmp_path / 'recipe.toml'}", f"--set=*.input.share={text}"):
        _refused(in_process(capfd, "lower", path, "-o", tmp_path / "out.onnx", flag), "share")


# ---- data -----------------------------------------------------------------------------------------------------------


def _archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def _npy(shape: str, dtype: str = "<f4", content: bytes = b"") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def _saved(**arrays: object) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


X = CASE.feeds()["X"]
BAD_DATA: dict[str, Callable[[Path], object]] = {
    "absent": lambda p: None,
    "empty file": lambda p: p.write_bytes(b""),
    "garbage": lambda p: p.write_bytes(b"garbage"),
    "no arrays": lambda p: _archive(p, {}),
    "no samples": lambda p: p.write_bytes(_saved(X=X[None][:0])),
    "no steps": lambda p: p.write_bytes(_saved(X=X[:0])),
    "no rows": lambda p: p.write_bytes(_saved(X=X[:, :0])),
    "wrong name": lambda p: p.write_bytes(_saved(Y=X)),
    "wrong type": lambda p: p.write_bytes(_saved(X=X.astype(np.int64))),
    "wrong rank": lambda p: p.write_bytes(_saved(X=X[0])),
    "wrong size": lambda p: p.write_bytes(_saved(X=X[..., :1])),
    "text": lambda p: p.write_bytes(_saved(X=np.array(["a"]))),
    "complex": lambda p: p.write_bytes(_saved(X=X.astype(np.complex64))),
    "pickled": lambda p: p.write_bytes(_saved(X=np.array([{"a": 1}], object))),
    "pickled, another name": lambda p: p.write_bytes(_saved(X=X, other=np.array([{"a": 1}], object))),
    "a pickle for an array": lambda p: _archive(p, {"X.npy": b"\x80\x04cos\nsystem\n."}),
    "no npy": lambda p: _archive(p, {"X.npy": b"garbage"}),
    "another file": lambda p: _archive(p, {"X.txt": b"1"}),
    "shape that lies": lambda p: _archive(p, {"X.npy": _npy("(5, 2, 3)")}),
    "huge shape": lambda p: _archive(p, {"X.npy": _npy(f"({2**40}, 2, 3)")}),
    "shape beyond 64 bits": lambda p: _archive(p, {"X.npy": _npy(f"({2**70}, 2, 3)")}),
    "negative shape": lambda p: _archive(p, {"X.npy": _npy("(-5, 2, 3)")}),
    "shape of text": lambda p: _archive(p, {"X.npy": _npy("('5',)")}),
    "code for a shape": lambda p: _archive(p, {"X.npy": _npy("__import__('os').system('true')")}),
    "deep shape": lambda p: _archive(p, {"X.npy": _npy("(" * 5000 + ")" * 5000)}),
    "a header without end": lambda p: _archive(p, {"X.npy": _npy("(1L,), '")}),
    "brackets that stay open": lambda p: _archive(p, {"X.npy": _npy("((((1L")}),
    "a compression that is none": lambda p: p.write_bytes(
        _archive(p, {"X.npy": _npy("(1,)")}, zipfile.ZIP_LZMA).read_bytes().replace(b"]\0", b"\xff\xff")
    ),
    "unknown type": lambda p: _archive(p, {"X.npy": _npy("(1,)", "<q9")}),
    "object type": lambda p: _archive(p, {"X.npy": _npy("(1,)", "|O")}),
    "cut archive": lambda p: p.write_bytes(_saved(X=X)[:-40]),
    "two of one name": lambda p: p.write_bytes(_saved(X=X)[:-22]),
    "a folder": lambda p: p.mkdir(),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_DATA)
@pytest.mark.parametrize("command", ["calibrate", "run"])
def test_bad_data(what: str, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = _write(CASE.model(), tmp_path / "in.onnx")
    data, target = tmp_path / "data.npz", tmp_path / "out"
    BAD_DATA[what](data)
    flag = "--data" if command == "calibrate" else "-i"
    _refused(in_process(capfd, command, path, flag, data, "-o", target), "data", "X")
    assert not target.exists()


def test_an_archive_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Zeros take a thousandth: what unpacks to more than the memory is refused before."""
    from rnnqc.data import npz

    monkeypatch.setattr(npz, "physical_memory", lambda: 1_000_000)
    data = _archive(tmp_path / "data.npz", {"X.npy": _npy("(500000,)", content=bytes(2_000_000))}, zipfile.ZIP_DEFLATED)
    assert data.stat().st_size < 10_000
    path = _write(CASE.model(), tmp_path / "in.onnx")
    _refused(in_process(capfd, "run", path, "-i", data, "-o", tmp_path / "out.npz"), "memory")


# ---- what is written ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the commands of WRITERS read."""
    folder = tmp_path_factory.mktemp("home")
    path = _write(CASE.model(), folder / "in.onnx")
    rnnqc.lower(path).save(folder / "lowered.onnx")
    save_arrays(folder / "data.npz", CASE.feeds())
    add = helper.make_node("Add", ["x", "h"], ["h_new"])
    cell = of_nodes([add], {"x": ["B", 3], "h": ["B", 3]}, {"h_new": ["B", 3]})
    _write(cell, folder / "cell.onnx")
    return folder


# Arguments in the folder above, {out} for what is written; two commands want names that say what it is.
SUFFIXES = {"tune": ".toml", "report": ".html"}
WRITERS = {
    "lower": ["lower", "in.onnx", "-o", "{out}", "-q"],
    "lower --json": ["lower", "in.onnx", "-o", "model.onnx", "--json", "{out}", "-q"],
    "calibrate": ["calibrate", "in.onnx", "--data", "data.npz", "-o", "{out}"],
    "run": ["run", "in.onnx", "-i", "data.npz", "-o", "{out}"],
    "layer": ["layer", "cell.onnx", "-o", "{out}"],
    "tune": ["tune", "in.onnx", "--data", "data.npz", "-o", "{out}", "--min-sqnr", "5"],
    "report": ["report", "in.onnx", "lowered.onnx", "--data", "data.npz", "-o", "{out}", "--models", "1"],
    "dump": ["dump", "lowered.onnx", "-i", "data.npz", "-o", "{out}"],
}
FILES = tuple(w for w in WRITERS if w != "dump")
MEASURING = ("report", "tune")
"""They lower many times before they write, in the one way of all commands; a full disk is tried with each of them."""
EVERY_WRITER = [pytest.param(w, marks=[pytest.mark.slow] if w in MEASURING else []) for w in WRITERS]


def _arguments(writer: str, out: str) -> list[str]:
    return [text.format(out=out + SUFFIXES.get(writer, "")) for text in WRITERS[writer]]


def _listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_disk_full_leaves_nothing(writer: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 200 bytes on the size of files: every command fails half way through."""
    shutil.copytree(home, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    before = _listing(tmp_path / "work")
    result = in_subprocess(*_arguments(writer, "target"), file_size=200)
    _refused(result, "written", "File too large")
    assert _listing(tmp_path / "work") == before


# Sends the process a signal when the temporary file is about to become the target.
INTERRUPTED = """
import os, signal, sys
import rnnqc.cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let jobs in the background ignore it
number, arguments = int(sys.argv[1]), sys.argv[2:]
for module, name in ((os, "replace"), (os, "rename")):
    def stop(*given, held=getattr(module, name), **named):
        os.kill(os.getpid(), number)
        return held(*given, **named)
    setattr(module, name, stop)
sys.exit(rnnqc.cli.main(arguments))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("writer", EVERY_WRITER)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_leave_nothing(
    number: signal.Signals, writer: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "work" / f"old{SUFFIXES.get(writer, '')}").write_bytes(b"earlier")
    before = _listing(tmp_path / "work")
    target = "target" if writer == "dump" else "old"
    done = in_subprocess(str(int(number)), *_arguments(writer, target), program=INTERRUPTED)
    assert done.code == 128 + number, done.err
    assert "Traceback" not in done.err
    assert _listing(tmp_path / "work") == before


@pytest.mark.slow
@pytest.mark.parametrize("writer", EVERY_WRITER)
def test_killed_while_writing(
    writer: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGKILL when all is written but the rename: an earlier file is whole, and nothing bears the name without one.

    The temporary file cannot be removed then; the next run does not mind it.
    """
    shutil.copytree(home, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    suffix = SUFFIXES.get(writer, "")
    if writer != "dump":
        Path(f"old{suffix}").write_bytes(b"earlier")
    before = _listing(tmp_path / "work")
    for target in ("new",) if writer == "dump" else ("new", "old"):
        done = in_subprocess(str(int(signal.SIGKILL)), *_arguments(writer, target), program=INTERRUPTED)
        assert done.code == -signal.SIGKILL, done.err
        left = {k: v for k, v in _listing(tmp_path / "work").items() if not k.startswith((".", "new/"))}
        assert left == before, target
        assert not Path(f"{target}{suffix}").exists() or target == "old"
    assert in_process(capfd, *_arguments(writer, "new")).code == 0
    assert Path(f"new{suffix}").exists()


@pytest.mark.parametrize("writer", [w for w in FILES if w not in SUFFIXES])
def test_outputs_that_are_inputs(
    writer: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Named directly, or through a link."""
    shutil.copytree(home, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    read = WRITERS[writer][1]
    Path("linked").symlink_to(read)
    before = _listing(tmp_path / "work")
    for name in (read, "linked"):
        _refused(in_process(capfd, *_arguments(writer, name)), "input", "is the model")
        assert _listing(tmp_path / "work") == before


@pytest.mark.parametrize("writer", [w for w in EVERY_WRITER if w.values != ("dump",)])
def test_outputs_in_strange_places(
    writer: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    suffix = SUFFIXES.get(writer, "")
    Path(f"folder{suffix}").mkdir()
    Path("real").mkdir()
    Path("linked").symlink_to("real", target_is_directory=True)
    Path(f"dangling{suffix}").symlink_to("real/made")
    Path(f"circle{suffix}").symlink_to(f"circle{suffix}")
    before = _listing(tmp_path / "work")
    for name in ("folder", "absent/out", "in.onnx/out", "o" * 300, "circle", *(["-"] if not suffix else [])):
        _refused(in_process(capfd, *_arguments(writer, name)))
        assert _listing(tmp_path / "work") == before, name
    assert in_process(capfd, *_arguments(writer, "linked/out")).code == 0
    assert Path(f"real/out{suffix}").is_file()
    assert in_process(capfd, *_arguments(writer, "dangling")).code == 0
    assert Path(f"dangling{suffix}").is_symlink() and Path("real/made").is_file()


@pytest.mark.few(1)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to mount")
@pytest.mark.parametrize("writer", EVERY_WRITER)
def test_a_full_file_system(writer: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of 4 kB that is left holds a part of everything but the smallest files."""
    monkeypatch.chdir(home)
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", small], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("cannot mount")
    try:
        (small / "full").write_bytes(bytes(8192))
        arguments = [str(small / w.removeprefix("@")) if w.startswith("@") else w for w in _arguments(writer, "@out")]
        _refused(in_subprocess(*arguments), "No space left")
        assert [p.name for p in small.iterdir()] == ["full"]
    finally:
        subprocess.run(["umount", small], check=True)
