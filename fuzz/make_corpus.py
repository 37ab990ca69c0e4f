"""Writes a seed corpus for the fuzzer: models, each with a way in turn, and the other files that commands read.

python fuzz/make_corpus.py FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnx
import onnx.parser
from command_targets import CALIBRATION, CASE, COMMANDS, Home
from target import CHOICES, WAYS, kind_of

import rnnqc
from rnnqc.cells.forms import EVERY_FORM
from rnnqc.recipes.recipe import builtin_recipes, recipe_text
from tests import generate as testing
from tests.generate.recurrences import FORMS

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "models" / "tiny"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "passes")]  # for the models that tests build


GENERATED = 400
LARGEST = 50_000


CELL = """<ir_version: 8, opset_import: ["": 17]> cell (float[B,3] x, float[B,4] h, float[B,4] c)
    => (float[B,4] h_next, float[B,4] c_next, float[B,4] carry)
    <float[3,4] W = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2}, float[4,4] R =
     {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 0.1, 0.2, 0.3, 0.4}> {
  p = MatMul (x, W)
  s = MatMul (h, R)
  g = Add (p, s)
  a = Tanh (g)
  f = Sigmoid (g)
  kept = Mul (c, f)
  c_next = Add (kept, a)
  t = Tanh (c_next)
  carry = Sigmoid (s)
  h_next = Mul (t, carry)
}"""


def lowered() -> list[onnx.ModelProto]:
    """What rnnqc writes, given to it again: every recipe, every form, written out and not."""
    model = testing.RecurrentCase(T=2, B=1, I=2, H=3)
    custom = testing.RecurrenceCase(op="highway", I=2, H=3, time=2)
    steps = testing.RecurrenceCase(op="projection", form="unrolled", I=2, H=6, time=3)
    made = [steps.model(), testing.RecurrenceCase(op="random", form="unrolled", I=2, H=8, time=4).model()]
    for recipe in builtin_recipes():
        for case in (model, model.replace(op="GRU"), custom, steps):
            proto = case.model()
            statistics = rnnqc.calibrate(proto, [case.feeds()])
            made.append(rnnqc.lower(proto, recipe.name, stats=statistics).proto)
    for case in (model, model.replace(op="RNN"), model.replace(op="GRU", direction="bidirectional")):
        made += [rnnqc.lower(case.model(), form=form).proto for form in EVERY_FORM if form != "qonnx"]
        made.append(rnnqc.lower(case.model(), unroll=True).proto)
    fixed = rnnqc.lower(model.model(), "brevitas-int8", "qonnx", overrides=["*.scale=0.0078125"])
    return [*made, fixed.proto]


def sorted_batches() -> list[onnx.ModelProto]:
    """Layers over batches that are sorted by length, as in the tests."""
    from test_remove_sorting import SEEN, SEEN_BY_NOBODY, loaded

    return [loaded(text).proto for text in (*SEEN.values(), *SEEN_BY_NOBODY.values())]


def brevitas() -> list[onnx.ModelProto]:
    """Cells as Brevitas exports them; built as the tests build them."""
    from tests.subjects.brevitas.models import Exported, random_lstm

    made = []
    for seed, flags in enumerate(({}, {"batch_first": True}, {"reverse": True})):
        exported = Exported()
        outputs = exported.cell(random_lstm(seed, size=3, hidden=2, **flags), "X", "cell")
        made.append(exported.model({"X": [3, 2, 3]}, {outputs[0]: 3}))
    return made


def seeds() -> list[bytes]:
    """Models as bytes."""
    tiny = [path.read_bytes() for path in sorted(TINY.glob("*.onnx"))]
    written = [
        testing.RecurrenceCase(op=op, form=form, I=2, H=3, time=2) for op in ("LSTM", "GRU", "RNN") for form in FORMS
    ]
    made = [
        *(case.model() for case in written),
        *(testing.generate(seed).model() for seed in range(GENERATED)),
        *lowered(),
        *brevitas(),
        *sorted_batches(),
        onnx.parser.parse_model(CELL),
    ]
    return [m for m in (*tiny, *(proto.SerializeToString() for proto in made)) if len(m) <= LARGEST]


def files() -> dict[str, list[bytes]]:
    """Of each other kind of input, some."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        statistics, arrays = (home.folder / "stats.json").read_bytes(), (home.folder / "data.npz").read_bytes()
    rule = '[[rule]]\npoints = "*.hidden"\nmode = "static"\nrange = "{}"\n{}\n'
    ranges = (("mse", ""), ("entropy", ""), ("percentile", "percentile = 99.9"), ("gauss", "bits = 4"), ("average", ""))
    changed = [f'base = "int8-static"\n{rule.format(*r)}'.encode() for r in ranges]
    return {
        "toml": [*(recipe_text(recipe.name).encode() for recipe in builtin_recipes()), *changed],
        "json": [statistics],
        "npz": [arrays],
        "text": [b"*.bits=none\n*.weight.bits=4", b"*.scale=0.01", b"re:.*gate.*.bits=12\n*.hidden.mode=static"],
    }


def main(folder: Path) -> None:
    """Writes the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    models, others = seeds(), files()
    ways = [k for k in range(CHOICES) if kind_of(bytes([k])) == "model"]
    made = [bytes([ways[k % len(ways)]]) + model for k, model in enumerate(models)]
    made += [bytes([w]) + onnx.parser.parse_model(CELL).SerializeToString() for w in ways if w >= len(WAYS)]
    made += [bytes([w]) + models[k] for w in ways if w >= len(WAYS) for k in range(0, len(models), len(models) // 8)]
    for form in ("fused", "integer", "qcdq"):
        for recipe in ("int8", "brevitas-int8"):
            quantized = rnnqc.lower(CASE.model(), recipe, form, calibration=CALIBRATION).proto.SerializeToString()
            made += [bytes([w]) + quantized for w in ways if w >= len(WAYS)]
    for k, command in enumerate(COMMANDS, len(WAYS)):
        made += [bytes([k]) + data for data in others.get(command.kind, [])]
    for k, data in enumerate(made):
        (folder / f"seed_{k:03}").write_bytes(data)
    print(f"{len(made)} seeds in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
