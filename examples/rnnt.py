"""The prediction network and joint of an RNN transducer, quantized: greedy decoding, one symbol at a time.

    python examples/rnnt.py [--batch 8] [--frames 40] [-o FOLDER]

What speech recognizers run for every symbol they find: an embedding of the last symbol, two LSTM layers whose states
go on, and a joint with the encoder's frame. The sizes are those of a Parakeet model (1025 symbols, of which the last is
blank, and 5 durations); the weights are random, as an encoder's frames are here. A trained network goes the same way:
export it with states as inputs and outputs, and call `rnnqc.lower(..., rest="int8")`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import rnnqc

Array = npt.NDArray[np.float32]
SYMBOLS, DURATIONS, UNITS, LAYERS = 1025, 5, 640, 2
BLANK = SYMBOLS - 1
MOST_SYMBOLS = 3
"""Per frame."""


def prediction_network(seed: int = 0) -> onnx.ModelProto:
    """Tokens `[1,B]`, encoder frames `[B,640]`, states `[2,B,640]` to logits `[B,1030]` and the next states."""
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    stored = {
        "embedding": rng.standard_normal((SYMBOLS, UNITS)).astype(np.float32),
        "joint": weight(SYMBOLS + DURATIONS, UNITS).T,
        "joint_bias": weight(SYMBOLS + DURATIONS),
        "axis": np.array([0], np.int64),
        "directions": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "token"], ["x0"], name="embed"),
        helper.make_node("Split", ["h"], ["h_0", "h_1"], axis=0),
        helper.make_node("Split", ["c"], ["c_0", "c_1"], axis=0),
    ]
    for k in range(LAYERS):
        stored |= {f"W{k}": weight(1, 4 * UNITS, UNITS), f"R{k}": weight(1, 4 * UNITS, UNITS)}
        stored[f"B{k}"] = 0.1 * weight(1, 8 * UNITS)
        inputs = [f"x{k}", f"W{k}", f"R{k}", f"B{k}", "", f"h_{k}", f"c_{k}"]
        outputs = [f"Y{k}", f"h_next_{k}", f"c_next_{k}"]
        nodes.append(helper.make_node("LSTM", inputs, outputs, name=f"lstm{k}", hidden_size=UNITS))
        nodes.append(helper.make_node("Squeeze", [f"Y{k}", "directions"], [f"x{k + 1}"]))
    nodes += [
        helper.make_node("Concat", ["h_next_0", "h_next_1"], ["h_next"], axis=0),
        helper.make_node("Concat", ["c_next_0", "c_next_1"], ["c_next"], axis=0),
        helper.make_node("Squeeze", [f"x{LAYERS}", "axis"], ["predicted"]),
        helper.make_node("Add", ["frame", "predicted"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["active"]),
        helper.make_node("MatMul", ["active", "joint"], ["scores"], name="joint"),
        helper.make_node("Add", ["scores", "joint_bias"], ["logits"]),
    ]
    value, states = helper.make_tensor_value_info, [LAYERS, "B", UNITS]
    graph = helper.make_graph(
        nodes, "prediction_network",
        [value("token", TensorProto.INT64, [1, "B"]), value("frame", TensorProto.FLOAT, ["B", UNITS]),
         value("h", TensorProto.FLOAT, states), value("c", TensorProto.FLOAT, states)],
        [value("logits", TensorProto.FLOAT, ["B", SYMBOLS + DURATIONS]),
         value("h_next", TensorProto.FLOAT, states), value("c_next", TensorProto.FLOAT, states)],
        [numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def frames_of(count: int, batch: int, seed: int = 1) -> Array:
    """Frames of an encoder, `[count,batch,640]`: neighbours are alike."""
    noise = np.random.default_rng(seed).standard_normal((count, batch, UNITS)).astype(np.float32)
    return np.asarray((noise + np.roll(noise, 1, 0) + np.roll(noise, 2, 0)) / np.sqrt(3.0), np.float32)


def decode(session: ort.InferenceSession, frames: Array) -> tuple[list[list[int]], Array, float]:
    """Greedy decoding of a batch: symbols of each row, logits of all calls, and microseconds a call.

    A row goes on with the state of the last symbol that it found; blank changes nothing.
    """
    batch = frames.shape[1]
    token = np.full((1, batch), BLANK, np.int64)
    h, c = (np.zeros((LAYERS, batch, UNITS), np.float32) for _ in range(2))
    found: list[list[int]] = [[] for _ in range(batch)]
    logits, spent = [], 0.0
    for frame in frames:
        for _ in range(MOST_SYMBOLS):
            start = time.perf_counter()
            scores, h_next, c_next = session.run(None, {"token": token, "frame": frame, "h": h, "c": c})
            spent += time.perf_counter() - start
            logits.append(scores)
            best = scores[:, :SYMBOLS].argmax(-1)
            new = best != BLANK
            for row in np.flatnonzero(new):
                found[row].append(int(best[row]))
            token = np.where(new, best, token)
            h, c = (np.where(new[None, :, None], a, b) for a, b in ((h_next, h), (c_next, c)))
            if not new.any():
                break
    return found, np.stack(logits), 1e6 * spent / len(logits)


def main() -> None:
    """Lower, decode with both, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("-o", "--output", type=Path, default=Path("demo"))
    a = parser.parse_args()
    a.output.mkdir(exist_ok=True, parents=True)
    model = prediction_network()
    onnx.save(model, a.output / "rnnt.onnx")
    lowered = rnnqc.lower(model, rest="int8")
    lowered.save(a.output / "rnnt.int8.onnx")
    frames = frames_of(a.frames, a.batch)
    expected, reference, float_us = decode(rnnqc.session(model), frames)
    symbols, logits, us = decode(rnnqc.session(lowered.proto), frames)
    count = min(len(reference), len(logits))
    same = sum(x == y for row, other in zip(expected, symbols, strict=True) for x, y in zip(row, other, strict=False))
    noise = np.sum((reference[:1].astype(np.float64) - logits[:1]) ** 2)
    print(f"file: {model.ByteSize() / 1e6:.1f} MB -> {lowered.proto.ByteSize() / 1e6:.1f} MB")
    print(f"one symbol, batch {a.batch}: {float_us:.0f} us -> {us:.0f} us, {float_us / us:.2f}x")
    print(f"symbols as in float: {same} of {sum(map(len, expected))}, in {count} calls")
    print(f"logits of the first call: {10 * np.log10(np.sum(reference[:1].astype(np.float64) ** 2) / noise):.1f} dB")


if __name__ == "__main__":
    main()
