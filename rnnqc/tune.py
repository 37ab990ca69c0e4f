"""`rnnqc tune` for programs: `from rnnqc.tune import tune`."""

from rnnqc.search.tune import tune
from rnnqc.search.tuned import Tuned

__all__ = ["Tuned", "tune"]
