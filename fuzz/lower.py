"""Coverage-guided fuzzing of loading and lowering with atheris; see docs/testing.md.

    python fuzz/lower.py CORPUS_FOLDER [options of libFuzzer]

With RNNQC_FUZZ_DEFECTS=FOLDER a defect is written there and the run goes on.
"""

from __future__ import annotations

import importlib
import os
import random
import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["rnnqc"]):
    importlib.import_module("rnnqc")  # all of the compiler

import onnx
from google.protobuf.message import DecodeError
from mutations import mutate
from structure import restructure
from target import CHOICES, Target, kind_of
from texts import mutate_archive, mutate_text

from rnnqc.passes.render import unroll

unroll.LARGEST_MODEL = 20_000  # the limit itself takes a minute
LARGEST = 60_000  # bytes of a model; one with tables has half of them
BYTES_OF_MEMORY = 8 * 2**30


def parsed(data: bytes) -> onnx.ModelProto | None:
    """The model of an input, if it is one."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data[1:])
    except (DecodeError, ValueError, RuntimeError):
        return None
    return proto


def custom_mutator(data: bytes, max_size: int, seed: int) -> bytes:
    """Mostly a changed message, sometimes changed bytes or another way of lowering."""
    rng = random.Random(seed)
    kind = kind_of(data)
    if kind != "model":
        made = data[:1] + _other_file(data[1:], kind, max_size, rng)
        return made if len(made) <= max_size else data
    proto = parsed(data) if rng.random() < 0.95 else None
    if proto is None:
        return atheris.Mutate(data, max_size)
    way = data[:1] if rng.random() < 0.8 else bytes([rng.randrange(CHOICES)])
    if kind_of(way) != "model":
        way = data[:1]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        if rng.random() < 0.6:
            restructure(proto, rng)
        else:
            mutate(proto, rng, lambda held: atheris.Mutate(held, min(max_size, 2 * len(held) + 8)))
    made = way + proto.SerializeToString()
    return made if len(made) <= min(max_size, LARGEST) else data


def _other_file(data: bytes, kind: str, max_size: int, rng: random.Random) -> bytes:
    def change(held: bytes) -> bytes:
        return bytes(atheris.Mutate(held, min(max_size, 2 * len(held) + 8)))

    if rng.random() < 0.1:
        return change(data)
    return mutate_archive(data, rng, change) if kind == "npz" else mutate_text(data, rng)


def custom_crossover(data: bytes, other: bytes, max_size: int, seed: int) -> bytes:
    """A message of the one in the place of one of its kind in the other."""
    rng = random.Random(seed)
    if kind_of(data) != "model" or kind_of(other) != "model":
        return data
    first, second = parsed(data), parsed(other)
    if first is None or second is None:
        return data
    for _ in range(4):
        mutate(first, rng, lambda held: held, second)
    made = data[:1] + first.SerializeToString()
    return made if len(made) <= max_size else data


def main() -> None:
    """Runs until it is stopped or a defect is found."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES_OF_MEMORY, BYTES_OF_MEMORY))
    folder = os.environ.get("RNNQC_FUZZ_DEFECTS")
    target = Target(Path(folder) if folder else None)
    atheris.Setup(sys.argv, target, custom_mutator=custom_mutator, custom_crossover=custom_crossover)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
