"""Published models with real data for some calls, from the optional folder of real models."""

from __future__ import annotations

import wave
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime as ort

from tests.runs.sessions import Array, Outputs, run

Find = Callable[[str], Path]
Feeds = dict[str, Array]
SPEECH_BEGINS = 16000
RNNOISE_STATES = {"vad": 24, "noise": 48, "denoise": 96}


@dataclass(frozen=True)
class Calls:
    """Data of some calls of a model; of streams the states are carried.

    Attributes:
        feeds: Of each call.
        state: Which output becomes which input of the next call, by the input.
        initial: The states of the first call.
        layers: How many recurrent layers the model has.
    """

    feeds: Sequence[Feeds]
    state: Mapping[str, str] = field(default_factory=dict)
    initial: Feeds = field(default_factory=dict)
    layers: int = 2

    def run(self, running: ort.InferenceSession) -> list[Outputs]:
        """The outputs of each call."""
        state, made = dict(self.initial), []
        for feed in self.feeds:
            made.append(run(running, {**feed, **state}))
            state = {name: made[-1][source] for name, source in self.state.items()}
        return made

    def outputs(self, running: ort.InferenceSession) -> Outputs:
        """Every output's values in all calls."""
        made = self.run(running)
        return {name: np.concatenate([one[name].ravel() for one in made]) for name in made[0]}


def speech(find: Find) -> Array:
    """Samples of 16 kHz in -1 .. 1."""
    with wave.open(str(find("models/silero_vad/test.wav"))) as reader:
        samples = np.frombuffer(reader.readframes(reader.getnframes()), np.int16)
    return (samples / np.float32(32768)).astype(np.float32)


def frames(find: Find, steps: int) -> Array:
    """Frames of DTLN `[steps,512]`."""
    samples = speech(find)[SPEECH_BEGINS:]
    return np.stack([samples[k * 128 : k * 128 + 512] for k in range(steps)])


def magnitudes(find: Find, steps: int) -> Array:
    """`[steps,1,1,257]`."""
    return np.abs(np.fft.rfft(frames(find, steps))).astype(np.float32)[:, None, None, :]


DTLN_STATE = np.zeros((1, 2, 128, 2), np.float32)


def dtln_1(find: Find, steps: int) -> Calls:
    feeds = [{"input_2": m} for m in magnitudes(find, steps)]
    return Calls(feeds, {"input_3": "tf_op_layer_stack_2"}, {"input_3": DTLN_STATE})


def dtln_2(find: Find, steps: int) -> Calls:
    feeds = [{"input_4": f[None, None]} for f in frames(find, steps)]
    return Calls(feeds, {"input_5": "tf_op_layer_stack_5"}, {"input_5": DTLN_STATE})


def dtln_aec(find: Find, steps: int) -> Calls:
    """The echo is what was said seven frames later, half as loud."""
    spectra = magnitudes(find, steps + 7)
    feeds = [{"input_3": spectra[k], "input_4": spectra[k + 7] / 2} for k in range(steps)]
    return Calls(feeds, {"input_5": "Identity_1"}, {"input_5": DTLN_STATE})


def silero(find: Find, steps: int, layers: int = 1) -> Calls:
    """Chunks of 512 samples, each after the last 64 of the one before, from the beginning of the file."""
    samples, rate = np.concatenate([np.zeros(64, np.float32), speech(find)]), np.array(16000, np.int64)
    feeds = [{"input": samples[None, k * 512 : k * 512 + 576], "sr": rate} for k in range(steps)]
    return Calls(feeds, {"state": "stateN"}, {"state": np.zeros((2, 1, 128), np.float32)}, layers)


def gtcrn(find: Find, steps: int) -> Calls:
    """14 GRUs, 4 of which are bidirectional; spectra frame by frame, three caches fed back."""
    samples, window = speech(find)[SPEECH_BEGINS:], np.sqrt(np.hanning(513)[:-1])
    spectra = [np.fft.rfft(samples[k * 256 : k * 256 + 512] * window) for k in range(steps)]
    feeds = [{"mix": np.stack([z.real, z.imag], -1).astype(np.float32)[None, :, None, :]} for z in spectra]
    shapes = {"conv_cache": (2, 1, 16, 16, 33), "tra_cache": (2, 3, 1, 1, 16), "inter_cache": (2, 1, 33, 16)}
    initial = {k: np.zeros(v, np.float32) for k, v in shapes.items()}
    return Calls(feeds, {k: f"{k}_out" for k in shapes}, initial, 14)


def rnnoise(find: Find, parts: Sequence[slice]) -> Calls:
    """Parts of the frames of features, a call each."""
    with np.load(find("models/rnnoise/features_test_wav.npz")) as data:
        features = data["features"].astype(np.float32).reshape(-1, 1, 42)
    initial = {f"{k}_h": np.zeros((1, 1, n), np.float32) for k, n in RNNOISE_STATES.items()}
    return Calls([{"features": features[part]} for part in parts], {k: f"{k}n" for k in initial}, initial, 3)


def byte_sb(find: Find) -> Calls:
    with np.load(find("models/byte_sb_bidi_lstm/io.npz")) as data:
        return Calls([{"input": data["input"]}])


def reviews(find: Find, count: int | None) -> tuple[Array, Array, Array]:
    """Tokens of reviews, padded in front; their lengths, and whether they are good ones."""
    with np.load(find("data/imdb/test.npz")) as data:
        tokens = data["tokens"][:count].astype(np.int64)
        return tokens, np.minimum(data["length"][:count], tokens.shape[1]).astype(np.int64), data["label"][:count]


def packed_reviews(find: Find, count: int, most: int, ordered: bool) -> Feeds:
    """The last tokens of reviews, `most` at most, padded behind; the longest one first if they are in order."""
    tokens, lengths, _ = reviews(find, count)
    lengths = np.minimum(lengths, most)
    if ordered:
        order = np.argsort(-lengths, kind="stable")
        tokens, lengths = tokens[order], lengths[order]
    padded = np.zeros((count, int(lengths.max())), np.int64)
    for row, length in enumerate(lengths):
        padded[row, :length] = tokens[row, tokens.shape[1] - length :]
    return {"tokens": padded, "lengths": lengths}
