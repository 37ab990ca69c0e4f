"""The statistics that calibration measures at quantization points, and their file format."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.codes import Code, Told, all_told
from rnnqc.data.checked_json import Entry, floats_text, json_text, read_json
from rnnqc.errors import Remark, UsageError
from rnnqc.formats.compensation import shrunk
from rnnqc.formats.histogram import HALF, Histogram
from rnnqc.formats.scales import is_power_of_two
from rnnqc.proto.files import write_atomically
from rnnqc.results import Result

Vector = npt.NDArray[np.float64]
FORMAT, VERSION = "rnnqc-statistics", 1
SPANS: Mapping[str, int] = {"max": 1, "mse": 5, "mse-floor": 5}
"""The number of candidates for each kind of fix-position search (nearest or rounding down)."""
FIX_POSITION_BITS = (8, 16)
NUMBERS = ("min", "max", "avg_min", "avg_max", "mean", "std", "mean_abs_dev")
ARRAYS = ("channel_max", "channel_mean", "channel_square", "second_moment")
RUNS = ("batch", "shapes", "layers", "weights")
"""Settings that describe how the samples ran; files of earlier versions lack them."""
WHOLE = re.compile(r"-?[0-9]{1,9}")
CHANNELS: Mapping[str, str] = {".input": "input_size", ".hidden": "hidden_size", ".cell_state": "hidden_size"}
"""Points with per-channel statistics, and the size that gives the number of channels; others are activations."""
ACTIVATION = re.compile(r"\.[^.]*\.activation$")


@dataclass(frozen=True)
class GateAverages:
    """Averages of per-sample extremes at the same point of all gates of a cell, taken as one tensor.

    Attributes:
        count: Number of gates.
        avg_min: Average over the samples of the smallest value of each.
        avg_max: Average over the samples of the largest value of each.
    """

    count: int
    avg_min: float
    avg_max: float


@dataclass(frozen=True)
class PointStatistics:
    """Statistics of the values at one quantization point, without padding.

    A call is one time step of the whole batch; for `input` it is the whole sequence. A sample is one row of the batch
    in one call. `hidden` covers the states after each step, and an initial state unless it is zero or equals the last
    state of the call before.

    Attributes:
        shape: The largest size of each dimension of a call: `[B, H]`, or `[T, B, I]` of `input`.
        count: Number of values.
        calls: Number of calls.
        min: Smallest value.
        max: Largest value.
        avg_min: Average of the smallest value of each sample; of each call where a sample is a single value.
        avg_max: The same average for the largest values.
        mean: Arithmetic mean.
        std: Standard deviation, of the population.
        mean_abs_dev: Mean absolute deviation about the mean (Laplace's b).
        histogram: Counts in bins of a power of two, up to 2048 on either side of zero.
        call_percentiles: The 99.999 percentile of `|x|` of each of the first 300 calls.
        fix_positions: How many steps each fix position was the best of: `fix_positions[bits][kind][position]`, with
            bits 8 or 16, and kind "max" (nothing saturates), "mse" (the best of 5, rounded to nearest) or "mse-floor"
            (the same, rounded down).
        channel_max: Largest magnitude of each channel, `[K]`; of `input` and `hidden`.
        channel_mean: Mean of each channel, `[K]`.
        channel_square: Mean square of each channel, `[K]`.
        second_moment: Mean of `x x'` over the rows, not centred, `[K,K]` with float32 precision; None where that
            overflows.
        call_runs: How many of the calls of `call_percentiles` belong to each run of the cell, in order; empty if all
            belong to one run.
        gates: Averages over all gates at this point together; None where there are not several gates.
    """

    shape: tuple[int, ...]
    count: int
    calls: int
    min: float
    max: float
    avg_min: float
    avg_max: float
    mean: float
    std: float
    mean_abs_dev: float
    histogram: Histogram
    call_percentiles: tuple[float, ...] = ()
    fix_positions: Mapping[int, Mapping[str, Mapping[int, int]]] = field(default_factory=dict)
    channel_max: Vector | None = None
    channel_mean: Vector | None = None
    channel_square: Vector | None = None
    second_moment: Vector | None = None
    call_runs: tuple[int, ...] = ()
    gates: GateAverages | None = None

    @property
    def shrunk_moment(self) -> Vector | None:
        """`second_moment` as rounding uses it: of few rows correlations are taken back, for many of them are chance."""
        if self.second_moment is None or self.channel_mean is None:
            return self.second_moment
        return shrunk(self.second_moment, self.channel_mean, max(1, self.count // len(self.second_moment)))

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        data: dict[str, Any] = {name: getattr(self, name) for name in NUMBERS}
        data |= {"shape": list(self.shape), "count": self.count, "calls": self.calls}
        data["histogram"] = {
            "width": self.histogram.width, "first": self.histogram.first, "counts": self.histogram.counts.tolist(),
        }  # fmt: skip
        data["call_percentiles"] = list(self.call_percentiles)
        data |= {"call_runs": list(self.call_runs)} if self.call_runs else {}
        data |= {"gates": asdict(self.gates)} if self.gates is not None else {}
        data["fix_positions"] = {
            str(bits): {kind: {str(p): n for p, n in sorted(votes.items())} for kind, votes in kinds.items()}
            for bits, kinds in self.fix_positions.items()
        }
        for name in ("channel_max", "channel_mean", "channel_square"):
            if getattr(self, name) is not None:
                data[name] = getattr(self, name).tolist()
        if self.second_moment is not None:
            data["second_moment"] = floats_text(self.second_moment[np.triu_indices(len(self.second_moment))])
        return data

    @classmethod
    def from_entry(cls, entry: Entry) -> PointStatistics:
        """Parses and checks the result of `as_dict`."""
        at = entry.fields(
            [*NUMBERS, "shape", "count", "calls", "histogram"],
            ["call_percentiles", "call_runs", "fix_positions", "gates", *ARRAYS],
        )
        numbers = {name: at[name].number(0.0 if name in ("std", "mean_abs_dev") else -math.inf) for name in NUMBERS}
        for low, high in (("min", "max"), ("avg_min", "avg_max")):
            if numbers[low] > numbers[high]:
                entry.refuse(f"{low} <= {high}", f"of {low} {numbers[low]:g} and {high} {numbers[high]:g}")
        channels = {k: at[k].floats() for k in ("channel_max", "channel_mean", "channel_square") if k in at}
        if len({len(v) for v in channels.values()}) > 1:
            entry.refuse("one length of channel_max, channel_mean and channel_square", "of different lengths of these")
        moment = None
        if "second_moment" in at:
            size = next((len(v) for v in channels.values()), 0)
            triangle = np.triu_indices(size)
            values = at["second_moment"].packed_floats(len(triangle[0]))
            moment = np.zeros((size, size))
            moment[triangle] = values
            moment.T[triangle] = values
        percentiles = tuple(e.number(0.0) for e in at["call_percentiles"].items()) if "call_percentiles" in at else ()
        runs = tuple(e.whole(0) for e in at["call_runs"].items()) if "call_runs" in at else ()
        if runs and sum(runs) != len(percentiles):
            at["call_runs"].refuse(f"runs of {len(percentiles)} calls, as many as call_percentiles", f"of {sum(runs)}")
        return cls(
            shape=tuple(e.whole(0) for e in at["shape"].items()),
            count=at["count"].whole(1),
            calls=at["calls"].whole(1),
            histogram=_histogram(at["histogram"]),
            call_percentiles=percentiles,
            call_runs=runs,
            gates=_gates(at["gates"]) if "gates" in at else None,
            fix_positions=_fix_positions(at["fix_positions"]) if "fix_positions" in at else {},
            channel_max=channels.get("channel_max"),
            channel_mean=channels.get("channel_mean"),
            channel_square=channels.get("channel_square"),
            second_moment=moment,
            **numbers,
        )


def _gates(entry: Entry) -> GateAverages:
    at = entry.fields(["count", "avg_min", "avg_max"])
    made = GateAverages(at["count"].whole(2), at["avg_min"].number(), at["avg_max"].number())
    if made.avg_min > made.avg_max:
        entry.refuse("avg_min <= avg_max", f"of avg_min {made.avg_min:g} and avg_max {made.avg_max:g}")
    return made


def _histogram(entry: Entry) -> Histogram:
    at = entry.fields(["width", "first", "counts"])
    width = at["width"].number()
    if not is_power_of_two(width):
        at["width"].refuse("a power of two")
    counts = at["counts"].counts()
    if not counts.size or not counts.any():
        at["counts"].refuse("at least one count above 0")
    first = at["first"].whole(-HALF, HALF - 1)
    if first + counts.size > HALF:
        at["counts"].refuse(f"bins from {-HALF} to {HALF - 1}", f"of {counts.size} bins from {first} on")
    return Histogram(width, first, counts)


def _fix_positions(entry: Entry) -> dict[int, dict[str, dict[int, int]]]:
    result: dict[int, dict[str, dict[int, int]]] = {}
    for bits, kinds in entry.entries().items():
        if not WHOLE.fullmatch(bits) or not 2 <= int(bits) <= 32:
            entry.refuse("numbers of bits from 2 to 32 as keys", f"an object with the key {bits!r}")
        result[int(bits)] = {}
        for kind, votes in kinds.fields([], SPANS).items():
            result[int(bits)][kind] = {}
            for position, count in votes.entries().items():
                if not WHOLE.fullmatch(position) or abs(int(position)) > 1000:
                    votes.refuse("whole numbers as keys", f"an object with the key {position!r}")
                result[int(bits)][kind][int(position)] = count.whole(0)
    return result


def _check_channels(point: PointStatistics, name: str, cells: Mapping[str, Mapping[str, Any]], entry: Entry) -> None:
    arrays = (point.channel_max, point.channel_mean, point.channel_square)
    found = next((len(v) for v in arrays if v is not None), None)
    places = [(name.removesuffix(ending), size) for ending, size in CHANNELS.items()]
    for cell, size in (*places, (ACTIVATION.sub("", name), "hidden_size")):
        wanted = cells.get(cell, {}).get(size)
        if found is not None and wanted is not None and found != wanted:
            entry.refuse(f"statistics of {wanted} channels, the {size} of the cell", f"of {found}")


@dataclass(frozen=True, repr=False)
class Statistics(Result):
    """Statistics of all quantization points of a model.

    Attributes:
        points: By name, `<cell>.<point>`; a cell that never ran has none.
        cells: For each cell the sizes that distinguish it from another model's: `{"hidden_size": H, "input_size": I,
            ...}`; for a custom cell its matmuls, `{"op": "Scan", "products": {"<node>": [K, N]}}`.
        settings: How the calibration ran: number of samples, seed, carried states, batch, layers; and the largest
            shape of each input in a run.
        source: The file they were read from, for messages.
        remarks: Remarks on recurrences that the calibration could not observe; not in files.
        unseen: Cells that the calibration should have measured but that never ran; not in files.
    """

    points: Mapping[str, PointStatistics]
    cells: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    remarks: tuple[Remark, ...] = field(default=(), compare=False)
    unseen: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, given: Statistics | str | os.PathLike[str] | None) -> Statistics | None:
        """Returns statistics, read from a file if a path is given.

        Raises:
            UsageError: `given` is something else, or the file cannot be read.
        """
        if given is None or isinstance(given, Statistics):
            return given
        if isinstance(given, str | os.PathLike):
            return cls.load(given)
        raise UsageError(
            f"the statistics are a {type(given).__qualname__}.",
            supported="what rnnqc.calibrate returns, or its file",
            action="data belongs to calibrate, or to lower as --calibration DATA",
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Statistics:
        """Reads a statistics file.

        Raises:
            UsageError: It cannot be read, or an entry is invalid; the message names file and entry.
        """
        if os.fspath(path).endswith((".npz", ".npy")):
            raise UsageError(
                f"{path}: is a file of arrays.",
                supported="a statistics file, as written by rnnqc",
                action=f"make one with rnnqc calibrate IN.onnx --data {path} -o STATS.json; lower takes data as "
                "--calibration, other commands as --data",
            )
        whole = read_json(Path(path), "a statistics file")
        if not isinstance(whole.data, dict) or whole.data.get("format") != FORMAT:
            whole.refuse(f'"format": "{FORMAT}", as written by `rnnqc calibrate`', "no statistics file")
        at = whole.fields(["format", "version", "model", "points", "settings"])
        if at["version"].data != VERSION:
            at["version"].refuse(f"version {VERSION}")
        cells = {name: _cell(entry) for name, entry in at["model"].fields(["cells"])["cells"].entries().items()}
        points = {}
        for name, entry in at["points"].entries().items():
            if not any(name.startswith(f"{cell}.") for cell in cells):
                entry.refuse("points of the cells in model.cells", "a point of none of them")
            points[name] = PointStatistics.from_entry(entry)
            _check_channels(points[name], name, cells, entry)
        at["settings"].entries()
        return cls(points, cells, at["settings"].data, os.fspath(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a statistics file: identical bytes for identical statistics.

        Raises:
            CompileError: The file cannot be written.
        """
        write_atomically(Path(path), self.text.encode())

    @property
    def text(self) -> str:
        """The contents of the file."""
        return self._text(self.settings)

    def _text(self, settings: Mapping[str, Any]) -> str:
        return json_text(
            {
                "format": FORMAT,
                "version": VERSION,
                "model": {"cells": self.cells},
                "settings": settings,
                "points": {name: point.as_dict() for name, point in self.points.items()},
            }
        )

    @cached_property
    def digest(self) -> str:
        """A hash of the statistics, without the settings that tell how the samples ran: the points show those."""
        settings = {name: value for name, value in self.settings.items() if name not in RUNS}
        return hashlib.sha256(self._text(settings).encode()).hexdigest()[:16]

    @property
    def headline(self) -> str:
        """One line: how many points were measured on how many samples."""
        samples = self.settings.get("samples", "unknown")
        return f"{len(self.points)} quantization points, {samples} {'sample' if samples == 1 else 'samples'}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each point."""
        names = ("count", "min", "max", "mean", "std")
        return [{"point": path, **{n: getattr(p, n) for n in names}} for path, p in self.points.items()]

    @property
    def messages(self) -> list[Told]:
        """The remarks, and the cells that never ran."""
        silent = (f"cell {cell!r} never ran on this data; nothing is known of it." for cell in self.unseen)
        return [*(r.told for r in self.remarks), *all_told(Code.UNSEEN_CELL, silent)]

    def to_dict(self) -> dict[str, Any]:
        """Returns the contents of the file."""
        contents: dict[str, Any] = json.loads(self.text)
        return contents

    def cell_of(self, path: str) -> str:
        """Returns the cell of the point `<cell>.<point>`; empty if there is none."""
        return max((c for c in self.cells if path.startswith(f"{c}.")), key=len, default="")

    @property
    def second_moments(self) -> dict[str, Vector]:
        """The uncentred mean of `x x'` over the rows, `[K,K]`, for the points that have one."""
        return {name: p.second_moment for name, p in self.points.items() if p.second_moment is not None}

    @property
    def shrunk_moments(self) -> dict[str, Vector]:
        """The same as rounding uses them (`PointStatistics.shrunk_moment`)."""
        return {name: made for name, p in self.points.items() if (made := p.shrunk_moment) is not None}

    @property
    def silent_cells(self) -> list[str]:
        """Cells that never ran, or were not measured."""
        return [c for c in self.cells if not any(p.startswith(f"{c}.") for p in self.points)]

    def check_fits(self, cells: Iterable[Cell]) -> None:
        """Checks that these are statistics of a model with these cells.

        Raises:
            UsageError: A cell is missing, or has other sizes here.
        """
        for cell in cells:
            if cell.name not in self.cells:
                known = ", ".join(sorted(self.cells)) or "none"
                raise UsageError(
                    f"{self._where}nothing about cell {cell.name!r}; cells: {known}.",
                    supported="statistics of the same model",
                    action="calibrate this model, with the --dim and --bind that it is lowered with",
                )
            self.check_cell(cell.name, identity(cell))

    def check_cell(self, name: str, wanted: Mapping[str, Any]) -> None:
        """Checks that the recorded sizes of a cell, if any, match.

        Raises:
            UsageError: They differ.
        """
        found = self.cells.get(name)
        if found is not None and dict(found) != dict(wanted):
            raise UsageError(
                f"{self._where}cell {name!r} is {_text(found)} there, and {_text(wanted)} in the model.",
                supported="statistics of the same model",
                action="calibrate this model",
            )

    def of_other_weights(self, weights: Mapping[str, str]) -> list[str]:
        """Returns the cells whose weights changed since they were measured, for example by further training.

        Args:
            weights: For each cell the `weights_digest` of its parameters. Files of earlier versions have none.
        """
        known = self.settings.get("weights")
        if not isinstance(known, Mapping):
            return []
        return [name for name, digest in weights.items() if known.get(name, digest) != digest]

    def check_batch(self, batch: int) -> None:
        """Checks that the samples ran in batches of `batch` rows.

        Raises:
            UsageError: They ran in others, or the statistics do not say.
        """
        found = self.settings.get("batch")
        if found != batch:
            shapes = self.settings.get("shapes")
            ran = f"; the largest run had inputs of {json.dumps(shapes)}" if shapes else ""
            raise UsageError(
                f"{self._where}measured in batches of {found} rows{ran}, and batches of {batch} are asked for."
                if found is not None
                else f"{self._where}measured without --batch{ran}, and batches of {batch} are asked for.",
                supported="statistics of the batch that is asked for",
                action=f"calibrate with --batch {batch}, or leave the batch out",
            )

    @property
    def _where(self) -> str:
        return f"{self.source}: " if self.source else "The statistics: "


def _cell(entry: Entry) -> dict[str, Any]:
    """Parses the description of a cell: its sizes, or the sizes of the matmuls of a custom cell."""
    if isinstance(entry.data, dict) and "products" in entry.data:
        at = entry.fields(["op", "products"])
        shapes = {n: [size.whole(1) for size in p.items()] for n, p in at["products"].entries().items()}
        return {"op": at["op"].text(), "products": shapes}
    at = entry.fields(["hidden_size", "input_size", "op", "reverse"])
    return {
        "hidden_size": at["hidden_size"].whole(1),
        "input_size": at["input_size"].whole(1),
        "op": at["op"].text(),
        "reverse": at["reverse"].truth(),
    }


def weights_digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """A hash of a cell's parameters: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {list(array.shape)} ".encode())
        digest.update(np.ascontiguousarray(array, np.float32).tobytes())
    return digest.hexdigest()[:16]


def identity(cell: Cell) -> dict[str, Any]:
    """Returns the properties that distinguish a cell from another one of the same name."""
    return {"hidden_size": cell.hidden_size, "input_size": cell.input_size, "op": cell.op, "reverse": cell.reverse}


def _text(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in sorted(sizes.items()))
