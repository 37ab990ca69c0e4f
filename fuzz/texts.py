"""Mutations of files that are no models: words of TOML and JSON, members and headers of archives of arrays."""

from __future__ import annotations

import contextlib
import io
import random
import re
import zipfile
from collections.abc import Callable

import numpy as np

from rnnqc.recipes.keys import KEYS, POINT_KEYS

_WORD = re.compile(r"[A-Za-z_][\w-]*|-?\d[\d.eE+-]*|\s+|.", re.DOTALL)
_VALUES = (
    "0", "1", "-1", "2", "4", "7", "8", "16", "32", "33", "1e300", "-1e300", "1e-300", "0.5", "nan", "inf", "null",
    "true", "false", '"none"', '""', "[]", "{}", "[[1]]", "12345678901234567890", "1e-45", "3.4e38", '"*"',
    '"re:.*"', '"re:("', '"half_up"', '"static"', '"bounded"', '"product"', '"activation"', '"per-gate"', '"hidden"',
    '"cell_state"', '"input_product"', '"pow2-mse"', '"percentile"', '"gauss"', '"mse"', '"entropy"', '"exact"',
    '"vitis"', '"{cell}"', '"{nope}"', '"{cell.x}"', '"int8"', '"dynamic-row"', '"half-range"', '"float16"',
)  # fmt: skip
_NAMES = (*KEYS, *POINT_KEYS, "rule", "points", "name", "summary", "base", "kind", "forward", "reverse", "gate")
_DTYPES = ("<f4", "<f8", "<f2", ">f4", "<i4", "<i8", "|b1", "|O", "<U3", "|V4", "<c8", "<M8[s]", "|S2", "<f4,<i4")


def mutate_text(data: bytes, rng: random.Random) -> bytes:
    """Words changed, removed, doubled, exchanged; values and names in the place of others."""
    words = _WORD.findall(data.decode("utf-8", "replace")) or [""]
    for _ in range(rng.choice((1, 1, 2, 4))):
        place = rng.randrange(len(words))
        action = rng.randrange(7)
        if action == 0:
            words[place] = rng.choice(_VALUES)
        elif action == 1:
            words[place] = rng.choice(_NAMES)
        elif action == 2:
            end = min(len(words), place + rng.randrange(1, 30))
            words[place:place] = words[place:end]
        elif action == 3:
            del words[place : place + rng.randrange(1, 10)]
            words = words or [""]
        elif action == 4:
            other = rng.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif action == 5:
            _replace_value(words, place, rng)
        else:
            words.insert(
                place, rng.choice((rng.choice(_NAMES), rng.choice(_VALUES), "=", ":", ",", "\n", "]", "}", "."))
            )
    return "".join(words).encode()


def _replace_value(words: list[str], place: int, rng: random.Random) -> None:
    """Another value behind the next sign that a value follows."""
    for k in range(place, len(words)):
        if words[k] in ("=", ":"):
            while k + 1 < len(words) and not words[k + 1].strip():
                k += 1
            words[k + 1 : k + 2] = [rng.choice(_VALUES)]
            return


def mutate_archive(data: bytes, rng: random.Random, change_bytes: Callable[[bytes], bytes]) -> bytes:
    """Arrays renamed, reshaped, of other types, with other values, lost, doubled; headers that lie; bytes changed."""
    with contextlib.suppress(Exception):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        name = rng.choice(sorted(members))
        action = rng.randrange(6)
        if action == 0:
            members[rng.choice(("X.npy", "Y.npy", ".npy", "X", "../X.npy", "initial_h.npy"))] = members.pop(name)
        elif action == 1:
            del members[name]
        elif action == 2:
            members[name] = change_bytes(members[name])
        elif action == 3:
            members[name] = _header(members[name], rng)
        else:
            members[name] = _array(members[name], rng)
        buffer = io.BytesIO()
        method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for key, value in members.items():
                archive.writestr(key, value)
                if action == 1 and rng.random() < 0.3:
                    archive.writestr(key, value)
        return buffer.getvalue()
    return change_bytes(data)


def _array(member: bytes, rng: random.Random) -> bytes:
    array = np.lib.format.read_array(io.BytesIO(member), allow_pickle=False)
    action = rng.randrange(5)
    if action == 0:
        array = array.astype(rng.choice(("f4", "f8", "f2", "i4", "i8", "?", "U3", "c8")))
    elif action == 1:
        array = array[None]
    elif action == 2:
        shape = [max(0, n + rng.choice((-n, -1, 0, 1, 2, 100))) for n in array.shape]
        array = np.resize(array, shape)
    elif action == 3 and array.size and array.dtype.kind == "f":
        array = array.copy()
        array.flat[rng.randrange(array.size)] = rng.choice((np.nan, np.inf, -np.inf, 3e38, 1e-45, -0.0, 1e6))
    elif array.size and array.dtype.kind == "i":
        array = array.copy()
        array.flat[rng.randrange(array.size)] = rng.choice((-1, 0, 1, 5, 2**31 - 1))
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _header(member: bytes, rng: random.Random) -> bytes:
    """A header of another type or shape before the same data."""
    array = np.lib.format.read_array(io.BytesIO(member), allow_pickle=False)
    shape = rng.choice((array.shape, (), (0,), (2**40,), (2**31, 2**31, 2**31), (-1,), (1,) * 40, (10**30,)))
    text = repr({"descr": rng.choice(_DTYPES), "fortran_order": rng.random() < 0.3, "shape": shape})
    if rng.random() < 0.2:
        text = rng.choice(("{", "[" * 5000, "__import__('os')", "{'descr': '<f4'}", "()"))
    encoded = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(encoded).to_bytes(2, "little") + encoded + array.tobytes()
