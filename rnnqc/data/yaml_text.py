"""Reads the subset of YAML that JSON can hold: what YAML tools make of a JSON file when they rewrite it."""

from __future__ import annotations

import re
from typing import Any

from rnnqc.errors import UsageError

INSTALL = "pip install pyyaml"
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_REAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+][0-9]+")
"""A number in YAML 1.2. After plain digits an exponent needs a sign: `12e5` may be a hexadecimal identifier."""
_WORDS = {"true": True, "false": False, "null": None}


def read_yaml(text: str) -> Any:
    """Parses YAML to objects, arrays, texts, numbers and truth values. Keys are texts.

    Unlike in YAML 1.1, a plain `1e-05` is a number, and nothing is a date.

    Raises:
        ValueError: It is not YAML, has a key twice, or uses what JSON lacks: an anchor, a tag, several documents.
        UsageError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise UsageError("PyYAML is not installed.", supported="YAML with PyYAML", action=INSTALL) from error
    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    return None if node is None else _value(node, set())


def _value(node: Any, seen: set[int]) -> Any:
    """Returns the value of a node.

    Args:
        node: The node.
        seen: The identities of earlier nodes: an alias repeats a node.
    """
    where = f"line {node.start_mark.line + 1}"
    if id(node) in seen:
        raise ValueError(f"an alias, {where}")
    seen.add(id(node))
    if node.id == "sequence":
        return [_value(item, seen) for item in node.value]
    if node.id == "mapping":
        made: dict[str, Any] = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise ValueError(f"a key that is no text, {where}")
            if key.value in made:
                raise ValueError(f"key {key.value!r} stands there twice")
            made[key.value] = _value(value, seen)
        return made
    text: str = node.value
    if node.style:  # quoted
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) else _WORDS.get(text, text)
