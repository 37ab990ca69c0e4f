"""Wording of errors and remarks, and their family tree.

What these would catch: a message that loses its parts, an error that callers of `except` cannot tell apart.
"""

from __future__ import annotations

import json

import pytest

from rnnqc.errors import (
    MEMORY,
    CompileError,
    InternalError,
    NumericsError,
    Outcome,
    PipelineError,
    Remark,
    RnnqcError,
    StructureError,
    UsageError,
    located,
)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "found it."),
        ({"supported": "a, b"}, "found it. Supported: a, b."),
        ({"action": "do c"}, "found it. Resolution: do c."),
        ({"supported": "a, b", "action": "do c"}, "found it. Supported: a, b. Resolution: do c."),
    ],
)
def test_message_has_its_parts_in_order(arguments: dict[str, str], text: str) -> None:
    error = CompileError("found it.", **arguments)
    assert str(error) == text
    assert error.args == (text,)


def test_family() -> None:
    kinds = {
        k: k.__mro__ for k in (CompileError, UsageError, PipelineError, InternalError, StructureError, NumericsError)
    }
    assert all(RnnqcError in mro for mro in kinds.values())
    assert {k for k, mro in kinds.items() if CompileError in mro} == {CompileError, UsageError}
    assert {k for k, mro in kinds.items() if InternalError in mro} == {InternalError, StructureError, NumericsError}


def test_located_names_the_model_once() -> None:
    with pytest.raises(CompileError) as caught, located("model.onnx"), located("model.onnx"):
        raise CompileError("node 'a' is wrong.", action="export again")
    assert str(caught.value) == "model.onnx: node 'a' is wrong. Resolution: export again."
    assert caught.value.args == (str(caught.value),)


def test_located_leaves_a_message_that_names_the_model() -> None:
    with pytest.raises(CompileError, match=r"^in model\.onnx there is nothing\.$"), located("model.onnx"):
        raise CompileError("in model.onnx there is nothing.")


def test_located_leaves_errors_about_options() -> None:
    with pytest.raises(UsageError, match=r"^bad option\.$"), located("model.onnx"):
        raise UsageError("bad option.")


def test_located_leaves_models_without_a_file() -> None:
    with pytest.raises(CompileError, match=r"^wrong\.$"), located(MEMORY):
        raise CompileError("wrong.")


def test_remark_as_text_and_as_json() -> None:
    remark = Remark("some-pass", Outcome.FLOAT, "body/lstm", "LSTM", "W is not constant.", "W is x", "make it constant")
    assert str(remark) == (
        "Operator \"LSTM\" (node 'body/lstm') float: W is not constant. Found: W is x. Resolution: make it constant."
    )
    assert json.loads(json.dumps(remark.as_dict())) == {
        "pass_name": "some-pass",
        "outcome": "float",
        "node": "body/lstm",
        "op": "LSTM",
        "reason": "W is not constant.",
        "found": "W is x",
        "action": "make it constant",
    }
    assert str(Remark("p", Outcome.NOTE, "n", "Scan", "done.")) == "Operator \"Scan\" (node 'n') note: done."
