"""The whole command beside an override: it lowers as the model of the page was lowered.

What this would catch: an option of `rnnqc lower` that changes the file, and that the command leaves out.
"""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.commands.program import _parsed, _separated
from rnnqc.ir import Model
from rnnqc.lowering.options import LowerOptions
from rnnqc.passes.normalize.remove_sorting import RemoveSorting
from rnnqc.recipes.recipe_record import read_record
from rnnqc.reporting.description import recipe_of
from rnnqc.reporting.evidence import Evidence
from rnnqc.reporting.report import report
from rnnqc.reporting.sections.repairs import folded_command
from rnnqc.search.findings import Repair
from tests.subjects.protos import parse

LAYER = """<ir_version: 8, opset_import: ["": 17]>
g (float[T,2,3] x, float[1,2,4] h0, float[1,2,4] c0) => (float[T,1,2,4] Y, float[1,2,4] Y_h) {
    [l] Y, Y_h = LSTM <hidden_size = 4> (x, W, R, , , h0, c0)
}"""


def layer() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {k: rng.standard_normal((1, 16, n)).astype(np.float32) for k, n in (("W", 3), ("R", 4))}
    return parse(LAYER, **weights)


CASES: dict[str, dict[str, Any]] = {
    "recipe": {"recipe": "int16"},
    "form": {"form": "integer"},
    "unroll": {"unroll": True, "dims": {"T": 3}},
    "dims": {"dims": {"T": 4}, "form": "qcdq", "unroll": True},
    "overrides": {"overrides": ["*.W.weight.bits=6"]},
    "rest": {"rest": "int8"},
    "bind": {"bind": {"h0": 0.0}},
    "quantized_outputs": {"quantized_outputs": ["Y", "Y_h"]},
    "remove_sorting": {"remove_sorting": True},
}
ELSEWHERE = {"calibration", "statistics", "state", "batch"}
"""Options that provide a calibration: the page has them in `calibrated_by`, or names a placeholder."""
NOT_OF_THE_FILE = {"verify", "reproducer", "measure", "strict", "patience", "strict_rest"}


def test_every_option_has_a_case() -> None:
    assert {f.name for f in dataclasses.fields(LowerOptions)} == {*CASES, *ELSEWHERE, *NOT_OF_THE_FILE}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CASES)
def test_the_command_lowers_alike(name: str) -> None:
    options = CASES[name]
    made = rnnqc.lower(layer(), **options)
    model = Model.load(made.proto)
    if name == "remove_sorting":  # this model has no sort
        model.provenance.append(RemoveSorting.info.name)
    recipe = recipe_of(read_record(model.metadata, "q.onnx"), model)
    evidence = Evidence("f.onnx", "q.onnx", {}, {}, recipe)
    repair = Repair("l.forward.input", ["*.input.bits=16"], "16 bits", 30.0, 31.0, 30.0, 31.0, 9, 9)
    text = "".join(folded_command(repair, evidence).itertext())
    command = text[text.index("rnnqc lower") : text.index("[[rule]]")]
    words = shlex.split(command.replace("\\\n", " "))
    asked = _parsed(_separated(words[1:]))
    found = {
        "recipe": asked.recipe, "form": asked.form, "unroll": asked.unroll, "rest": asked.rest,
        "overrides": asked.overrides, "quantized_outputs": asked.quantized_outputs,
        "remove_sorting": asked.remove_sorting, "dims": asked.dim, "bind": asked.bind,
    }  # fmt: skip
    expected = {"recipe": "int8", "form": None, "unroll": False, "rest": "float", "quantized_outputs": [],
                "remove_sorting": False, "dims": [], "bind": [], **options}  # fmt: skip
    expected |= {k: [f"{n}={v}" for n, v in options[k].items()] for k in ("dims", "bind") if k in options}
    assert found == expected | {"overrides": ["*.input.bits=16", *options.get("overrides", [])]}


def test_quantized_outputs_are_those_of_the_model_made_again() -> None:
    """It used to be reported as another model than that of the page, and nothing was measured."""
    lowered = rnnqc.lower(layer(), quantized_outputs=["Y"])
    found = report(layer(), lowered.proto, models=1).evidence
    assert "bit for bit" in found.remade
    assert not found.mismatch and not found.warnings
    assert found.sensitivities
