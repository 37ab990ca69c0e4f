"""Statistics of linear layers."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.calibration.point_observer import PointObserver, Values
from rnnqc.data.statistics import Statistics
from tests.runs.sessions import Array


def statistics_of(x: Array, name: str, shape: Sequence[int], op: str = "MatMul") -> Statistics:
    """The statistics of a calibration with rows `x` for one layer with a weight of this shape."""
    observer = PointObserver(True, True)
    observer.update(Values(x.reshape(1, -1, x.shape[-1])))
    observer.flush()
    seen = observer.statistics
    assert seen is not None
    return Statistics({f"{name}.input": seen}, {name: {"op": op, "products": {"weight": list(shape)}}})
