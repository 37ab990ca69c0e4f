"""Size of the result against length, and memory against size.

What these would catch: weights copied into every step, a pass that is quadratic in the number of nodes, a model held in
memory many times.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import rnnqc
from tests.generate.layers import RecurrentCase, stacked_model

ALLOWED_MEMORY_FACTOR = 4.5
CHILD = """
import sys, rnnqc
if len(sys.argv) > 1:
    rnnqc.lower(sys.argv[1]).save(sys.argv[2])
else:
    import onnxruntime
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")))
"""


def _unrolled(steps: int) -> onnx.ModelProto:
    case = RecurrentCase(T=steps, B=1, I=16, H=16)
    proto: onnx.ModelProto = rnnqc.lower(case.model(), form="integer", unroll=True).proto
    return proto


def test_unrolled_file_grows_linearly() -> None:
    counts, sizes = zip(*[(len(m.graph.node), m.ByteSize()) for m in map(_unrolled, (10, 14, 18))], strict=True)
    assert counts[2] - counts[1] == counts[1] - counts[0]
    # Names with more digits are longer.
    assert sizes[2] - sizes[1] <= 1.05 * (sizes[1] - sizes[0])
    assert (counts[1] - counts[0]) / 4 <= 40, "nodes per step"


@pytest.mark.slow
def test_a_thousand_steps() -> None:
    """Deeper than Python's recursion limit."""
    model = _unrolled(1000)
    onnx.checker.check_model(model)
    assert len(model.graph.node) > 1000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of a process from /proc")
def test_memory_of_a_large_model(tmp_path: Path) -> None:
    layers = [RecurrentCase(T=10, B=1, I=1024, H=1024, seed=k) for k in range(3)]
    onnx.save(stacked_model(layers), tmp_path / "in.onnx")
    size = (tmp_path / "in.onnx").stat().st_size
    assert size > 100e6

    def peak(*arguments: str | Path) -> int:
        command = [sys.executable, "-c", CHILD, *[str(a) for a in arguments]]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])

    used = peak(tmp_path / "in.onnx", tmp_path / "out.onnx") - peak()
    print(f"{used / 1e6:.0f} MB more than idle for {size / 1e6:.0f} MB")
    assert used <= ALLOWED_MEMORY_FACTOR * size
