"""Commands as targets of the fuzzer: one file of theirs is the input, the others are valid."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import rnnqc
from rnnqc.cli import main
from rnnqc.data.generated_feeds import generate_feeds
from rnnqc.data.npz import npz_bytes
from rnnqc.errors import InternalError, RnnqcError
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.validation import check_model
from tests.generate.layers import RecurrentCase

# What onnxruntime does with a model in time and memory is its affair (docs/hostile_input.md): models with numbers
# beyond this are not run.
LARGEST_NUMBER = 4096
CASE = RecurrentCase(T=3, B=2, I=2, H=3, lens=(3, 1), initial_h=True)
CALIBRATION = [CASE.replace(seed=k).feeds(padding=0.0) for k in range(2)]


@dataclass(frozen=True)
class Home:
    """A folder with a valid file of every kind.

    Attributes:
        folder: Where.
    """

    folder: Path

    def __post_init__(self) -> None:
        model = CASE.model()
        onnx.save(model, self.folder / "float.onnx")
        (self.folder / "data.npz").write_bytes(npz_bytes(CALIBRATION[0]))
        rnnqc.lower(model).save(self.folder / "fused.onnx")
        rnnqc.calibrate(model, CALIBRATION).save(self.folder / "stats.json")
        (self.folder / "weights.bin").write_bytes(np.linspace(-1, 1, 256, dtype=np.float32).tobytes())


@dataclass(frozen=True)
class Command:
    """Arguments of the command line.

    Attributes:
        kind: Of the input: "model", "toml", "json", "npz", or "text": a value of --set on each line.
        arguments: The command: {input} is the fuzzed file, other files are those of `Home`, output goes to {out}.
        runs: Whether it runs the input in onnxruntime.
        feeds: Whether data.npz is made to fit the input.
    """

    kind: str
    arguments: str
    runs: bool = False
    feeds: bool = False

    def run(self, home: Home, data: bytes) -> bool:
        """Runs it with an input; whether it was taken.

        Raises:
            Exception: Anything but a refusal with a message and without output is a defect.
        """
        given, out = home.folder / f"input.{self.kind}", home.folder / "out"
        given.write_bytes(data)
        files = {"input": given, "out": out, "data": home.folder / "data.npz"}
        if self.runs or self.feeds:
            proto = _small(data)
            if proto is None:
                return False
            if self.feeds:
                try:
                    check_model(proto, "fuzzed")
                    files["data"] = home.folder / "fitting.npz"
                    files["data"].write_bytes(npz_bytes(generate_feeds(proto)))
                except RnnqcError:
                    return False
        arguments = [
            str(home.folder / word) if (home.folder / word).is_file() else word.format(**files)
            for word in self.arguments.split()
        ]
        if self.kind == "text":
            arguments += [f"--set={line}" for line in data.decode("utf-8", "replace").splitlines()]
        try:
            return _called(arguments, out)
        finally:
            for path in home.folder.glob("out*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _called(arguments: list[str], out: Path) -> bool:
    said, remarks = io.StringIO(), io.StringIO()
    os.environ["RNNQC_TRACEBACK"] = "1"
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(remarks):
        code = main(arguments)
    text = remarks.getvalue()
    if code not in (0, 1, 2, 3) or "Traceback" in text or "a check failed:" in text:
        raise InternalError(f"exit code {code} of {arguments}: {text}")
    if code == 2 and (not text.strip() or list(out.parent.glob(f"{out.name}*"))):
        raise InternalError(f"exit code 2 of {arguments} with output or without message: {text}")
    return code != 2


def _small(data: bytes) -> onnx.ModelProto | None:
    """The model, if it has no large numbers."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        tensors = [t for g in blocks_of([proto.graph]) for t in getattr(g, "initializer", ())]
        for block in blocks_of([proto.graph, *proto.functions]):
            for node in block.node:
                for attr in node.attribute:
                    tensors += [attr.t] if attr.HasField("t") else []
                    if any(abs(v) > LARGEST_NUMBER for v in (*attr.ints, attr.i)):
                        return None
        for tensor in tensors:
            integers = tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
            if integers and any(abs(int(v)) > LARGEST_NUMBER for v in onnx.numpy_helper.to_array(tensor).flat):
                return None
        for value in proto.graph.input:
            if np.prod([max(1, d.dim_value) for d in value.type.tensor_type.shape.dim], dtype=float) > 2**20:
                return None
    except Exception:  # numbers that cannot be read are no small ones
        return None
    return proto


COMMANDS = (
    Command("model", "inspect {input} --json"),
    Command("model", "layer {input} -o {out}"),
    Command("model", "layer {input} -o {out} --lengths --initial-states --reverse"),
    Command("model", "calibrate {input} --data {data} -o {out}", runs=True, feeds=True),
    Command("model", "run {input} -i {data} -o {out}", runs=True, feeds=True),
    Command("model", "dump {input} -i {data} -o {out}", runs=True, feeds=True),
    Command("model", "verify float.onnx {input} --json", runs=True),
    Command("model", "verify {input} {input}", runs=True),
    Command("toml", "lower float.onnx --recipe {input} --stats stats.json -o {out}"),
    Command("json", "lower float.onnx --recipe pow2-int8 --stats {input} -o {out}"),
    Command("json", "lower float.onnx --recipe distiller-asym --stats {input} -o {out}"),
    Command("npz", "calibrate float.onnx --data {input} -o {out}"),
    Command("npz", "run float.onnx -i {input} -o {out}"),
    Command("text", "lower float.onnx -o {out}"),
    Command("model", "dump {input} -i {data} -o {out} --text --row 0 --steps 0:2 --stock", runs=True, feeds=True),
    Command("model", "lower {input} -o {out} --verify --dim T=3 --dim B=2", runs=True),
    Command("model", "report float.onnx {input} -o {out}.html", runs=True),
)
