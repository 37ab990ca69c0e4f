"""Translates command line options in messages to Python.

Messages name an option, such as `--calibration DATA`. For a program in Python the same message names the argument,
`calibration=DATA`: `worded` translates whenever a message is shown outside the command line.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence

_FLAG, _TEXT, _PAIR, _LIST = "flag", "text", "pair", "list"
_KINDS = {
    "--unroll": _FLAG, "--strict": _FLAG, "--strict-rest": _FLAG, "--overwrite": _FLAG, "--verify": _FLAG,
    "--remove-sorting": _FLAG, "--dim": _PAIR, "--bind": _PAIR, "--state": _PAIR, "--set": _LIST, "--cells": _LIST,
    "--layers": _LIST, "--time": _FLAG,
}  # fmt: skip
"""The form of arguments that are not plain values."""
_NAMES = {
    "--dim": "dims", "--set": "overrides", "--num-samples": "limit", "--time": "times", "--lengths": "lengths",
    "--no-moments": "moments", "--report": "rnnqc.report",
}  # fmt: skip
"""Arguments whose names differ from their options."""
_SAVED = ("lower", "calibrate", "tune", "report")
"""Commands with `-o FILE`: their functions return an object with a method `save`."""
_FUNCTIONS = (*_SAVED, "bench", "dump", "evaluate", "inspect", "layer", "verify")
_PLACE = r"[A-Z][A-Z0-9:]*(?:\.[a-z]+)?(?!\w|\.\w)"
_FILE = r"[^\s`'\"(),;]+\.(?:onnx|npz|json|html|toml)\b"
_QUOTED = r"'[^'\n]*'"
_WORD = r"(?:float|fused|integer|qcdq|qonnx|ort|weight-only|[a-z][\w-]*\d[\w-]*)(?!\w|[.-]\w)"
_VALUE = (
    rf"(?:{_QUOTED}|{_FILE}|[\w./*\[\]-]+[=:](?:{_QUOTED}|[\w.*\[\],-]*[\w*\]])|-?\d[\d.e-]*(?<![.-])|{_PLACE}|{_WORD})"
)
_OPTION = rf"(?<![\w-])--[a-z]+(?:-[a-z]+)*(?: {_VALUE}(?: (?={_QUOTED}){_VALUE})*)?"
_PART = rf"(?P<option>{_OPTION})|(?P<out>-o {_VALUE})|(?P<plain>{_FILE}|{_PLACE})"
_COMMAND = (
    rf"`?rnnqc (?P<name>{'|'.join(_FUNCTIONS)})\b"
    rf"(?P<rest>(?: (?:{_OPTION}|-o {_VALUE}|{_FILE}|{_PLACE}))*)`?|(?P<options>{_OPTION}(?: {_OPTION})*)"
)
_OTHERS = r"`rnnqc [^`]*`|rnnqc recipes --points"
"""Commands without a Python function, which stay as they are."""

_speaks = False


@contextlib.contextmanager
def command_line() -> Iterator[None]:
    """Makes messages created inside name options."""
    global _speaks
    before, _speaks = _speaks, True
    try:
        yield
    finally:
        _speaks = before


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern at its first use: that takes as long as a session, and most programs show no message."""
    return re.compile(pattern)


def worded(text: str) -> str:
    """Returns a message in the reader's terms: options on the command line, arguments in a program."""
    return text if _speaks or ("rnnqc " not in text and "--" not in text) else in_python(text)


def in_python(text: str) -> str:
    """Replaces commands and options in a message by functions and arguments of Python."""
    made, at = [], 0
    while match := _compiled(_COMMAND).search(text, at):
        kept = next((m for m in _compiled(_OTHERS).finditer(text, at) if m.start() <= match.start() < m.end()), None)
        if kept is not None and not (match["name"] and match.end() == kept.end()):
            made.append(text[at : kept.end()])
            at = kept.end()
            continue
        made += [text[at : match.start()], _call(match) if match["name"] else ", ".join(_arguments(match["options"]))]
        at = match.end()
    joined = "".join([*made, text[at:]])
    return re.sub(r"\b(\w+) \(\1=\)", r"\1", re.sub(r"(?<=\w)=(?=: )", "", joined))


def _call(match: re.Match[str]) -> str:
    """Formats a command as a call: `rnnqc.lower("in.onnx", recipe="w4a8").save("out.onnx")`."""
    name, rest = match["name"], match["rest"]
    tick = "`" if match[0].startswith("`") else ""
    out = next((m["out"] for m in _compiled(_PART).finditer(rest) if m["out"]), "")
    plain = [_written(m["plain"]) for m in _compiled(_PART).finditer(rest) if m["plain"]]
    call = f"rnnqc.{name}" + (f"({', '.join([*plain, *_arguments(rest)])})" if rest else "")
    return f"{tick}{call}{f'.save({_written(out[3:])})' if out and name in _SAVED else ''}{tick}"


def _arguments(text: str) -> list[str]:
    """Returns the arguments for options, in order; repeated options become one argument."""
    given: dict[str, list[str]] = {}
    for match in _compiled(_PART).finditer(text):
        if match["option"]:
            option, _, value = match["option"].partition(" ")
            values = re.findall(_VALUE, value) if _KINDS.get(option) == _LIST else [value] if value else []
            given.setdefault(option, []).extend(values)
    return [_argument(option, values) for option, values in given.items()]


def _argument(option: str, values: Sequence[str]) -> str:
    name, kind = _NAMES.get(option, option[2:].replace("-", "_")), _KINDS.get(option, _TEXT)
    if name.startswith("rnnqc."):
        return name
    if kind == _FLAG or not values:
        return f"{name}=True" if kind == _FLAG else f"{name}="
    if kind == _PAIR:
        return f"{name}={{{', '.join(map(_pair, values))}}}"
    if kind == _LIST:
        return f"{name}=[{', '.join(map(_written, values))}]"
    return f"{name}={_written(values[-1])}"


def _pair(value: str) -> str:
    """Formats `IN:OUT` or `NAME=VALUE` as an item of a dict."""
    bare = value.strip("'")
    key, separator, held = bare.rpartition("=") if "=" in bare else bare.partition(":")
    if not separator:
        return _written(value)
    return f'"{key}": {held if "=" in bare else _quoted(held)}'


def _written(value: str) -> str:
    """Formats a value for Python: numbers and placeholders unchanged, text in quotes."""
    bare = value.strip("'")
    is_plain = bare == value and (
        (re.fullmatch(_PLACE, bare) and "." not in bare) or re.fullmatch(r"-?\d[\d.e-]*", bare)
    )
    return bare if is_plain else _quoted(bare)


def _quoted(text: str) -> str:
    return f'"{text}"'
