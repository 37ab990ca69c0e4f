"""The output of commands with --json against the schemas that `rnnqc schema` prints.

What these would catch: a key that a schema does not know or that is missing, a value of another type, a document
without its version, a command with --json and no schema.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rnnqc
from rnnqc.commands import schema as command
from rnnqc.commands.program import _parsers
from rnnqc.commands.shared.schemas import SCHEMAS, schema, schema_of
from tests.runs.commands import in_process

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema (pip install 'rnnqc[dev]'): NOT tested")
MODELS = Path(__file__).resolve().parents[2] / "models"
DIGITS, DATA, TEST = (MODELS / n for n in ("digits_lstm.onnx", "digits_calibration.npz", "digits_test.npz"))
PRINTED = {
    "inspect": f"inspect {DIGITS} --json",
    "inspect lowered": "inspect {low} --json",
    "verify": f"verify {DIGITS} {{low}} --native --json",
    "verify given": f"verify {DIGITS} {{low}} --data {DATA} --min-sqnr logits=99 --json",
    "evaluate": f"evaluate {{low}} --data {TEST} --metric accuracy --against {DIGITS} --json",
    "bench": f"bench {{low}} --against {DIGITS} --rounds 1 --json",
    "bench float": f"bench {DIGITS} --rounds 1 --json",
    "tune": f"tune {DIGITS} --data {DATA} -o {{folder}}/mine.toml --min-sqnr 20 --json",
}
WRITTEN = {
    "lower": f"lower {DIGITS} -o {{folder}}/o.onnx --json {{folder}}/out.json",
    "lower calibrated": f"lower {DIGITS} -o {{folder}}/o.onnx --recipe w4a8 --rest int8 --calibration {DATA} --verify "
    "--report {folder}/o.html --models 3 --json {folder}/out.json",
    "report": f"report {DIGITS} {{low}} -o {{folder}}/out.html --models 1 --time --json",
}


@pytest.fixture(scope="module")
def low(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lowered") / "low.onnx"
    rnnqc.lower(DIGITS).save(path)
    return path


@pytest.mark.few(6)
@pytest.mark.parametrize("case", [*PRINTED, *WRITTEN])
def test_documents_fit(case: str, low: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = {**PRINTED, **WRITTEN}[case].format(low=low, folder=tmp_path)
    result = in_process(capfd, *line.split())
    assert result.code in (0, 1), result.err
    text = result.out if case in PRINTED else (tmp_path / "out.json").read_text()
    document = json.loads(text)
    assert document["version"] == 1
    jsonschema.Draft202012Validator(schema(case.split()[0])).validate(document)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Schemas are valid, the command prints them, and they refuse unknown keys."""
    printed = json.loads(in_process(capfd, "schema", name).out)
    assert printed == schema(name)
    jsonschema.Draft202012Validator.check_schema(printed)
    wrong = jsonschema.Draft202012Validator(printed).iter_errors({"version": 1, "no_such_key": 0})
    assert any("no_such_key" in e.message for e in wrong)


def test_every_json_has_a_schema() -> None:
    _, parsers = _parsers()
    with_json = {n for n, p in parsers.items() if any("--json" in a.option_strings for a in p._actions)}
    assert with_json == set(SCHEMAS) == set(command.NAMES)


def test_types_without_schema() -> None:
    with pytest.raises(TypeError, match="no schema of"):
        schema_of(set)
