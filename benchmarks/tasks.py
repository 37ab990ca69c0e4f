"""Real models on real tasks: the accuracy of each recipe against float and on the task, next to quantize_dynamic.

python benchmarks/tasks.py MODELS_FOLDER DATA_FOLDER [--tasks dtln imdb ...] [--rows GLOB ...] [--time ROUNDS]

* dtln: speech enhancement; noise is added to the second half of silero_vad/test.wav. SQNR of the mask of model 1 and of
  the signal of model 2 (both with inputs from the float models), of the enhanced signal of the two in a row, and that
  signal's scale-invariant signal to distortion ratio to the speech without noise. Calibrated on the first half with
  other noise.
* silero_vad: voice activity of the first half of test.wav, with carried states: SQNR of probabilities and states, mean
  probability, share of decisions as in float. Calibrated on chunks of the second half.
* imdb, imdb_gru: accuracy over reviews, SQNR of probabilities, share of decisions as in float, for an LSTM and a GRU.
  Calibrated on reviews of train.npz.
* rnnoise: noise suppression by three GRUs with unbounded states: SQNR of gains, voice activity and final states over
  all frames, and of the gains of the first and the last sixth. Calibrated on the first tenth.
* gtcrn: speech enhancement by 14 GRUs, frame by frame with three caches: SQNR of spectra and caches on the first half
  of test.wav. Calibrated on frames of the second half.
"""

from __future__ import annotations

import abc
import argparse
import json
import time
import wave
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime as ort
from support.layers import Array
from support.reporting import report
from support.variants import FLOAT, VARIANTS, Built, Outputs, Variant, build, chosen, run, stream

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.timing import bound_run, take_turns

Feeds = dict[str, Array]
Sessions = Mapping[str, ort.InferenceSession]
SAMPLE_RATE = 16000
NOISE_DB = 5.0


def speech(path: Path) -> Array:
    """Returns float32 samples in -1 .. 1 of a mono file with 16,000 samples per second."""
    with wave.open(str(path)) as reader:
        if (reader.getframerate(), reader.getnchannels(), reader.getsampwidth()) != (SAMPLE_RATE, 1, 2):
            raise ValueError(f"{path}: not mono with 16 bits and {SAMPLE_RATE} samples a second")
        samples = np.frombuffer(reader.readframes(reader.getnframes()), np.int16)
    return (samples / np.float32(32768)).astype(np.float32)


def with_noise(samples: Array, seed: int, snr_db: float = NOISE_DB) -> Array:
    """Adds seeded noise to the samples, whose power decreases with the frequency; returns float32."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(len(samples)))
    noise = np.fft.irfft(spectrum / np.sqrt(np.arange(1, len(spectrum) + 1)), len(samples))
    gain = np.sqrt(np.mean(np.square(samples, dtype=np.float64)) / np.mean(noise**2) * 10 ** (-snr_db / 10))
    return np.asarray(samples + gain * noise, np.float32)


def si_sdr_db(clean: Array, estimate: Array) -> float:
    """Returns the scale-invariant signal to distortion ratio in dB."""
    wanted, got = clean.astype(np.float64), estimate.astype(np.float64)
    target = wanted * (got @ wanted) / (wanted @ wanted)
    return 10 * float(np.log10((target @ target) / ((got - target) @ (got - target))))


def level(reference: Array, value: Array) -> float | str:
    """Returns the SQNR in dB; "equal" if nothing differs."""
    reached = sqnr_db(reference, value)
    return "equal" if reached == np.inf else reached


def agreement(reference: Array, value: Array) -> str:
    """Returns the share of equal decisions at 0.5, in percent."""
    return f"{100 * float(np.mean((reference > 0.5) == (value > 0.5))):.2f} %"


class Task(abc.ABC):
    """A task: one or more models, calibration data and test data.

    Attributes:
        models: Files by name.
        carried: By model, for each state input the output that feeds it in the next call.
    """

    name: str
    models: dict[str, Path]
    carried: dict[str, dict[str, str]]

    @abc.abstractmethod
    def calibration(self, floats: Sessions) -> dict[str, list[Feeds]]:
        """Returns feeds by model, in the order of calls."""

    def timed(self, first: Feeds) -> Feeds:
        """Returns the call to time, derived from the first one of the calibration."""
        return first

    @abc.abstractmethod
    def outputs(self, sessions: Sessions) -> Outputs:
        """Returns the outputs of the sessions on the test data."""

    @abc.abstractmethod
    def figures(self, reference: Outputs, outputs: Outputs) -> dict[str, Any]:
        """Returns the columns of the table."""


class Dtln(Task):
    """Speech enhancement by two streaming models, framed as in its README: 512 samples, shifted by 128."""

    name = "dtln"
    FRAME, SHIFT, CALIBRATION_FRAMES = 512, 128, 3500
    ZERO = np.zeros((1, 2, 128, 2), np.float32)

    def __init__(self, models: Path, data: Path, scale: float) -> None:
        self.carried = {"model_1": {"input_3": "tf_op_layer_stack_2"}, "model_2": {"input_5": "tf_op_layer_stack_5"}}
        self.models = {name: models / "dtln" / f"{name}.onnx" for name in self.carried}
        samples = speech(models / "silero_vad" / "test.wav")
        half = len(samples) // 2
        self.clean = samples[half : half + int(half * scale)]
        self.noisy = with_noise(self.clean, 0)
        self.other = with_noise(samples[:half], 1)
        self.calibration_frames = max(1, int(self.CALIBRATION_FRAMES * scale))
        self.given: dict[str, list[Feeds]] = {}

    def frames(self, samples: Array) -> Array:
        """Returns frames `[N,512]`."""
        starts = range(0, len(samples) - self.FRAME + 1, self.SHIFT)
        return np.stack([samples[k : k + self.FRAME] for k in starts])

    def first_feeds(self, frames: Array) -> list[Feeds]:
        """Returns magnitudes for model 1."""
        magnitudes = np.abs(np.fft.rfft(frames)).astype(np.float32)
        return [{"input_2": m[None, None]} for m in magnitudes]

    def second_feeds(self, frames: Array, mask: Array) -> list[Feeds]:
        """Returns masked frames, back in the time domain, for model 2."""
        masked = np.fft.irfft(np.fft.rfft(frames) * mask.reshape(len(frames), -1)).astype(np.float32)
        return [{"input_4": m[None, None]} for m in masked]

    def _stream(self, session: ort.InferenceSession, model: str, feeds: Sequence[Feeds]) -> Outputs:
        carried = self.carried[model]
        return stream(session, feeds, dict.fromkeys(carried, self.ZERO), carried)

    def calibration(self, floats: Sessions) -> dict[str, list[Feeds]]:
        """Returns feeds from the first half, with other noise."""
        return self.calls(floats, self.frames(self.other)[: self.calibration_frames])

    def calls(self, floats: Sessions, frames: Array) -> dict[str, list[Feeds]]:
        """Returns the feeds of frames `[N,512]` by model; those of model 2 follow from the float model 1."""
        first = self.first_feeds(frames)
        mask = self._stream(floats["model_1"], "model_1", first)["activation_2"]
        return {"model_1": first, "model_2": self.second_feeds(frames, mask)}

    def outputs(self, sessions: Sessions) -> Outputs:
        """Returns mask and signal of each model alone, and the enhanced signal of both."""
        frames = self.frames(self.noisy)
        one = self._stream(sessions["model_1"], "model_1", self.first_feeds(frames))
        following = self.second_feeds(frames, one["activation_2"])
        two = self._stream(sessions["model_2"], "model_2", following)
        self.given.setdefault("model_2", following)  # the float models come first
        alone = self._stream(sessions["model_2"], "model_2", self.given["model_2"])
        return {
            "mask": one["activation_2"],
            "states": one["tf_op_layer_stack_2"],
            "signal": alone["conv1d_3"],
            "enhanced": self.overlapped(two["conv1d_3"]),
        }

    def overlapped(self, blocks: Array) -> Array:
        """Returns the sum of the overlapping blocks."""
        result = np.zeros((len(blocks) - 1) * self.SHIFT + self.FRAME)
        for k, block in enumerate(blocks.reshape(len(blocks), self.FRAME)):
            result[k * self.SHIFT : k * self.SHIFT + self.FRAME] += block
        return result

    def figures(self, reference: Outputs, outputs: Outputs) -> dict[str, Any]:
        """Returns SQNR of mask, states, signal and enhanced signal; SI-SDR."""
        levels = {f"{name} dB": level(reference[name], outputs[name]) for name in reference}
        return {**levels, "SI-SDR dB": f"{si_sdr_db(self.clean[: len(outputs['enhanced'])], outputs['enhanced']):.3f}"}


class Silero(Task):
    """Voice activity detection in chunks of 512 samples, each with the 64 before it."""

    name = "silero_vad"
    CHUNK, CONTEXT, CALIBRATION_CHUNKS = 512, 64, 400

    def __init__(self, models: Path, data: Path, scale: float) -> None:
        folder, self.carried = models / "silero_vad", {"model": {"state": "stateN"}}
        self.models = {"model": folder / "silero_vad_16k_op15.onnx"}
        samples = speech(folder / "test.wav")
        half = len(samples) // 2
        self.measured = samples[: int(half * scale)]
        self.other = samples[half:]
        self.calibration_chunks = max(1, int(self.CALIBRATION_CHUNKS * scale))

    def feeds(self, samples: Array) -> list[Feeds]:
        """Returns one call for each whole chunk."""
        padded = np.concatenate([np.zeros(self.CONTEXT, np.float32), samples])
        rate = np.array(SAMPLE_RATE, np.int64)
        starts = range(0, len(samples) - self.CHUNK + 1, self.CHUNK)
        return [{"input": padded[None, k : k + self.CONTEXT + self.CHUNK], "sr": rate} for k in starts]

    def calibration(self, floats: Sessions) -> dict[str, list[Feeds]]:
        """Returns chunks of the second half."""
        feeds = self.feeds(self.other)[: self.calibration_chunks]
        first = {"state": np.zeros((2, 1, 128), np.float32)}
        return {"model": [{**feeds[0], **first}, *feeds[1:]]}

    def outputs(self, sessions: Sessions) -> Outputs:
        """Returns probabilities and states."""
        state = {"state": np.zeros((2, 1, 128), np.float32)}
        return stream(sessions["model"], self.feeds(self.measured), state, self.carried["model"])

    def figures(self, reference: Outputs, outputs: Outputs) -> dict[str, Any]:
        """Returns SQNR, mean probability, decisions."""
        return {
            "probability dB": level(reference["output"], outputs["output"]),
            "states dB": level(reference["stateN"], outputs["stateN"]),
            "mean": f"{float(outputs['output'].mean()):.4f}",
            "largest difference": f"{float(np.abs(outputs['output'] - reference['output']).max()):.4f}",
            "agreement": agreement(reference["output"], outputs["output"]),
        }


class Imdb(Task):
    """Sentiment of reviews of 500 tokens."""

    name, FILE = "imdb", "imdb_lstm_torch.onnx"
    BATCH, CALIBRATION_BATCH, CALIBRATION_REVIEWS = 250, 10, 100

    def __init__(self, models: Path, data: Path, scale: float) -> None:
        self.models, self.carried = {"model": models / "vitis_rnn" / self.FILE}, {"model": {}}
        with np.load(data / "imdb" / "test.npz") as arrays:
            count = max(1, int(len(arrays["label"]) * scale))
            self.tokens, self.labels = arrays["tokens"][:count].astype(np.int64), arrays["label"][:count]
        with np.load(data / "imdb" / "train.npz") as arrays:
            count = max(1, int(self.CALIBRATION_REVIEWS * scale))
            self.other = arrays["tokens"][:count].astype(np.int64)

    def calibration(self, floats: Sessions) -> dict[str, list[Feeds]]:
        """Returns reviews of the training data."""
        starts = range(0, len(self.other), self.CALIBRATION_BATCH)
        return {"model": [{"tokens": self.other[k : k + self.CALIBRATION_BATCH]} for k in starts]}

    def timed(self, first: Feeds) -> Feeds:
        """Returns one review."""
        return {k: a[:1] for k, a in first.items()}

    def outputs(self, sessions: Sessions) -> Outputs:
        """Returns probabilities."""
        starts = range(0, len(self.tokens), self.BATCH)
        results = [run(sessions["model"], {"tokens": self.tokens[k : k + self.BATCH]})["prob"] for k in starts]
        return {"prob": np.concatenate(results)}

    def figures(self, reference: Outputs, outputs: Outputs) -> dict[str, Any]:
        """Returns SQNR, accuracy, decisions."""
        return {
            "probability dB": level(reference["prob"], outputs["prob"]),
            "accuracy": f"{100 * float(np.mean((outputs['prob'] > 0.5) == self.labels)):.2f} %",
            "agreement": agreement(reference["prob"], outputs["prob"]),
            "mean difference": f"{float(np.abs(outputs['prob'] - reference['prob']).mean()):.5f}",
        }


class ImdbGru(Imdb):
    """The same with a GRU."""

    name, FILE = "imdb_gru", "imdb_gru_torch.onnx"


class Rnnoise(Task):
    """Noise suppression by three GRUs over 6,000 frames in one call."""

    name = "rnnoise"
    PARTS, CALIBRATION_PART = 6, 10
    STATES: ClassVar = {"vad_h": 24, "noise_h": 48, "denoise_h": 96}

    def __init__(self, models: Path, data: Path, scale: float) -> None:
        folder, self.carried = models / "rnnoise", {"model": {}}
        self.models = {"model": folder / "rnnoise.onnx"}
        with np.load(folder / "features_test_wav.npz") as arrays:
            features = arrays["features"].astype(np.float32)
        self.features = features[: max(self.CALIBRATION_PART, int(len(features) * scale))]

    def _feeds(self, features: Array) -> Feeds:
        return {"features": features} | {k: np.zeros((1, 1, n), np.float32) for k, n in self.STATES.items()}

    def calibration(self, floats: Sessions) -> dict[str, list[Feeds]]:
        """Returns the first tenth of the frames."""
        return {"model": [self._feeds(self.features[: len(self.features) // self.CALIBRATION_PART])]}

    def timed(self, first: Feeds) -> Feeds:
        """Returns one frame."""
        return {k: a[:1] for k, a in first.items()}

    def outputs(self, sessions: Sessions) -> Outputs:
        """Returns gains, voice activity, final states."""
        return run(sessions["model"], self._feeds(self.features))

    def figures(self, reference: Outputs, outputs: Outputs) -> dict[str, Any]:
        """Returns the SQNR of all outputs, and of the gains at the beginning and at the end."""
        part = len(self.features) // self.PARTS
        levels = {f"{name} dB": level(reference[name], outputs[name]) for name in reference}
        pieces = {"first gains dB": slice(None, part), "last gains dB": slice(-part, None)}
        return {**levels, **{k: level(reference["gains"][p], outputs["gains"][p]) for k, p in pieces.items()}}


class Gtcrn(Task):
    """Speech enhancement frame by frame: spectra of 512 samples under the root of a Hann window, shifted by 256."""

    name = "gtcrn"
    FRAME, SHIFT, CALIBRATION_FRAMES = 512, 256, 200
    CACHES: ClassVar = {"conv_cache": (2, 1, 16, 16, 33), "tra_cache": (2, 3, 1, 1, 16), "inter_cache": (2, 1, 33, 16)}

    def __init__(self, models: Path, data: Path, scale: float) -> None:
        self.models = {"model": models / "gtcrn" / "gtcrn_simple.onnx"}
        self.carried = {"model": {k: f"{k}_out" for k in self.CACHES}}
        samples = speech(models / "silero_vad" / "test.wav")
        half = len(samples) // 2
        self.measured, self.other = samples[: int(half * scale)], samples[half:]
        self.calibration_frames = max(1, int(self.CALIBRATION_FRAMES * scale))

    def feeds(self, samples: Array) -> list[Feeds]:
        """Returns one call for each frame."""
        window = np.sqrt(np.hanning(self.FRAME + 1)[:-1])
        starts = range(0, len(samples) - self.FRAME + 1, self.SHIFT)
        spectra = (np.fft.rfft(samples[k : k + self.FRAME] * window) for k in starts)
        return [{"mix": np.stack([z.real, z.imag], -1).astype(np.float32)[None, :, None]} for z in spectra]

    def _zeros(self) -> Feeds:
        return {k: np.zeros(shape, np.float32) for k, shape in self.CACHES.items()}

    def calibration(self, floats: Sessions) -> dict[str, list[Feeds]]:
        """Returns frames of the second half."""
        feeds = self.feeds(self.other)[: self.calibration_frames]
        return {"model": [{**feeds[0], **self._zeros()}, *feeds[1:]]}

    def outputs(self, sessions: Sessions) -> Outputs:
        """Returns spectra and caches."""
        return stream(sessions["model"], self.feeds(self.measured), self._zeros(), self.carried["model"])

    def figures(self, reference: Outputs, outputs: Outputs) -> dict[str, Any]:
        """Returns the SQNR of all outputs."""
        return {f"{name} dB": level(reference[name], outputs[name]) for name in reference}


Made = type[Dtln] | type[Silero] | type[Imdb] | type[Rnnoise] | type[Gtcrn]
TASKS: dict[str, Made] = {t.name: t for t in (Dtln, Silero, Imdb, ImdbGru, Rnnoise, Gtcrn)}


class Statistics:
    """Statistics of a task's models, computed on first use."""

    def __init__(self, task: Task, floats: Sessions) -> None:
        self._task, self._floats = task, floats
        self._feeds: dict[str, list[Feeds]] = {}
        self._made: dict[str, Any] = {}

    def feeds(self, name: str) -> list[Feeds]:
        """Returns the calibration calls of one model."""
        self._feeds = self._feeds or self._task.calibration(self._floats)
        return self._feeds[name]

    def call(self, name: str) -> Feeds:
        """Returns the call of one model to time."""
        return self._task.timed(self.feeds(name)[0])

    def state(self, name: str) -> Feeds:
        """Returns zeros for the states of one model; an open batch dimension has one row."""
        shapes = {i.name: [d if isinstance(d, int) else 1 for d in i.shape] for i in self._floats[name].get_inputs()}
        return {k: np.zeros(shapes[k], np.float32) for k in self._task.carried[name]}

    def of(self, name: str) -> Any:
        """Returns the statistics of one model."""
        if name not in self._made:
            feeds = self.feeds(name)
            start, model = time.perf_counter(), str(self._task.models[name])
            self._made[name] = rnnqc.calibrate(model, feeds, state=self._task.carried[name])
            seconds = time.perf_counter() - start
            print(f"{self._task.name}: {name} calibrated with {len(feeds)} calls in {seconds:.0f} s")
        return self._made[name]


def _of(statistics: Statistics | None, name: str) -> Any:
    assert statistics is not None, "the float model is the first variant"
    return statistics.of(name)


def add_times(rows: list[dict[str, Any]], calls: Sequence[Mapping[str, Callable[[], None]]], rounds: int) -> None:
    """Adds microseconds per call, for all models of the task together, and the speed relative to float.

    Args:
        rows: One for each variant, the first for the float model.
        calls: By variant, a call of each model.
        rounds: The number of turns; the shortest run counts.
    """
    took = take_turns({f"{k} {n}": run for k, made in enumerate(calls) for n, run in made.items()}, rounds)
    sums = [sum(1e6 * min(took[f"{k} {name}"]) for name in made) for k, made in enumerate(calls)]
    for row, microseconds in zip(rows, sums, strict=True):
        row |= {"us": f"{microseconds:.1f}", "float / us": f"{sums[0] / microseconds:.2f}"}


def measure(
    task: Task,
    variants: Sequence[Variant],
    threads: int,
    rounds: int = 0,
    more: Callable[[Statistics], Iterable[Variant]] = lambda _: (),
) -> list[dict[str, Any]]:
    """Returns one row for each variant; the first is the float model. With `rounds` rows have times, measured in turns.

    `more` makes further variants from the statistics.
    """
    calls: list[dict[str, Callable[[], None]]] = []
    protos = {name: onnx.load(path) for name, path in task.models.items()}
    rows: list[dict[str, Any]] = []
    reference: Outputs = {}
    statistics: Statistics | None = None

    def all_variants() -> Iterator[Variant]:
        yield from variants
        assert statistics is not None, "the float model is the first variant"
        yield from more(statistics)

    for variant in all_variants():
        built: dict[str, Built] = {}
        for name, proto in protos.items():
            built[name] = build(variant, proto, partial(_of, statistics, name), threads)
        sessions = {name: b.session for name, b in built.items()}
        outputs = task.outputs(sessions)
        if statistics is None:
            reference, statistics = outputs, Statistics(task, sessions)
        sizes = [b.kilobytes for b in built.values() if b.kilobytes is not None]
        if rounds:
            calls.append({n: bound_run(s, {**statistics.state(n), **statistics.call(n)}) for n, s in sessions.items()})
        rows.append(
            {
                "variant": variant.label,
                **task.figures(reference, outputs),
                "form": "+".join(dict.fromkeys(b.form for b in built.values())),
                "kB": f"{sum(sizes):.0f}" if sizes else "",
                "file kB": f"{sum(b.file_kilobytes for b in built.values()):.0f}",
                "note": "; ".join(f"{n}: {b.note}" if len(built) > 1 else b.note for n, b in built.items() if b.note),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    if rounds:
        add_times(rows, calls, rounds)
    return rows


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS_FOLDER")
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rows", nargs="+", default=[], metavar="GLOB", help="labels; the float row is always there")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the data, for short runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--time", type=int, default=0, metavar="ROUNDS", help="measure the speed, too, in turns")
    parser.add_argument("--json", type=Path, help="one file for each task, its name before the suffix")
    a = parser.parse_args()
    variants = chosen(a.rows)
    assert variants[0] == VARIANTS[0] == Variant(FLOAT)
    for name in a.tasks:
        rows = measure(TASKS[name](a.models, a.data, a.scale), variants, a.threads, a.time)
        report(f"{name}: against float", rows, a.json and a.json.with_suffix(f".{name}{a.json.suffix}"))


if __name__ == "__main__":
    main()
