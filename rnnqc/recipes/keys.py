"""Keys of rules: their values, and the quantization points that understand them."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rnnqc.counterparts import FORMATS, counterpart
from rnnqc.errors import CompileError, UsageError
from rnnqc.formats.codebooks import UNEVEN
from rnnqc.formats.packing import GROUP_UNIT
from rnnqc.formats.rounding import RECIPE_ROUNDINGS, Rounding
from rnnqc.formats.weight_scales import WEIGHT_RULES
from rnnqc.recipes import ranges

if sys.version_info >= (3, 11):
    pass
else:
    pass

Settings = dict[str, Any]
RULES = tuple(dict.fromkeys((*ranges.RULES, *WEIGHT_RULES)))


@dataclass(frozen=True)
class Key:
    """A key of a rule.

    Attributes:
        accepts: The accepted values, for messages.
        meaning: One line for `rnnqc recipes --points`.
        parse: Returns the value to keep; raises ValueError if it is not accepted.
    """

    accepts: str
    meaning: str
    parse: Callable[[Any], Any]


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _whole(low: int, high: int, multiple: int = 1) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high or value % multiple:
            raise ValueError(value)
        return value

    return parse


def _number(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ValueError(value)
        return float(value)

    return parse


def _one_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(value)
        return str(value)

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


ACCUMULATOR = "accumulator"
SHARE_NAMES = ("cell", "layer", "gate", "point")
"""The only names that `share` may have in braces: other format strings could request any amount of memory."""


def _group_name(value: Any) -> str:
    text = _text(value)
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is not None and (name not in SHARE_NAMES or spec or conversion):
            raise ValueError(value)
    return text


def _or_none(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value in (None, "none") else parse(value)


def _or_list(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: [parse(v) for v in value] if isinstance(value, list) and value else parse(value)


_ROUNDINGS = tuple(r.value for r in RECIPE_ROUNDINGS)
KEYS: dict[str, Key] = {
    "bits": Key("1 to 32, or none", "of a quantized value; none leaves the point in float", _or_none(_whole(1, 32))),
    "signed": Key("true or false", "two's complement integers", _boolean),
    "narrow": Key("true or false", "leave out the lowest integer", _boolean),
    "symmetric": Key("true or false", "a range around zero, or one that follows the values", _boolean),
    "granularity": Key(
        "per-channel, per-gate or per-tensor",
        "scales of weights",
        _one_of("per-channel", "per-gate", "per-tensor"),
    ),
    "group_size": Key(
        f"a multiple of {GROUP_UNIT}, or none",
        "weights of up to 4 bits: inputs whose weights share a multiplier 1 to 18 per channel",
        _or_none(_whole(GROUP_UNIT, 2**30, GROUP_UNIT)),
    ),
    "codebook": Key(
        f"{UNEVEN}, or none",
        "4-bit weights in groups: each group takes one of five sets of sixteen whole numbers; none: all the even one",
        _or_none(_one_of(UNEVEN)),
    ),
    "wide_channels": Key(
        "a number from 0 to 1",
        "weights of up to 7 bits, or of up to 6 in groups: share of output channels that keep 8, where fewer hurt most",
        _number(0.0, 1.0),
    ),
    "mode": Key(
        "dynamic-row, static, bounded, activation or product",
        "where the scale comes from",
        _one_of("dynamic-row", "static", "bounded", "activation", "product"),
    ),
    "scale": Key(
        "a number from 2**-100 to 2**100, or a list of them",
        "real value of one quantization step; of weights and biases one for each channel, too",
        _or_list(_number(2.0**-100, 2.0**100)),
    ),
    "zero_point": Key(
        "an integer, or a list of them",
        "quantized value of the real 0; of weights one for each channel, too",
        _or_list(_whole(-(2**31), 2**31 - 1)),
    ),
    "rounding": Key(", ".join(_ROUNDINGS), "how reals become integers", _one_of(*_ROUNDINGS)),
    "table": Key(
        "piecewise-linear, exact or vitis",
        "how an activation is tabulated; vitis: sigmoid and tanh, which have 15 bits behind the point then",
        _one_of("piecewise-linear", "exact", "vitis"),
    ),
    "equalize": Key(
        "true or false",
        "with statistics: scale the channels of an input by powers of two where they differ much; W takes the inverse",
        _boolean,
    ),
    "chain": Key("true or false", "take the quantized hidden states of the layer before as they are", _boolean),
    "range": Key(", ".join(RULES), "how a range follows from statistics, or from the weights", _one_of(*RULES)),
    "percentile": Key("a number from 50 to 100", "of the range rule percentile", _number(50, 100)),
    "n_std": Key("a positive number", "standard deviations of the range rule n-std", _number(2.0**-20, 2.0**20)),
    "half_range": Key("true or false", "of the range rules gauss and laplace: one side only, as after Relu", _boolean),
    "limit": Key("a positive number, or none", "clips the range to +-limit", _or_none(_number(2.0**-100, 2.0**100))),
    "levels": Key(
        "max-code, half-range or min-code",
        "what the end of a symmetric range maps to: 127, 127.5 or 128 with 8 bits",
        _one_of("max-code", "half-range", "min-code"),
    ),
    "pow2": Key("true or false", "round the scale up to a power of two", _boolean),
    "max_fix_position": Key(
        "a whole number, or none", "of power-of-two scales: at least 2**-max_fix_position", _or_none(_whole(-64, 64))
    ),
    "scale_bits": Key("2 to 24, or none", "scale = A / 2**n, with A of so many bits", _or_none(_whole(2, 24))),
    "share": Key(
        "a text with {cell}, {layer}, {gate}, {point}, or none",
        "points of one text have one scale; {cell}, {layer}, {gate} and {point} stand for their names",
        _or_none(_group_name),
    ),
    "same_as": Key("a point of the same cell, or none", "takes the format of that point", _or_none(_text)),
    "compensation": Key("true or false", "round weights so that errors cancel on the calibration data", _boolean),
    "bias_correction": Key("true or false", "undo the mean error that rounded weights make", _boolean),
    "shift_limits": Key(
        "true or false",
        "power-of-two weights: lower fix positions until hardware can shift between product, bias and result",
        _boolean,
    ),
    "rounded_output": Key("true or false", "output the quantized hidden state, not the unrounded one", _boolean),
    "store": Key("integer or float16", "how weight-only recipes store weights", _one_of("integer", "float16")),
}
_STATIC = ("bits", "signed", "narrow", "symmetric", "mode", "scale", "zero_point", "rounding")
RANGE_KEYS = ("range", "percentile", "n_std", "half_range", "limit", "levels", "pow2", "max_fix_position", "scale_bits")
_SHARING = ("share", "same_as")
KEYS_OF_RULES = {
    "percentile": ("percentile",),
    "n_std": ("n-std",),
    "half_range": ("gauss", "laplace"),
}
"""Keys that only some rules of `range` use."""
FORMAT_KEYS = ("bits", "signed", "narrow", "symmetric", "mode", "scale", "zero_point", *RANGE_KEYS, "share")
"""Keys that a point takes from the point that it follows (`same_as`), or does not use."""
# The keys of each kind of quantization point, by the last part of its name.
POINT_KEYS: dict[str, tuple[str, ...]] = {
    "weight": (
        "bits", "signed", "narrow", "symmetric", "granularity", "group_size", "codebook", "wide_channels", "scale",
        "zero_point", "rounding", "range", "percentile", "limit", "levels", "pow2", "max_fix_position", "scale_bits",
        "share", "compensation", "bias_correction", "shift_limits", "store",
    ),
    "bias": ("bits", "mode", "scale", "rounding", *RANGE_KEYS, "same_as"),
    "input": (*_STATIC, "chain", "equalize", *RANGE_KEYS, *_SHARING),
    "hidden": (*_STATIC, *RANGE_KEYS, *_SHARING, "rounded_output"),
    "accumulator": ("bits",),
    "input_product": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "hidden_product": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "reset_product": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "acc": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "activation": (*_STATIC, "table", *RANGE_KEYS, *_SHARING),
    "kept": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "added": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "cell_state": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "hidden_state": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "value": (*_STATIC, *RANGE_KEYS, *_SHARING),
}  # fmt: skip


NAMED_ACTIVATIONS = (".sigmoid.value", ".tanh.value")
"""Suffixes of points in custom cells whose values come from an activation with a table."""


def keys_of(point: str) -> tuple[str, ...]:
    """Returns the keys that the quantization point `point` (a name or path) understands."""
    keys = POINT_KEYS[point.rpartition(".")[2]]
    return (*keys, "table") if point.endswith(NAMED_ACTIVATIONS) else keys


def checked(key: str, value: Any, where: str) -> Any:
    """Checks the value of a key and converts it to the form that a rule keeps.

    Raises:
        UsageError: The key is unknown, or does not accept the value; the message names the place.
    """
    if key not in KEYS:
        raise UsageError(
            f"{where}: unknown key {key!r}.", supported=", ".join(sorted(KEYS)), action=counterpart(key, FORMATS)
        )
    try:
        return KEYS[key].parse(value)
    except (ValueError, TypeError) as error:
        wrong, which = _first_wrong(key, value)
        raise UsageError(
            f"{where}: {key}{which} = {wrong!r}.", supported=KEYS[key].accepts, action=counterpart(str(wrong), FORMATS)
        ) from error


def _first_wrong(key: str, value: Any) -> tuple[Any, str]:
    """Returns the value that a key does not accept: the whole, or the first such element of a list with its index."""
    if isinstance(value, list) and value:
        index = next(k for k in range(len(value)) if not accepts(key, value[: k + 1]))
        return value[index], f"[{index}]"
    return value, ""


def accepts(key: str, value: Any) -> bool:
    """Returns whether a key accepts a value."""
    try:
        KEYS[key].parse(value)
    except (ValueError, TypeError):
        return False
    return True


def rounding_of(settings: Mapping[str, Any]) -> Rounding:
    """Returns the rounding in a point's settings; half to even by default."""
    return Rounding(settings.get("rounding", Rounding.HALF_EVEN.value))


def require(settings: Mapping[str, Any], key: str, point: str) -> Any:
    """Returns the value of `key`.

    Raises:
        CompileError: The recipe does not set it.
    """
    if key not in settings:
        raise CompileError(f"The recipe does not say {key!r} of {point!r}.", action=f"add --set '{point}.{key}=...'")
    return settings[key]
