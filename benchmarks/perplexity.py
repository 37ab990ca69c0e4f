"""WikiText-2 perplexity of a language model with quantized LSTM layers; in rows "rest int8" all layers are quantized.

python benchmarks/perplexity.py MODELS_FOLDER DATA_FOLDER [--rows GLOB ...] [--limit STEPS] [--json OUT.json] [--resume]

MODELS_FOLDER has wikitext2_lm/wikitext2_lm.onnx: tokens [T,B] and states h0, c0 to logits [T,B,V], hn, cn.
DATA_FOLDER has wikitext-2/{train,valid,test,vocab}.txt. The texts are read as 10 streams of equal length in pieces of
35 steps, with carried states; calibration uses pieces of the training text.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, utils
from support.layers import IR_VERSION, OPSET, Array
from support.reporting import report
from support.variants import FLOAT, VARIANTS, Variant, build, chosen, plain_session, run

import rnnqc
from rnnqc.timing import session_options

BATCH, STEPS = 10, 35
TEXTS = ("valid", "test")
CARRIED = {"h0": "hn", "c0": "cn"}
LOG_LIKELIHOOD, TARGETS = "log_likelihood", "targets"
BLOCK = 512
CHECKED_PIECES = 3
ALLOWED_DIFFERENCE = 1e-4


def read_ids(folder: Path, text: str) -> Array:
    """Returns the token ids of a text, with `<eos>` at the end of each line."""
    numbers = {word: k for k, word in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))}
    lines = (folder / f"{text}.txt").read_text(encoding="utf-8").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    return np.array([numbers[word] for line in lines for word in (*line.split(), "<eos>")], np.int64)


def streams(ids: Array, batch: int = BATCH) -> Array:
    """Returns `[N,batch]`: column b is the b-th part of the text, without the remainder that fills no row."""
    length = len(ids) // batch
    return np.ascontiguousarray(ids[: length * batch].reshape(batch, length).T)


def pieces(columns: Array, limit: int | None = None) -> Iterator[tuple[Array, Array]]:
    """Yields tokens and the next tokens, `[T,B]` each, 35 steps at most; `limit` counts steps."""
    last = len(columns) - 1 if limit is None else min(limit, len(columns) - 1)
    for start in range(0, last, STEPS):
        stop = min(start + STEPS, last)
        yield columns[start:stop], columns[start + 1 : stop + 1]


class Split:
    """A language model in two parts: from tokens to the decoder's input, and on to the log-likelihood of given tokens.

    The decoder, which takes nearly all of the time, is the same float arithmetic for every variant. It processes the
    vocabulary in blocks, so that logits stay in the cache.

    Attributes:
        whole: The model.
        recurrent: Model from tokens, h0, c0 to `hidden`, hn, cn.
        decoder: Model from `hidden` and targets `[T,B]` to `log_likelihood` `[T,B]`.
        hidden: Name of the value between them.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.whole = model
        made_by = {name: node for node in model.graph.node for name in node.output}
        stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        add = made_by["logits"]
        product = next(made_by[name] for name in add.input if name in made_by)
        if (add.op_type, product.op_type) != ("Add", "MatMul"):
            raise ValueError(f"logits come from {product.op_type} and {add.op_type} instead of MatMul and Add")
        self.hidden, matrix = product.input
        weights = stored[matrix] if matrix in stored else stored[made_by[matrix].input[0]].T
        bias = next(stored[name] for name in add.input if name in stored)
        extractor = utils.Extractor(onnx.shape_inference.infer_shapes(model))
        self.recurrent = extractor.extract_model(["tokens", *CARRIED], [self.hidden, *CARRIED.values()])
        self.decoder = _decoder(self.hidden, weights, bias)


def _decoder(hidden: str, weights: Array, bias: Array) -> onnx.ModelProto:
    """Log-likelihood h w_t + b_t - log(sum over v of exp(h w_v) exp(b_v)); logits are below 88, where exp overflows."""
    stored = {"by_token": weights.T, "bias": bias, "last_axis": np.array([-1], np.int64)}
    nodes, sums = [], []
    for start in range(0, weights.shape[1], BLOCK):
        columns, name = slice(start, start + BLOCK), f"_{start}"
        stored |= {f"W{name}": weights[:, columns], f"factor{name}": np.exp(bias[columns])[:, None]}
        nodes += [
            helper.make_node("MatMul", [hidden, f"W{name}"], [f"logits{name}"]),
            helper.make_node("Exp", [f"logits{name}"], [f"exp{name}"]),
            helper.make_node("MatMul", [f"exp{name}", f"factor{name}"], [f"sum{name}"]),
        ]
        sums.append(f"sum{name}")
    nodes += [
        helper.make_node("Sum", sums, ["sum"]),
        helper.make_node("Log", ["sum"], ["log_sum"]),
        helper.make_node("Squeeze", ["log_sum", "last_axis"], ["log_total"]),
        helper.make_node("Gather", ["by_token", TARGETS], ["rows"]),
        helper.make_node("Gather", ["bias", TARGETS], ["target_bias"]),
        helper.make_node("Mul", [hidden, "rows"], ["products"]),
        helper.make_node("ReduceSum", ["products", "last_axis"], ["product"], keepdims=0),
        helper.make_node("Add", ["product", "target_bias"], ["logit"]),
        helper.make_node("Sub", ["logit", "log_total"], [LOG_LIKELIHOOD]),
    ]
    inputs = [
        helper.make_tensor_value_info(hidden, TensorProto.FLOAT, ["T", "B", weights.shape[0]]),
        helper.make_tensor_value_info(TARGETS, TensorProto.INT64, ["T", "B"]),
    ]
    outputs = [helper.make_tensor_value_info(LOG_LIKELIHOOD, TensorProto.FLOAT, ["T", "B"])]
    initializers = [onnx.numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in stored.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def whole_model_difference(model: onnx.ModelProto, split: Split, columns: Array) -> float:
    """Returns the largest log-likelihood difference between the split and the whole float model on the first pieces."""
    whole, recurrent, decoder = (plain_session(m, session_options(2)) for m in (model, split.recurrent, split.decoder))
    states, worst = zero_states(split.recurrent, columns.shape[1]), 0.0
    for tokens, targets in pieces(columns, CHECKED_PIECES * STEPS):
        logits = run(whole, {"tokens": tokens, **states})["logits"].astype(np.float64)
        log_sum = np.log(np.exp(logits).sum(axis=-1))
        wanted = np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - log_sum
        got = run(recurrent, {"tokens": tokens, **states})
        states = {name: got[source] for name, source in CARRIED.items()}
        scores = run(decoder, {split.hidden: got[split.hidden], TARGETS: targets})[LOG_LIKELIHOOD]
        worst = max(worst, float(np.abs(scores - wanted).max()))
    return worst


def zero_states(model: onnx.ModelProto, batch: int = BATCH) -> dict[str, Array]:
    """Returns zeros for h0 and c0."""
    sizes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: np.zeros((sizes[name][0], batch, sizes[name][2]), np.float32) for name in CARRIED}


def perplexity(
    recurrent: ort.InferenceSession,
    decoder: ort.InferenceSession,
    hidden: str,
    columns: Array,
    states: dict[str, Array],
    limit: int | None = None,
) -> tuple[float, float]:
    """Returns the perplexity over all predicted tokens, and the seconds spent in the recurrent part."""
    total, count, seconds = 0.0, 0, 0.0
    for tokens, targets in pieces(columns, limit):
        start = time.perf_counter()
        got = run(recurrent, {"tokens": tokens, **states})
        seconds += time.perf_counter() - start
        states = {name: got[source] for name, source in CARRIED.items()}
        scores = run(decoder, {hidden: got[hidden], TARGETS: targets})[LOG_LIKELIHOOD]
        total -= float(scores.sum(dtype=np.float64))
        count += targets.size
    return math.exp(total / count), seconds


def whole_perplexity(
    session: ort.InferenceSession, columns: Array, states: dict[str, Array], limit: int | None = None
) -> tuple[float, float]:
    """Does the same for a whole model, from its logits."""
    total, count, seconds = 0.0, 0, 0.0
    for tokens, targets in pieces(columns, limit):
        start = time.perf_counter()
        got = run(session, {"tokens": tokens, **states})
        seconds += time.perf_counter() - start
        states = {name: got[source] for name, source in CARRIED.items()}
        logits = got["logits"]
        log_sum = np.log(np.exp(logits).sum(axis=-1, dtype=np.float64))
        total -= float((np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] - log_sum).sum())
        count += targets.size
    return math.exp(total / count), seconds


class Statistics:
    """Statistics of the training text, computed on first use."""

    def __init__(self, split: Split, folder: Path, count: int) -> None:
        self._split, self._folder, self._count = split, folder, count
        self._made: Any = None

    def __call__(self) -> Any:
        """Returns the statistics."""
        if self._made is None:
            feeds = calibration_feeds(self._split, streams(read_ids(self._folder, "train")), self._count)
            start = time.perf_counter()
            self._made = rnnqc.calibrate(self._split.recurrent, feeds, state=CARRIED)
            print(f"calibrated on {self._count} x {BATCH} x {STEPS} tokens in {time.perf_counter() - start:.0f} s")
        return self._made


def calibration_feeds(split: Split, columns: Array, count: int) -> list[dict[str, Array]]:
    """Returns the first `count` pieces of the training text; the states of the first are zeros."""
    feeds = [{"tokens": tokens} for tokens, _ in pieces(columns, count * STEPS)]
    return [{**feeds[0], **zero_states(split.recurrent)}, *feeds[1:]]


def measure(
    variant: Variant, split: Split, texts: dict[str, Array], statistics: Statistics, threads: int, limit: int | None
) -> dict[str, Any]:
    """Measures one row; runs the whole model if its decoder is quantized, too."""
    is_whole = variant.rest != "float"
    built = build(variant, split.whole if is_whole else split.recurrent, statistics, threads)
    decoder = plain_session(split.decoder, session_options(threads))
    row: dict[str, Any] = {"model": variant.label}
    seconds = 0.0
    for text, columns in texts.items():
        states = zero_states(split.recurrent)
        if is_whole:
            row[text], spent = whole_perplexity(built.session, columns, states, limit)
        else:
            row[text], spent = perplexity(built.session, decoder, split.hidden, columns, states, limit)
        seconds += spent
    size = f"{built.kilobytes:.0f}" if built.kilobytes is not None else ""
    return {**row, "form": built.form, "kB": size, "recurrent s": round(seconds, 1)}


def with_losses(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds the increase over the float row, in percent, to the rows; perplexities to five digits."""
    reference = next((r for r in rows if r["model"] == FLOAT), None)
    result = []
    for row in rows:
        shown = {"model": row["model"]}
        for text in (t for t in TEXTS if t in row):
            shown[text] = f"{row[text]:.3f}"
            if reference is not None:
                shown[f"{text} loss"] = f"{100 * (row[text] / reference[text] - 1):+.3f} %"
        result.append({**shown, **{k: v for k, v in row.items() if k not in (*TEXTS, "model")}})
    return result


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS_FOLDER")
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--rows", nargs="+", default=[], metavar="GLOB", help="labels; the float row is always there")
    parser.add_argument("--limit", type=int, metavar="STEPS", help="that many steps of every text")
    parser.add_argument("--calibration", type=int, default=40, metavar="N", help="pieces of training text, default 40")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=TEXTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep the rows that the JSON file has")
    a = parser.parse_args()
    model = onnx.load(a.models / "wikitext2_lm" / "wikitext2_lm.onnx")
    split, folder = Split(model), a.data / "wikitext-2"
    texts = {text: streams(read_ids(folder, text)) for text in a.texts}
    difference = whole_model_difference(model, split, next(iter(texts.values())))
    print(f"log-likelihoods of the split model differ by at most {difference:.2g} from those of the whole one")
    if difference > ALLOWED_DIFFERENCE:
        raise SystemExit("the split model is not the whole model")
    statistics = Statistics(split, folder, a.calibration)
    raw = a.json.with_suffix(".rows.json") if a.json else None
    rows = json.loads(raw.read_text()) if a.resume and raw is not None and raw.exists() else []
    for variant in chosen(a.rows):
        if variant.label in {r["model"] for r in rows}:
            continue
        rows.append(measure(variant, split, texts, statistics, a.threads, a.limit))
        print(rows[-1], flush=True)
        if raw is not None:
            raw.write_text(json.dumps(rows, indent=2) + "\n")
    order = [v.label for v in VARIANTS]
    rows.sort(key=lambda r: order.index(r["model"]))
    report(f"WikiText-2 perplexity, {BATCH} streams, pieces of {STEPS} steps", with_losses(rows), a.json)


if __name__ == "__main__":
    main()
