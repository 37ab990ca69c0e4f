"""JSON that people edit: written one entry a line in a fixed order, also read from YAML, with every entry checked."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rnnqc.data.yaml_text import read_yaml
from rnnqc.errors import UsageError

YAML = (".yaml", ".yml")


def json_text(data: Mapping[str, Any]) -> str:
    """Formats objects over several lines with sorted keys, arrays and scalars on one line.

    YAML readers get the same values: YAML reads 1e-05 as text, so it is written 1.0e-05.
    """
    return _laid_out(data, "") + "\n"


_ENCODED = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
LARGEST_WHOLE = 2**62
_NUMBERS = {int, float}
_SPECIAL = re.compile("[ein]")
"""Matches a list of numbers in Python's notation that has an exponent, an infinity or a NaN."""


def _laid_out(data: Any, indent: str) -> str:
    if type(data) is int:
        return repr(data)
    if type(data) is float and math.isfinite(data):
        text = repr(data)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(data, list | tuple):
        if set(map(type, data)) <= _NUMBERS and not _SPECIAL.search(text := repr(list(data))):
            return text.replace(" ", "")
        return f"[{','.join(_ENCODED(v) if isinstance(v, Mapping) else _laid_out(v, '') for v in data)}]"
    if not isinstance(data, Mapping):
        return _ENCODED(data)
    if not data:
        return "{}"
    inner = indent + "  "
    keys = sorted(data, key=lambda k: (0, int(k), "") if str(k).lstrip("-").isdecimal() else (1, 0, str(k)))
    lines = [f"{inner}{encode_basestring_ascii(str(key))}: {_laid_out(data[key], inner)}" for key in keys]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def floats_text(values: npt.NDArray[np.float64]) -> str:
    """Encodes values as little-endian float32 in base64."""
    return base64.b64encode(np.ascontiguousarray(values, "<f4").tobytes()).decode("ascii")


def read_json(path: Path, kind: str) -> Entry:
    """Reads the object in a JSON file, or in a file with a YAML suffix.

    Args:
        path: The file.
        kind: What the file should be, for messages.

    Raises:
        UsageError: It cannot be read, is not JSON (not YAML), or holds a key twice.
    """
    supported = f"{kind}, as written by rnnqc"
    language = "YAML" if path.suffix.lower() in YAML else "JSON"

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{path}: {message}.", supported=supported, action="write the file again")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                refuse(f"key {key!r} stands there twice")
            result[key] = value
        return result

    try:
        text = path.read_text(encoding="utf-8")
        data = read_yaml(text) if language == "YAML" else json.loads(text, object_pairs_hook=unique)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}.", supported=supported, action="check the path") from error
    except UnicodeDecodeError:
        refuse(f"is not {language} (not UTF-8)")
    except (ValueError, RecursionError) as error:
        refuse(f"is not {language} ({error})")
    return Entry(data, str(path), "")


class Entry:
    """A value in a JSON file, with its location for messages.

    Args:
        data: The value.
        source: The file.
        place: The keys that lead to the value.
    """

    def __init__(self, data: Any, source: str, place: str) -> None:
        self.data = data
        self.source = source
        self.place = place

    def refuse(self, supported: str, found: str | None = None) -> NoReturn:
        """Raises a UsageError that names the file, the entry and the value found."""
        text = found if found is not None else json.dumps(self.data)
        raise UsageError(
            f"{self.source}: {self.place or 'the whole'} is {text if len(text) <= 60 else text[:57] + '...'}.",
            supported=supported,
            action="correct the entry, or write the file again",
        )

    def fields(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Entry]:
        """Returns the entries of an object that has these keys and no others."""
        required, known = list(required), [*required, *optional]
        entries = self.entries()
        for key in required:
            if key not in entries:
                self.refuse(f"objects with {', '.join(known)}", f"without {key!r}")
        for key in entries:
            if key not in known:
                self.refuse(f"the keys {', '.join(known)}", f"an object with the unknown key {key!r}")
        return entries

    def entries(self) -> dict[str, Entry]:
        """Returns the entries of an object."""
        if not isinstance(self.data, dict):
            self.refuse("an object")
        return {k: Entry(v, self.source, f"{self.place}.{k}" if self.place else k) for k, v in self.data.items()}

    def items(self) -> list[Entry]:
        """Returns the elements of an array."""
        if not isinstance(self.data, list):
            self.refuse("an array")
        return [Entry(v, self.source, f"{self.place}[{k}]") for k, v in enumerate(self.data)]

    def number(self, low: float = -math.inf) -> float:
        """Returns a finite number that is at least `low`."""
        try:
            usable = isinstance(self.data, int | float) and not isinstance(self.data, bool)
            value = float(self.data) if usable else math.nan
        except OverflowError:
            value = math.nan
        if not math.isfinite(value) or value < low:
            self.refuse("finite numbers" + (f" from {low:g} on" if low > -math.inf else ""))
        return value

    def whole(self, low: int, high: int = LARGEST_WHOLE) -> int:
        """Returns an integer from `low` to `high`."""
        if not isinstance(self.data, int) or isinstance(self.data, bool) or not low <= self.data <= high:
            self.refuse(f"whole numbers from {low} to {high}")
        return self.data

    def text(self) -> str:
        """Returns a string."""
        if not isinstance(self.data, str):
            self.refuse("a text")
        return self.data

    def truth(self) -> bool:
        """Returns a boolean."""
        if not isinstance(self.data, bool):
            self.refuse("true or false")
        return self.data

    def floats(self) -> npt.NDArray[np.float64]:
        """Returns an array of finite numbers."""
        if isinstance(self.data, list) and set(map(type, self.data)) == {float}:
            values = np.array(self.data, np.float64)
            if np.isfinite(values).all():
                return values
        return np.array([e.number() for e in self.items()], np.float64)

    def counts(self) -> npt.NDArray[np.int64]:
        """Returns an array of non-negative integers."""
        held = self.data
        if isinstance(held, list) and set(map(type, held)) == {int} and 0 <= min(held) <= max(held) <= LARGEST_WHOLE:
            return np.array(held, np.int64)
        return np.array([e.whole(0) for e in self.items()], np.int64)

    def packed_floats(self, count: int) -> npt.NDArray[np.float64]:
        """Returns `count` finite numbers in the encoding of `floats_text`."""
        try:
            values = np.frombuffer(base64.b64decode(self.text(), validate=True), "<f4").astype(np.float64)
        except (binascii.Error, ValueError):
            self.refuse("float32 numbers in base64", "no base64 of float32 numbers")
        if values.size != count or not np.isfinite(values).all():
            self.refuse(f"{count} finite float32 numbers in base64", f"{values.size} numbers, or not all finite")
        return values
