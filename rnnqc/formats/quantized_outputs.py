"""Outputs of a model that are quantized values: their formats in the metadata, and their real values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import CompileError
from rnnqc.formats.format import Format, FormatError
from rnnqc.formats.point_format import PointFormat

OUTPUTS_KEY = "rnnqc.outputs"
"""Key in `metadata_props` of the formats of quantized outputs, by name, as JSON."""


def as_dicts(formats: Mapping[str, Format]) -> dict[str, Mapping[str, Any]]:
    """Returns the formats as files store them."""
    return {name: PointFormat.of(held).as_dict() for name, held in formats.items()}


def outputs_text(formats: Mapping[str, Format]) -> str:
    """Returns the metadata entry."""
    return json.dumps(as_dicts(formats), sort_keys=True, separators=(",", ":"))


def read_outputs(metadata: Mapping[str, str]) -> dict[str, Format]:
    """Reads the formats of a model's quantized outputs, by name; empty if the metadata has none.

    Raises:
        CompileError: The entry is damaged.
    """
    if OUTPUTS_KEY not in metadata:
        return {}
    try:
        return {str(n): PointFormat.from_dict(s).complete for n, s in json.loads(metadata[OUTPUTS_KEY]).items()}
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError, FormatError) as error:
        raise CompileError(
            f"metadata {OUTPUTS_KEY!r} is damaged ({error!r}).",
            supported="what rnnqc writes there",
            action="lower the float model again, or remove this entry",
        ) from error


def described_outputs(formats: Mapping[str, Format]) -> list[str]:
    """Describes for people the type of each quantized output, and how to compute real values."""
    return [f"{name}: {held.dtype}, real values are {_formula(name, held)}" for name, held in formats.items()]


def _formula(name: str, held: Format) -> str:
    centred = f"({name} - {held.zero_point})" if held.zero_point else name
    return f"{float(np.float32(held.scale[0])):.9g} * {centred}"


def real_values(outputs: Mapping[str, Any], formats: Mapping[str, Format]) -> dict[str, npt.NDArray[Any]]:
    """Returns the outputs of a run, quantized ones as real values."""
    return {name: formats[name].dequantize(a) if name in formats else a for name, a in outputs.items()}
