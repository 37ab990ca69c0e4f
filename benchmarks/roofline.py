"""The least time that one LSTM layer can take on this machine, from its measured limits.

    python benchmarks/roofline.py [--shapes TxBxIxH ...] [--threads 1 2] [--isa NAME] [--json OUT.json]

    x projection / peak  +  T * max(products of a step / peak, bytes of R / rate of a buffer of that size)

and for T = 1: bytes of W and R / rate of a buffer of their size. Peak is the rate of int8 products from registers; the
buffer's rate is that of weights streamed into them, upwards or back and forth, whichever is faster. Gates, cell update
and the latency of a step are left out, so that no program can be faster. A processor without int8 products uses its
fastest substitute.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.layers import Layer
from support.reporting import report
from support.turns import Reply, Worker, compiled

SHAPES = (
    "100x1x40x64", "100x1x64x128", "100x1x256x256", "100x1x512x512", "35x1x650x650", "35x1x1500x1500",
    "35x20x1500x1500", "100x8x256x256", "200x32x128x128", "1x1x128x128", "1x1x512x512",
)  # fmt: skip
LEVELS = {"L1": 24 << 10, "L2": 256 << 10, "L3": 8 << 20}
"""Buffer sizes whose rates the plot shows, in bytes per thread."""


@dataclass(frozen=True)
class Limits:
    """The limits of the machine: peak in GMAC/s, and rates in GB/s by bytes of the buffer."""

    isa: str
    peak: float
    rates: Mapping[int, float]

    def product_microseconds(self, rows: int, inputs: int, outputs: int, bits: int = 8) -> float:
        """Returns the least time of one matmul with weights of `bits` bits."""
        size = inputs * outputs * bits // 8
        return 1e-3 * max(rows * inputs * outputs / self.peak, size / self.rates[size])

    def microseconds(self, layer: Layer, bits: int = 8) -> float:
        """Returns the least time of one layer with weights of `bits` bits."""
        if layer.T == 1:
            size = weight_bytes(layer, bits)
            return 1e-3 * max(macs(layer) / self.peak, size / self.rates[size])
        step, size = layer.B * 4 * layer.H * layer.H, recurrent_bytes(layer, bits)
        projection = layer.T * layer.B * 4 * layer.H * layer.I
        return 1e-3 * (projection / self.peak + layer.T * max(step / self.peak, size / self.rates[size]))


def macs(layer: Layer) -> int:
    """Returns the multiply-accumulates of the matmuls with W and R over the whole sequence."""
    return layer.T * layer.B * 4 * layer.H * (layer.I + layer.H)


def recurrent_bytes(layer: Layer, bits: int) -> int:
    """Returns the bytes of R."""
    return 4 * layer.H * layer.H * bits // 8


def weight_bytes(layer: Layer, bits: int) -> int:
    """Returns the bytes of W and R."""
    return 4 * layer.H * (layer.I + layer.H) * bits // 8


def streamed_bytes(layer: Layer, bits: int) -> int:
    """Returns the bytes of weights that a sequence reads at least: W once, R in every step."""
    return weight_bytes(layer, bits) + (layer.T - 1) * recurrent_bytes(layer, bits)


def bits_of(way: str) -> int:
    """Returns the bits of a weight in one of peer_ways.py's ways."""
    return 4 if "int4" in way else 8 if "int8" in way or "stock" in way else 32


def limits_of(record: Mapping[str, Any]) -> Limits:
    """Returns the limits measured with a record of peers.py."""
    held = record["limits"]
    return Limits(held["isa"], held["peak"], {int(k): v for k, v in held["rates"].items()})


class Meter:
    """Measures limits in its own process, burst by burst; keeps the best."""

    def __init__(self, threads: int, isa: str = "") -> None:
        self.worker = Worker("roofline", [compiled("roofline.cc"), str(threads), *([isa] if isa else [])])
        self._isa = str(self.worker.receive()["version"])
        self._threads = threads
        self._sizes: list[int] = []
        self._best: Reply = {}

    def prepare(self, layer: Layer) -> None:
        """Clears the results; the next bursts measure what the layer's roofline needs."""
        size = weight_bytes if layer.T == 1 else recurrent_bytes
        self.prepare_sizes([*(size(layer, bits) for bits in (8, 4)), *(n * self._threads for n in LEVELS.values())])

    def prepare_sizes(self, sizes: Sequence[int]) -> None:
        """Does the same for weights of these sizes, in bytes."""
        self._sizes = list(sizes)
        self._best = {}
        self.worker.ask(f"prepare {' '.join(map(str, self._sizes))}")

    def burst(self, seconds: float) -> None:
        """Runs one turn."""
        new = self.worker.burst(seconds)
        old = self._best or new
        rates = [max(four) for four in zip(*(m[k] for m in (old, new) for k in ("ascending", "zigzag")), strict=True)]
        self._best = {"peak": max(old["peak"], new["peak"]), "ascending": rates, "zigzag": rates}

    @property
    def limits(self) -> Limits:
        """The best of all bursts."""
        return Limits(self._isa, self._best["peak"], dict(zip(self._sizes, self._best["ascending"], strict=True)))


def measure(shapes: Sequence[str], threads: int, isa: str, rounds: int) -> list[dict[str, object]]:
    """Returns a row for each shape."""
    meter = Meter(threads, isa)
    rows: list[dict[str, object]] = []
    try:
        for shape in shapes:
            layer = Layer.parse(shape)
            meter.prepare(layer)
            for _ in range(rounds):
                meter.burst(0.1)
            limits = meter.limits
            int8, int4 = (limits.microseconds(layer, bits) for bits in (8, 4))
            rates = list(limits.rates.values())
            rows.append(
                {
                    "T x B x I x H": shape, "threads": threads, "isa": limits.isa, "peak GMAC/s": limits.peak,
                    "weights GB/s": rates[0], "half GB/s": rates[1], "int8 us": int8, "int4 us": int4,
                    "GMAC/s at int8": 1e-3 * macs(layer) / int8,
                }
            )  # fmt: skip
    finally:
        meter.worker.close()
    return rows


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="TxBxIxH")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    isas = "amxint8, avx512vnni, avxvnni, avx2, dotprod or portable; the best by default"
    parser.add_argument("--isa", default="", help=isas)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    rows = [row for threads in a.threads for row in measure(a.shapes, threads, a.isa, a.rounds)]
    report("Roofline of one LSTM layer", rows, a.json)


if __name__ == "__main__":
    main()
