"""What is said of states that given data carries oddly.

What these would catch: crossed states, and states that nobody carries, that pass without a word.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.state_hints import named_states, state_remarks
from tests.subjects.protos import parse

LIKELY = {"h": "h_out", "c": "c_out"}


def test_states_as_they_look() -> None:
    assert state_remarks(LIKELY, LIKELY, 10) == []
    assert state_remarks({}, {"h": "c_out"}, 10) == []
    assert state_remarks(LIKELY, {}, 1) == [], "one call starts where its arrays say"


def test_crossed_states() -> None:
    remarks = state_remarks(LIKELY, {"h": "c_out", "c": "h_out"}, 10)
    assert [action.split(",")[0] for _, action in remarks] == ["--state h:h_out", "--state c:c_out"]
    assert "'h' is carried from output 'c_out', and its final value is 'h_out'" in remarks[0][0]


def test_states_that_are_not_carried() -> None:
    ((reason, action),) = state_remarks(LIKELY, {"h": "h_out"}, 10)
    assert reason.endswith("10 feeds to the next: 'c'") and action.startswith("--state c:c_out,")


@pytest.mark.parametrize(
    ("arguments", "results", "expected"),
    [
        (
            "float[1,8] rnn1_h_state_in, float[1,8] rnn1_c_state_in, float[1,3] x",
            "float[N,8] rnn1_h_state_out, float[M,8] rnn1_c_state_out",
            {"rnn1_h_state_in": "rnn1_h_state_out", "rnn1_c_state_in": "rnn1_c_state_out"},
        ),
        ("float[1,8] h, float[1,8] x", "float[1,8] h_next", {"h": "h_next"}),
        ("float[1,8] h", "float[1,9] h_next", {}),
        ("float[1,8] h", "float[1,1,8] h_next", {}),
        ("float[1,8] h", "float[1,8] h_copy", {}),
        ("float[1,8] h, float[1,8] h_in", "float[1,8] h_out", {}),
        ("float[1,8] input", "float[1,8] output", {}),
    ],
)
def test_states_by_their_names(arguments: str, results: str, expected: dict[str, str]) -> None:
    first = arguments.split()[1].rstrip(",")
    names = [r.split()[-1] for r in results.split(", ")]
    body = " ".join(f"{name} = Neg ({first})" for name in names)
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({arguments}) => ({results}) {{ {body} }}'
    assert named_states(parse(text)) == expected


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> m (float[1,1,3] x, float[1,1,4] h, float[1,1,4] c)'
        " => (float[1,1,1,4] y, float[1,1,4] h_out, float[1,1,4] c_out)"
        " { y, h_out, c_out = LSTM <hidden_size: int = 4> (x, W, R, , , h, c) }"
    )
    for name, columns in (("W", 3), ("R", 4)):
        values = rng.normal(size=(1, 16, columns)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return proto


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (["h:h_out", "c:c_out"], []),
        (["h:c_out", "c:h_out"], ["--state h:h_out", "--state c:c_out"]),
        ([], ["--state h:h_out --state c:c_out"]),
    ],
    ids=["right", "crossed", "none"],
)
def test_verify_and_calibrate_say_it(
    model: onnx.ModelProto, tmp_path: Path, state: list[str], wanted: list[str]
) -> None:
    rng = np.random.default_rng(1)
    shapes = {"x": (5, 1, 1, 3), "h": (5, 1, 1, 4), "c": (5, 1, 1, 4)}
    data = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items() if k == "x" or not state}
    found = rnnqc.verify(model, rnnqc.lower(model).model, data, state=state)
    statistics = rnnqc.calibrate(model, data, state=state)
    option = re.compile(r"--state \S+:\w+(?: --state \S+:\w+)*")
    for texts in (found.warnings, [r.action for r in statistics.remarks]):
        assert [m.group() for text in texts for m in [option.search(text)] if m] == wanted
