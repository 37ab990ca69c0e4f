"""Casts of states that convert nothing go; all others stay.

What these would catch: a conversion that is lost, a name of an output that is lost, a Cast outside a loop.
"""

from __future__ import annotations

import onnx
import pytest

from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, Cleanup, PassManager, RemoveIdleCasts
from rnnqc.passes.pipeline import NORMAL_FORM
from tests.passes.pass_testing import apply
from tests.subjects.protos import parse

STATE = "new = Add (h, one) after = Cast <to = 1> (new)"


def looped(nodes: str, outside: str = "y = Identity (last)") -> Model:
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float[2,3] x) => (float[2,3] y) {{
      one = Constant <value = float {{1.0}}> () trips = Constant <value = int64 {{2}}> ()
      always = Constant <value = bool {{1}}> ()
      last = Loop <body = b (int64 k, bool going, float[2,3] h) => (bool more, float[2,3] after)
        {{ more = Identity (going) {nodes} }}> (trips, always, x) {outside} }}"""
    model = Model.load(parse(text))
    PassManager([Canonicalize()]).run(model)
    return model


def casts(model: Model) -> list[int]:
    return [n.attrs["to"] for g in model.graphs() for n in g.nodes if n.op == "Cast"]


def test_fires() -> None:
    """`apply` compares bits, runs the checker, and runs the pass twice."""
    model = looped(STATE)
    assert apply(RemoveIdleCasts(), model).modified
    assert casts(model) == []


def test_cleanup_leaves_nothing_of_them() -> None:
    """Also not an Identity; those of the model stay."""
    model = looped(STATE)
    PassManager([RemoveIdleCasts(), Cleanup()], given=NORMAL_FORM).run(model)
    made = {n.outputs[0].name: n.op for g in model.graphs() for n in g.nodes}
    assert made["after"] == "Add"
    assert {name for name, op in made.items() if op == "Identity"} == {"more", "y"}


KEPT = {
    "another type": ("w = Cast <to = 11> (h) v = Neg (w) after = Cast <to = 1> (v)", "y = Identity (last)", [11, 1]),
    "outside of loops": ("after = Neg (h)", "y = Cast <to = 1> (last)", [1]),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    nodes, outside, expected = KEPT[case]
    model = looped(nodes, outside)
    assert not apply(RemoveIdleCasts(), model).modified
    assert casts(model) == expected


def test_an_unknown_type_stays() -> None:
    model = looped(STATE)
    (value,) = [n.inputs[0] for g in model.graphs() for n in g.nodes if n.op == "Cast"]
    value.dtype = None
    value.__dict__.pop("_rnnqc_shape", None)
    assert not RemoveIdleCasts().run(model).modified
    assert casts(model) == [onnx.TensorProto.FLOAT]
