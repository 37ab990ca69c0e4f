"""The report of the weights around the recurrent layers.

What these would catch: a tied weight that counts twice, an estimate that is not what int8 takes, an operator without an
entry, a weight that stays float without a reason, a lowering that is asked for nothing and quantizes them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rnnqc
from rnnqc.cells.rearrange_nodes import is_rearrange_node
from rnnqc.errors import CompileError, UsageError
from rnnqc.ir import Model
from rnnqc.lowering.failures import STRICT_REST, first_failure
from rnnqc.lowering.inspection import inspect
from rnnqc.recipes.recipe_record import RECIPE_KEY
from tests.generate.layers import RecurrentCase
from tests.subjects.protos import parse
from tests.subjects.whole_models import AXES, WholeModel

FORMS: tuple[dict[str, Any], ...] = (
    {"form": "fused"}, {"form": "integer"}, {"form": "qcdq"}, {"recipe": "weight-only-int8"}, {"recipe": "int16"},
)  # fmt: skip


def _stored(proto: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def _without(change: str) -> onnx.ModelProto:
    """The model with a weight that int8 cannot store, or would not make smaller."""
    proto = WholeModel(tied=False).model()
    for tensor in proto.graph.initializer:
        if tensor.name == "projection":
            array = numpy_helper.to_array(tensor).copy()
            if change == "not finite":
                array[0, 0] = np.inf
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return proto


@pytest.mark.few(3)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("options", FORMS, ids=str)
def test_int8_in_every_form(options: dict[str, Any], tied: bool) -> None:
    """Every operator has an entry; bytes are those of the constants in the file, and as estimated."""
    proto = WholeModel(tied=tied).model()
    before, lowered = rnnqc.lower(proto, **options), rnnqc.lower(proto, rest="int8", **options)
    rest = lowered.report.rest
    forms = {e.node: e.form for e in rest.entries}
    assert {e.status for e in rest.entries} == {"quantized"}
    assert sorted(forms.values()) == ["int8 rows", *["int8 storage"] * 3]
    assert rest.bytes == rest.int8_bytes == before.report.rest.int8_bytes
    assert rest.float_bytes == before.report.rest.float_bytes == before.report.rest.bytes
    held = {
        n: a for n, a in _stored(lowered.proto).items() if n.endswith((".int8", ".scale")) and n.split(".")[0] in AXES
    }
    assert sum(a.nbytes for a in held.values()) == rest.bytes
    assert not AXES.keys() & _stored(lowered.proto).keys(), "no float weight is left"
    shared = [e for e in rest.entries if e.shares]
    assert len(shared) == tied
    saved, weights = before.report.bytes - lowered.report.bytes, len(rest.entries) - tied
    moving = sum(f.ByteSize() for f in lowered.proto.functions if is_rearrange_node(f.name))
    assert saved + moving > rest.float_bytes - rest.bytes - 512 * weights, "nodes take some hundred bytes"


def test_float_says_what_int8_would_do() -> None:
    report = rnnqc.lower(WholeModel().model()).report
    assert {e.status for e in report.rest.entries} == {"float"}
    assert not report.rest.is_changed
    text = report.rest.summary(report.bytes)
    share = round(100 * report.rest.bytes / report.bytes)
    assert text == (
        f"linear layers, embeddings and convolutions stay float: {report.rest.bytes} B of "
        f"{report.bytes / 1e3:.0f} kB ({share} %); --rest int8 would store them in about {report.rest.int8_bytes} B"
    )


def test_inspect_says_the_same() -> None:
    proto = WholeModel().model()
    found, report = inspect(proto), rnnqc.lower(proto).report
    assert found.rest == report.rest
    assert found.bytes == report.float_bytes


def test_a_layer_alone_has_no_rest() -> None:
    report = rnnqc.lower(RecurrentCase().model()).report
    assert report.rest.entries == []
    assert report.rest.summary(report.bytes) == ""


def test_what_stays_float_is_told_once_for_each_reason() -> None:
    lowered = rnnqc.lower(_without("not finite"), rest="int8")
    (entry,) = lowered.report.rest.left
    assert entry.reason == "its weight has NaN or infinite entries."
    texts = [t for _, t in lowered.report.told() if "NaN or infinite entries" in t]
    assert texts == [f"{entry.explanation} [rest]"]
    assert not [t for _, t in rnnqc.lower(_without("not finite")).report.told() if "entries" in t]


def test_strict_rest() -> None:
    whole = WholeModel().model()
    assert rnnqc.lower(whole, rest="int8", strict_rest=True).report.rest.left == []
    for proto, rest in ((whole, "float"), (_without("not finite"), "int8")):
        with pytest.raises(CompileError, match=r"\d operator\(s\) around the recurrent layers stay float"):
            rnnqc.lower(proto, rest=rest, strict_rest=True)
    report = rnnqc.lower(whole).report
    failure = first_failure(report, strict_rest=True)
    assert failure is not None
    assert failure.option == STRICT_REST


def test_small_weights_do_not_count_as_left() -> None:
    """A Gemm with one output saves nothing."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,24] x) => (float[N,1] y) { y = Gemm (x, w) }"""
    proto = parse(text, w=np.ones((24, 1), np.float32))
    report = rnnqc.lower(proto, rest="int8", strict_rest=True).report
    assert [(e.status, e.is_small) for e in report.rest.entries] == [("float", True)]
    assert report.rest.left == []


def test_a_model_without_recurrent_layers() -> None:
    """Asked for, its weights are stored as int8; by default it stays as it is."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,24] x) => (float[N,40] y) { y = MatMul (x, w) }"""
    proto = parse(text, w=np.random.default_rng(0).standard_normal((24, 40)).astype(np.float32))
    lowered = rnnqc.lower(proto, rest="int8", measure=True)
    assert lowered.report.rest.is_changed
    assert min(lowered.report.sqnr_db.values()) > 40.0
    assert "only the weights of other layers were quantized" in " ".join(t for _, t in lowered.report.told())
    assert "nothing was quantized" in " ".join(t for _, t in rnnqc.lower(proto).report.told())


def test_the_sqnr_covers_it() -> None:
    proto = WholeModel().model()
    one, two = (rnnqc.lower(proto, rest=rest, measure=True).report.sqnr_db for rest in ("float", "int8"))
    assert one["embedded"] == np.inf
    assert 40.0 < two["embedded"] < 60.0


def test_every_pass_is_verified() -> None:
    report = rnnqc.lower(WholeModel().model(), rest="int8", verify=True).report
    assert {"quantize-embeddings", "store-weights"} <= set(report.verified)


def _record(proto: onnx.ModelProto) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(Model.load(proto).metadata[RECIPE_KEY])
    return made


def test_in_two_steps() -> None:
    """The recurrent layers first, the rest later: the same constants, and the record says both."""
    proto = WholeModel().model()
    once, first = rnnqc.lower(proto, rest="int8"), rnnqc.lower(proto)
    second = rnnqc.lower(first.proto, rest="int8")
    assert [e.earlier for e in second.report.entries] == [True]
    assert second.report.rest.is_changed
    assert {n: a.tobytes() for n, a in _stored(once.proto).items() if n.endswith(".int8")} == {
        n: a.tobytes() for n, a in _stored(second.proto).items() if n.endswith(".int8")
    }
    assert "rest" not in _record(first.proto)
    assert _record(second.proto) == _record(once.proto)
    third = rnnqc.lower(second.proto)
    assert third.report.rest.entries == []
    assert _record(third.proto)["rest"] == "int8"


def test_options_that_cannot_be() -> None:
    proto = WholeModel().model()
    with pytest.raises(UsageError, match="rest 'int4'"):
        rnnqc.lower(proto, rest="int4")
    with pytest.raises(UsageError, match="form qonnx"):
        rnnqc.lower(proto, form="qonnx", rest="int8")
