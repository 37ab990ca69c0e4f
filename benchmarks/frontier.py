"""The frontier of few-bit weights: bytes, time and accuracy of real models, for recipes and for the results of `tune`.

python benchmarks/frontier.py MODELS_FOLDER DATA_FOLDER [--tasks dtln_1 wikitext ...] [--tune SHARE ...] [--json FILE]

Tasks are those of tasks.py, and of perplexity.py:

* dtln_1: the first model of DTLN alone, a call for each frame of a stream.
* silero_vad, rnnoise: a call for a chunk or a frame. imdb, imdb_gru: a call for a review of 500 tokens.
* wikitext: a language model of two LSTM layers; kB and time are those of its recurrent part, a call for one token of
  one stream; perplexity is that of the whole model with a float decoder.

All rows are calibrated and measured on different data. kB are those of the recurrent layers' parameters, and of the
file. `--tune 0.75` searches for the given seconds, on calibration data alone, for the best bit widths within 75 % of
the bytes of `int8`. Times are minima of turns of all models of a task.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
from perplexity import (
    CARRIED,
    LOG_LIKELIHOOD,
    TARGETS,
    Split,
    calibration_feeds,
    pieces,
    read_ids,
    streams,
    zero_states,
)
from support.reporting import print_table
from support.variants import FLOAT, Outputs, Variant, plain_session, run
from tasks import TASKS, Dtln, Feeds, Sessions, Statistics, Task, measure

import rnnqc
from rnnqc.timing import environment, session_options

WIDE = "*.[WR].weight.wide_channels=0.01"
VARIANTS = (
    Variant(FLOAT),
    Variant("int8", "int8", calibrated=True),
    Variant("w6a8", "w6a8", calibrated=True),
    Variant("w6a8, 1 % wide", "w6a8", (WIDE,), calibrated=True),
    Variant("6 bits per channel", "int8", ("*.weight.bits=6",), calibrated=True),
    Variant("w5a8", "w5a8", calibrated=True),
    Variant("w5a8, 1 % wide", "w5a8", (WIDE,), calibrated=True),
    Variant("5 bits per channel", "int8", ("*.weight.bits=5",), calibrated=True),
    Variant("w4a8-uneven", "w4a8-uneven", calibrated=True),
    Variant("w4a8, 1 % wide", "w4a8", (WIDE,), calibrated=True),
    Variant("w4a8", "w4a8", calibrated=True),
    Variant("4 bits per channel", "int8", ("*.weight.bits=4",), calibrated=True),
)


class DtlnMask(Dtln):
    """The first model of DTLN."""

    name = "dtln_1"

    def __init__(self, models: Path, data: Path, scale: float) -> None:
        super().__init__(models, data, scale)
        self.models = {"model_1": self.models["model_1"]}

    def calibration(self, floats: Sessions) -> dict[str, list[Feeds]]:
        """Returns frames of the first half, with other noise."""
        return {"model_1": self.first_feeds(self.frames(self.other)[: self.calibration_frames])}

    def outputs(self, sessions: Sessions) -> Outputs:
        """Returns masks and states."""
        first = self.first_feeds(self.frames(self.noisy))
        return self._stream(sessions["model_1"], "model_1", first)

    def figures(self, reference: Outputs, outputs: Outputs) -> dict[str, Any]:
        """Returns the SQNR of both."""
        names = {"mask dB": "activation_2", "states dB": "tf_op_layer_stack_2"}
        return {k: rnnqc.evaluation.numerics.sqnr_db(reference[n], outputs[n]) for k, n in names.items()}


class WikiText(Task):
    """Perplexity of a language model, whose recurrent part is quantized and timed."""

    name = "wikitext"
    PIECES: ClassVar = 40

    def __init__(self, models: Path, data: Path, scale: float) -> None:
        self._split = Split(onnx.load(models / "wikitext2_lm" / "wikitext2_lm.onnx"))
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "recurrent.onnx"
        onnx.save(self._split.recurrent, path)
        self.models, self.carried = {"model": path}, {"model": dict(CARRIED)}
        self._columns = streams(read_ids(data / "wikitext-2", "valid"))
        self._columns = self._columns[: max(2, int(len(self._columns) * scale))]
        self._train = streams(read_ids(data / "wikitext-2", "train"))

    def calibration(self, floats: Sessions) -> dict[str, list[Feeds]]:
        """Returns pieces of the training text."""
        return {"model": calibration_feeds(self._split, self._train, self.PIECES)}

    def timed(self, first: Feeds) -> Feeds:
        """Returns one token of one stream."""
        return {k: a[:1, :1] if k == "tokens" else a[:, :1] for k, a in first.items()}

    def outputs(self, sessions: Sessions) -> Outputs:
        """Returns log-likelihoods of the validation text."""
        decoder = plain_session(self._split.decoder, session_options(1))
        states, scores = zero_states(self._split.recurrent), []
        for tokens, targets in pieces(self._columns):
            got = run(sessions["model"], {"tokens": tokens, **states})
            states = {name: got[source] for name, source in CARRIED.items()}
            given = {self._split.hidden: got[self._split.hidden], TARGETS: targets}
            scores.append(run(decoder, given)[LOG_LIKELIHOOD])
        return {LOG_LIKELIHOOD: np.concatenate(scores)}

    def figures(self, reference: Outputs, outputs: Outputs) -> dict[str, Any]:
        """Returns perplexity and its increase."""
        before, after = (np.exp(-np.mean(o[LOG_LIKELIHOOD], dtype=np.float64)) for o in (reference, outputs))
        return {"perplexity": f"{after:.3f}", "loss": f"{100 * (after / before - 1):+.3f} %"}


FRONTIER = {t.name: t for t in (DtlnMask, *(TASKS[n] for n in ("silero_vad", "rnnoise", "imdb", "imdb_gru")), WikiText)}


def tuned(task: Task, statistics: Statistics, share: float, seconds: float, folder: Path) -> Variant:
    """Returns the best widths within this share of the bytes of `int8`, according to the calibration data."""
    rules: list[str] = []
    for name, path in task.models.items():
        whole = sum(e.bytes for e in rnnqc.lower(str(path), "int8").report.entries)
        found = rnnqc.tune(
            str(path), statistics.feeds(name), max_bytes=int(share * whole), state=task.carried[name] or None,
            stats=statistics.of(name), seconds=seconds,
        )  # fmt: skip
        rules.append(str(folder / f"{task.name}.{name}.{share:g}.toml"))
        found.save(rules[-1])
    if len(rules) != 1:
        raise ValueError(f"task {task.name} has {len(rules)} models, a row has one recipe")
    return Variant(f"tune, {share:.0%} of int8", rules[0], calibrated=True)


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS_FOLDER")
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--tasks", nargs="+", choices=FRONTIER, default=list(FRONTIER))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the data, for short runs")
    parser.add_argument("--tune", type=float, nargs="*", default=[0.8, 0.65], metavar="SHARE")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="one file for all; it is written after every task")
    a = parser.parse_args()
    result: list[dict[str, Any]] = []
    for name in a.tasks:
        with tempfile.TemporaryDirectory() as folder:
            task = FRONTIER[name](a.models, a.data, a.scale)

            def more(statistics: Statistics, task: Task = task, folder: str = folder) -> Sequence[Variant]:
                return [tuned(task, statistics, share, a.seconds, Path(folder)) for share in a.tune]

            rows = measure(task, VARIANTS, a.threads, a.rounds, more)
        print_table(f"{name}: bytes, time, accuracy", rows)
        result += [{"task": name, **row} for row in rows]
        if a.json:
            a.json.write_text(json.dumps({"environment": environment(), "rows": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
