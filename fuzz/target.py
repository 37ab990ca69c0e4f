"""What is fuzzed: any bytes as a model, lowered in one of several ways, or as an input of another command.

Only rnnqc's own refusals may come of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from command_targets import COMMANDS, Home

import rnnqc
from rnnqc.errors import InternalError


@dataclass(frozen=True)
class Way:
    """Arguments of `rnnqc.lower`."""

    arguments: dict[str, Any] = field(default_factory=dict)


# The first byte of an input chooses one. One recipe of each kind, every form, unrolled and not, bound and not.
WAYS = (
    Way(),
    Way({"form": "qcdq"}),
    Way({"form": "integer"}),
    Way({"form": "integer", "unroll": True}),
    Way({"unroll": True, "dims": {"T": 3}}),
    Way({"recipe": "int16"}),
    Way({"recipe": "w4a8", "form": "integer"}),
    Way({"recipe": "weight-only-int8"}),
    Way({"recipe": "weight-only-int4"}),
    Way({"recipe": "fp16"}),
    Way({"form": "qonnx"}),
    Way({"recipe": "brevitas-int8", "overrides": ("*.scale=0.0078125",)}),
    Way({"form": "qcdq", "overrides": ("*.bits=none",)}),
    Way({"strict": True}),
)
CHOICES = len(WAYS) + len(COMMANDS)
"""How many values of the first byte mean different things; the last `len(COMMANDS)` are commands."""


def kind_of(data: bytes) -> str:
    """What the rest of an input is: "model", or the kind of a command's file."""
    choice = data[0] % CHOICES if data else 0
    return "model" if choice < len(WAYS) else COMMANDS[choice - len(WAYS)].kind


class Target:
    """Calls `rnnqc.lower` and commands with inputs, each written to a file in a folder of its own.

    Args:
        defects: Folder for the first input of each defect, one for each place of the compiler where it shows; without
            it the first defect ends the run.
    """

    def __init__(self, defects: Path | None = None) -> None:
        self.home = Home(_own_folder())
        self.defects = defects
        self.lowered = self.refused = 0
        self.seen: dict[str, int] = {}

    def __call__(self, data: bytes) -> None:
        """Lowers an input, and keeps it if that shows a defect."""
        if self.defects is None:
            self.lower(data)
            return
        try:
            self.lower(data)
        except Exception as error:
            name = _place(error)
            self.seen[name] = self.seen.get(name, 0) + 1
            if self.seen[name] == 1:
                self.defects.mkdir(parents=True, exist_ok=True)
                (self.defects / f"{name}.bin").write_bytes(data)
                (self.defects / f"{name}.txt").write_text(traceback.format_exc(), errors="backslashreplace")

    def lower(self, data: bytes) -> None:
        """Lowers `data[1:]` in the way that the first byte chooses, or gives it to the command that it chooses.

        Raises:
            Exception: Anything but a refusal with a message is a defect.
        """
        if not data:
            return
        choice = data[0] % CHOICES
        if choice >= len(WAYS):
            done = COMMANDS[choice - len(WAYS)].run(self.home, data[1:])
            self.lowered += done
            self.refused += not done
            return
        path = self.home.folder / "model.onnx"
        path.write_bytes(data[1:])
        try:
            lowered = rnnqc.lower(path, **WAYS[choice].arguments)
            again = onnx.ModelProto()
            again.ParseFromString(lowered.proto.SerializeToString())
            rnnqc.Model.load(again)
            self.lowered += 1
        except InternalError:
            raise
        except rnnqc.RnnqcError as error:
            if not str(error).strip():
                raise
            self.refused += 1


_PREFIX, _LOCK = "rnnqc_fuzz.", "lock"


def _own_folder() -> Path:
    """A new folder, locked as long as this process lives; those of processes that were ended are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), left.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError where its process lives
            shutil.rmtree(left.parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_WRONLY)  # open to the end
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder


def _place(error: Exception) -> str:
    """Names a defect: the error, and the last line of the compiler that was running."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "rnnqc" in f.filename or "passes" in f.filename]
    frame = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return re.sub(
        r"[^0-9A-Za-z_.-]", "_", f"{type(error).__name__}-{Path(frame.filename).stem}-{frame.name}-{frame.lineno}"
    )
