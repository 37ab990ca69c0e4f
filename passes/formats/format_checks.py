"""Rejects settings of quantization points that do not result in a number format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnnqc.errors import UsageError
from rnnqc.passes.formats.derived_formats import PRODUCT
from rnnqc.recipes.keys import Settings, keys_of

MODES: Mapping[str, tuple[str, ...]] = {
    "input": ("dynamic-row", "static"),
    "hidden": ("bounded", "dynamic-row", "static"),
    "bias": (PRODUCT, "static"),
    "acc": ("activation", "static"),
    "cell_state": ("bounded", "static"),
}
"""By the last part of a point's name; all others are static."""


def check_mode(point: str, s: Settings) -> None:
    """Raises UsageError for a mode that the point does not support."""
    if "mode" not in keys_of(point) or "mode" not in s:
        return
    known = MODES.get(point.rpartition(".")[2], ("static",))
    if s["mode"] not in known:
        raise UsageError(
            f"mode = {s['mode']}, which this point does not have.",
            supported=f"mode = {' or '.join(known)}",
            action="choose one of these, or leave the mode out",
        )


def check_members(label: str, members: Sequence[tuple[str, str]]) -> None:
    """Raises UsageError if weights, whose scales depend on their values, share them with other points."""
    weights = [m for m in members if m[1].endswith(".weight")]
    others = [m for m in members if m not in weights]
    if weights and others:
        raise UsageError(
            f"share = {label!r} of {'.'.join(weights[0])} and {'.'.join(others[0])}.",
            supported="weights that share their scales with weights, and other points with other points",
            action="give them different names, for example {cell}/weight",
        )
