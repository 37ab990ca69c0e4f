"""Compares one LSTM layer in rnnqc and its peers with each other and with the limits of the machine.

    python benchmarks/peers.py [--shapes TxBxIxH ...] [--threads 1 2] [--ways GLOB ...] [--isas avx2 ...] [--rounds N]
                               [--json OUT.json [--resume]] [--plot OUT.svg]

Every way runs in its own process, which keeps its layer; they take turns of 0.1 s while the others are stopped
(turns.py). All compute Y, Y_h, Y_c from X, h0, c0. onnxruntime's ways, including rnnqc, are called through the C API
("ort identity" is a call that does nothing), oneDNN from C++ with uint8 inputs and outputs, torch and OpenVINO from
Python as their users do, which costs 5 to 15 us. The arithmetic differs: DynamicQuantizeLSTM quantizes x and h
dynamically, oneDNN and OpenVINO have one static scale for both, all peers have float gates and a float cell state;
"SQNR" compares Y with onnxruntime's float LSTM. Quote ratios, and do not trust differences below 5 %.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from peer_ways import WAYS, quality, write_feeds, write_weights
from roofline import SHAPES, Meter, bits_of, limits_of, macs, streamed_bytes
from support.layers import Layer
from support.reporting import print_table
from support.turns import Reply, Worker, WorkerError, compiled, processors, wait_until_quiet

from rnnqc.timing import environment

T = TypeVar("T")
Record = dict[str, Any]
BURST = 0.1
ONEDNN = {"onednn float": "f32", "onednn int8": "u8"}
NO_LAYER = "ort identity"


def onednn_program() -> tuple[Path, dict[str, str]]:
    """Compiles onednn_lstm.cc; returns the program and the environment it needs.

    oneDNN is searched for in the prefix DNNL_ROOT (with the linker's options DNNL_LDFLAGS), in this Python's
    environment (pip install onednn-devel, SYCL) and in /usr (libdnnl-dev, OpenMP).

    Raises:
        WorkerError: There is none.
    """
    places = [Path(p) for p in (os.environ.get("DNNL_ROOT"), sys.prefix, "/usr") if p]
    root = next((p for p in places if (p / "include" / "dnnl.hpp").exists()), None)
    if root is None:
        raise WorkerError("pip install onednn-devel, or apt-get install libdnnl-dev, or set DNNL_ROOT")
    found = sorted([*root.glob("lib/libdnnl.so"), *root.glob("lib/*/libdnnl.so"), *root.glob("lib64/libdnnl.so")])
    if not found:
        raise WorkerError(f"{root} has the headers of oneDNN but no libdnnl.so")
    folder = found[0].parent
    flags = ["-fopenmp", f"-I{root / 'include'}", f"-L{folder}", "-ldnnl", f"-Wl,-rpath,{folder}"]
    flags += ["-Wl,--allow-shlib-undefined", *os.environ.get("DNNL_LDFLAGS", "").split()]
    variables = {}
    sycl = folder / "libintelocl.so"
    if sycl.exists():
        variables = {"LD_LIBRARY_PATH": str(folder), "OCL_ICD_FILENAMES": str(sycl)}
    return compiled("onednn_lstm.cc", flags), variables


class Contest:
    """The workers for one number of threads."""

    def __init__(self, names: Sequence[str], threads: int, folder: Path) -> None:
        self.threads, self.folder = threads, folder
        self.meter = Meter(threads)
        self.skipped: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._workers: dict[str, Worker] = {}
        for name in names:
            worker = self._attempt(name, partial(self._start, name))
            if worker is not None:
                self._workers[name] = worker
        for name, answer in self._answers().items():
            self.versions[name] = str(answer["version"])

    def _attempt(self, name: str, step: Callable[[], T]) -> T | None:
        """Returns the result; skips a way that fails, with a message."""
        try:
            return step()
        except WorkerError as error:
            self.skipped[name] = str(error)
            print(f"SKIPPED {name}, {self.threads} thread(s): {error}", file=sys.stderr)
            if name in self._workers:
                self._workers.pop(name).close()
            return None

    def _answers(self) -> dict[str, Reply]:
        """Returns the answers of all workers to the last request."""
        answers = {name: self._attempt(name, worker.receive) for name, worker in list(self._workers.items())}
        for worker in self._workers.values():
            worker.stop()
        return {name: answer for name, answer in answers.items() if answer is not None}

    def _start(self, name: str) -> Worker:
        with processors(self.threads):
            return self._worker(name)

    def _worker(self, name: str) -> Worker:
        count = str(self.threads)
        variables = {"OMP_NUM_THREADS": count, "DPCPP_CPU_NUM_CUS": count, "ONEDNN_VERBOSE": "0"}
        if name in ONEDNN:
            program, more = onednn_program()
            place = self.folder / name.replace(" ", "_")
            place.mkdir(exist_ok=True)
            return Worker(name, [program, ONEDNN[name], count, place], {**variables, **more})
        way, _, isa = name.partition(" @ ")
        if isa:
            variables["RNNQC_ISA"] = isa
        return Worker(name, [sys.executable, Path(__file__).with_name("peer_ways.py"), way, count], variables)

    def measure(self, shape: str, rounds: int, waiting: float) -> Record:
        """Measures all ways and the limits for one shape; skips ways that fail."""
        layer = Layer.parse(shape, states=True)
        quality_db = self._prepare(layer)
        times: dict[str, list[Record]] = {name: [] for name in quality_db}
        disturbed = dict.fromkeys(times, 0)
        names = list(times)
        for k in range(rounds):
            shift = k * len(names) // rounds
            for name in names[shift:] + names[:shift]:
                if name in self._workers:
                    disturbed[name] += not wait_until_quiet(waiting)
                    answer = self._attempt(name, partial(self._workers[name].burst, BURST))
                    times[name] += [answer] if answer else []
            wait_until_quiet(waiting)
            self.meter.burst(BURST)
        limits = self.meter.limits
        ways = {
            name: {
                "version": self.versions[name],
                "min_us": 1e6 * min(t["min"] for t in of_way),
                "median_us": 1e6 * statistics.median(t["median"] for t in of_way),
                "runs": sum(t["runs"] for t in of_way),
                "disturbed_rounds": disturbed[name],
                "sqnr_db": quality_db[name],
            }
            for name, of_way in times.items()
            if name in self._workers and of_way
        }
        return {
            "shape": shape, "threads": self.threads, "rounds": rounds, "ways": ways, "skipped": dict(self.skipped),
            "limits": {"isa": limits.isa, "peak": limits.peak, "rates": {str(k): v for k, v in limits.rates.items()}},
        }  # fmt: skip

    def _prepare(self, layer: Layer) -> dict[str, float | None]:
        """Returns the SQNR of Y by way."""
        for name in ONEDNN.keys() & self._workers.keys():
            for write in (write_feeds, write_weights):
                write(layer, self.folder / name.replace(" ", "_"))
        for name, worker in list(self._workers.items()):
            self._attempt(name, partial(worker.send, f"prepare {layer.name}"))
        result = {name: answer.get("sqnr_db") for name, answer in self._answers().items()}
        for name in ONEDNN.keys() & result.keys():
            y = np.fromfile(self.folder / name.replace(" ", "_") / "y.f32", np.float32)
            result[name] = quality(layer, y)
        self.meter.prepare(layer)
        return result

    def close(self) -> None:
        """Ends all processes."""
        for worker in (*self._workers.values(), self.meter.worker):
            worker.close()


def is_int8_peer(way: str) -> bool:
    """Whether to compare rnnqc int8 with it."""
    return "int8" in way and not way.startswith("rnnqc")


def rows(record: Record) -> list[dict[str, Any]]:
    """Returns a row for each way; ratios are the other's minimum over this one's: above 1 this one is faster."""
    layer, limits, ways = Layer.parse(record["shape"]), limits_of(record), record["ways"]
    base = ways.get("ort float", {}).get("min_us")
    peer = min((w["min_us"] for n, w in ways.items() if is_int8_peer(n)), default=None)
    result = []
    for name, way in ways.items():
        least, quantized = way["min_us"], bits_of(name) < 32
        row: dict[str, Any] = {
            "way": name, "min us": least, "median us": way["median_us"],
            "x ort float": base / least if base else "", "x int8 peer": peer / least if peer else "",
            "GMAC/s": 1e-3 * macs(layer) / least, "weights GB/s": 1e-3 * streamed_bytes(layer, bits_of(name)) / least,
            "of roofline": limits.microseconds(layer, bits_of(name)) / least if quantized else "",
            "SQNR dB": way["sqnr_db"], "noisy": way["disturbed_rounds"], "version": way["version"],
        }  # fmt: skip
        if name == NO_LAYER:
            row |= dict.fromkeys(("x ort float", "x int8 peer", "GMAC/s", "weights GB/s", "SQNR dB"), "")
        result.append(row)
    return result


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Returns a row for each shape: rnnqc against the fastest int8 peer and the roofline."""
    result = []
    for record in records:
        by_way = {r["way"]: r for r in rows(record)}
        peers = [r for name, r in by_way.items() if is_int8_peer(name)]
        best = min(peers, key=lambda r: float(r["min us"])) if peers else None
        layer, limits = Layer.parse(record["shape"]), limits_of(record)
        limit = limits.microseconds(layer)
        row: dict[str, Any] = {
            "T x B x I x H": record["shape"], "threads": record["threads"], "limit us": limit,
            "best int8 peer": best["way"] if best else "", "peer us": best["min us"] if best else "",
            "of limit": limit / best["min us"] if best else "",
        }  # fmt: skip
        for bits in ("int8", "int4"):
            mine = by_way.get(f"rnnqc {bits}", {})
            row[f"{bits} us"] = mine.get("min us", "")
            row[f"{bits} x float"] = mine.get("x ort float", "")
            row[f"{bits} x peer"] = mine.get("x int8 peer", "")
            row[f"{bits} of limit"] = mine.get("of roofline", "")
        result.append(row)
    return result


def save(path: Path | None, records: Sequence[Record]) -> None:
    """Writes the records so far atomically."""
    if path is not None:
        partial = path.with_name(path.name + ".partial")
        partial.write_text(json.dumps({"environment": environment(), "records": list(records)}, indent=2) + "\n")
        partial.rename(path)


def selected(names: Sequence[str], globs: Sequence[str]) -> list[str]:
    """Returns the names that match one of the globs.

    Raises:
        SystemExit: A glob matches nothing.
    """
    for glob in globs:
        if not fnmatch.filter(names, glob):
            raise SystemExit(f"--ways {glob!r}: no such way; there are {', '.join(names)}")
    return [n for n in names if any(fnmatch.fnmatchcase(n, g) for g in globs)]


def main() -> None:
    """Measures, prints, writes and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="TxBxIxH")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--ways", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--isas", nargs="+", default=[], metavar="ISA", help="rnnqc with these kernels, too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wait", type=float, default=0.5, help="seconds at most for a quiet machine, each turn")
    parser.add_argument("--json", type=Path, help="written after every shape")
    parser.add_argument("--resume", action="store_true", help="keep the shapes that the JSON file has")
    parser.add_argument("--plot", type=Path, help=".svg, .png or .pdf; needs matplotlib")
    a = parser.parse_args()
    names = selected([*WAYS, *ONEDNN], a.ways) + [f"rnnqc int8 @ {isa}" for isa in a.isas]
    records: list[Record] = []
    if a.resume and a.json is not None and a.json.exists():
        records = json.loads(a.json.read_text())["records"]
    done: Mapping[tuple[str, int], Record] = {(r["shape"], r["threads"]): r for r in records}
    for threads in a.threads:
        missing = [s for s in a.shapes if (s, threads) not in done]
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as folder:
            contest = Contest(names, threads, Path(folder))
            try:
                for shape in missing:
                    records.append(contest.measure(shape, a.rounds, a.wait))
                    save(a.json, records)
                    print_table(f"{shape}, {threads} thread(s), {a.rounds} rounds", rows(records[-1]))
            finally:
                contest.close()
    print_table("rnnqc and the fastest int8 peer; limit: the roofline (ratios of minima)", summary(records))
    if a.plot is not None:
        from roofline_plot import draw

        draw(records, a.plot)


if __name__ == "__main__":
    main()
