"""Former names of `rnnqc.formats.format` and `rnnqc.formats.rounding`."""

from rnnqc.formats.format import SMALLEST_BOUND, FloatArray, symmetric_scale
from rnnqc.formats.format import Format as Encoding
from rnnqc.formats.rounding import Rounding, round_to_integer

__all__ = ["SMALLEST_BOUND", "Encoding", "FloatArray", "Rounding", "round_to_integer", "symmetric_scale"]
