"""Former names of `rnnqc.formats.format` and `rnnqc.formats.rounding`."""

from rnnqc.formats.format import FloatArray
from rnnqc.formats.format import Format as Encoding
from rnnqc.formats.rounding import Rounding, round_to_integer
from rnnqc.formats.scales import SMALLEST_BOUND, symmetric_scale

__all__ = ["SMALLEST_BOUND", "Encoding", "FloatArray", "Rounding", "round_to_integer", "symmetric_scale"]
