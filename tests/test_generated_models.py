"""The models of `tests.generate` compute what a case specifies, in onnxruntime alone.

What these would catch: a variant of a model that is another model, or none; a variant that changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests import generate as testing
from tests.generate import RecurrenceCase, RecurrentCase
from tests.generate.draws import SeededDraws
from tests.generate.random_layers import is_unbounded
from tests.generate.recurrences import BETWEEN, COUNTERS, FORMS, INITIAL
from tests.generate.variants import MAGNITUDES, vary_layer, vary_recurrence
from tests.runs.sessions import Array, options, run

FEW = 1e-5


def _run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    onnx.checker.check_model(model)
    return run(ort.InferenceSession(model.SerializeToString(), options("ORT_DISABLE_ALL")), feeds)


def _assert_close(found: dict[str, Array], expected: dict[str, Array], what: object) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        allowed = FEW * max(1.0, float(np.abs(value).max(initial=0.0)))
        assert found[name].shape == value.shape and np.abs(found[name] - value).max(initial=0.0) < allowed, (what, name)


def test_varied_layers_compute_what_the_reference_computes() -> None:
    seen: set[tuple[str, Any]] = set()
    for seed in range(100):
        draws = SeededDraws([seed, 9])
        drawn = testing.random_layers.draw_layer(draws, op=draws.choice(("LSTM", "GRU", "RNN")))
        layer = vary_layer(draws, drawn, any_opset=True)
        feeds = layer.feeds(padding=0.0)
        _assert_close(_run(layer.model(), feeds), layer.expected(feeds), layer)
        names = ("function_attributes", "tied", "weights", *(("states_from", "magnitude") if layer.states else ()))
        seen |= {(name, getattr(layer, name)) for name in names}
        seen |= {("function", layer.leaky and layer.opset < 15)} if layer.placement == "function" else set()
        seen |= {("without bound", layer.magnitude)} if layer.states and is_unbounded(layer.activations) else set()
    assert {("function", True), ("without bound", 30.0)} <= seen
    assert {v for k, v in seen if k == "function_attributes"} == {"own", "given", "default", "overridden"}
    assert {v for k, v in seen if k == "states_from"} == {"input", "constant", "learned", "computed"}
    assert {v for k, v in seen if k == "magnitude"} == set(MAGNITUDES)
    assert {v for k, v in seen if k == "tied"} == {True, False}
    assert ("weights", "body") in seen


ORDERS: dict[str, dict[str, Any]] = {
    "operands": {"state_first": True},
    "computed C": {"products": "added", "gemm": True},
    "computed C of x": {"products": "added", "gemm": True, "state_first": True},
}


@pytest.mark.few(4)
@pytest.mark.parametrize("what", ORDERS)
@pytest.mark.parametrize("products", ["fused", "separate", "joined"])
@pytest.mark.parametrize("op", ["LSTM", "RNN", "highway", "projection"])
def test_orders_and_computed_c_change_nothing(op: str, products: str, what: str) -> None:
    for form in FORMS:
        plain = RecurrenceCase(op=op, form=form, products=products, I=6, H=6, gemm=ORDERS[what].get("gemm", False))
        other = replace(plain, **ORDERS[what])
        assert other.model() != plain.model()
        _assert_close(_run(other.model(), plain.feeds()), _run(plain.model(), plain.feeds()), other)


def test_tied_weights_are_one_initializer() -> None:
    for changes in ({}, {"products": "separate"}, {"gemm": True}):
        model = RecurrenceCase(tied=True, I=6, H=6, bias="none", **changes).model()  # type: ignore[arg-type]
        matrices = [t.name for t in model.graph.initializer if len(t.dims) == 2]
        assert len(matrices) == (4 if changes.get("products") else 1), matrices
        _run(model, RecurrenceCase(I=6, H=6).feeds())
    assert [t.name for t in RecurrentCase(tied=True, I=4, H=4, bias=False).model().graph.initializer] == ["W"]


def test_twice_is_the_layer_over_its_outputs() -> None:
    for form in FORMS:
        once = RecurrenceCase(form=form, I=6, H=6)
        twice = replace(once, twice=True)
        feeds = once.feeds()
        first = _run(once.model(), feeds)
        _assert_close(_run(twice.model(), feeds), _run(once.model(), feeds | {"x": first["y"]}), twice)
        assert len(twice.model().graph.initializer) <= len(once.model().graph.initializer) + 1, "weights are shared"


@pytest.mark.parametrize("kind", [k for k in BETWEEN if k])
def test_what_is_between_steps(kind: str) -> None:
    """Every form computes the same; states pass the bound of their activation."""
    cases = [RecurrenceCase(form=form, between=kind, I=6, H=6, time=6) for form in FORMS]
    first, *others = [_run(case.model(), case.feeds()) for case in cases]
    for case, found in zip(cases[1:], others, strict=True):
        _assert_close(found, first, case)
    assert np.abs(first["y"]).max() > 1.2


def test_initial_states() -> None:
    """Zeros are zeros; the others grow with their magnitude; every form starts from the same."""
    first: dict[str, Array] = {}
    for kind in INITIAL:
        large: dict[str, Array] = {}
        for form in FORMS:
            case = RecurrenceCase(op="RNN", form=form, initial=kind, magnitude=30.0, time=1, bias="none")
            found = _run(case.model(), case.feeds())
            _assert_close(found, large or found, case)
            large = found
        first[kind] = large["y"]
        small = replace(case, magnitude=1.0)
        is_zero = kind in ("zeros", "shared", "dynamic")
        assert np.array_equal(_run(small.model(), small.feeds())["y"], large["y"]) == is_zero, kind
    assert np.array_equal(first["zeros"], first["shared"]) and np.array_equal(first["zeros"], first["dynamic"])


def test_varied_recurrences_run_and_cover() -> None:
    seen: set[tuple[str, Any]] = set()
    widths: set[str] = set()
    made = [c.recurrence for c in map(testing.generate, range(600)) if c.recurrence is not None]
    for k, case in enumerate(made):
        varied = vary_recurrence(SeededDraws([k, 9]), case)
        assert vary_recurrence(SeededDraws([k, 9]), case) == varied
        names = (
            "products",
            "state_first",
            "tied",
            "between",
            "local",
            "spare",
            "twice",
            "counter",
            "cut",
            "scales",
            "initial",
            "magnitude",
        )
        seen |= {(name, getattr(varied, name)) for name in names}
        widths |= {"I = H"} if varied.I == varied.H else set()
        if varied.op == "projection":
            widths |= {n for n, same in (("I = P", varied.I == varied.P), ("H = P", varied.H == varied.P)) if same}
        if k % 4 == 0:
            outputs = _run(varied.model(), varied.feeds())
            assert all(np.isfinite(v).all() for v in outputs.values()), varied
    for name in ("state_first", "tied", "local", "spare", "twice"):
        assert {v for k, v in seen if k == name} == {True, False}, name
    assert {v for k, v in seen if k == "products"} == {"fused", "separate", "joined", "added"}
    assert {v for k, v in seen if k == "counter"} == set(COUNTERS) - {"to_int16"}
    assert {v for k, v in seen if k == "between"} == set(BETWEEN)
    assert {v for k, v in seen if k == "initial"} == set(INITIAL)
    assert {v for k, v in seen if k == "magnitude"} == set(MAGNITUDES)
    assert widths == {"I = H", "I = P", "H = P"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"tied": True, "I": 5, "H": 6}, {"between": "input", "I": 5, "H": 6}, {"twice": True, "I": 5, "H": 6},
        {"twice": True, "local": True, "I": 6},
    ],
)  # fmt: skip
def test_recurrences_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"width|body"):
        RecurrenceCase(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tied": True, "I": 5, "H": 6}, {"weights": "body"}, {"function_attributes": "given"},
        {"states_from": "learned", "opset": 7}, {"leaky": 0.3},
    ],
)  # fmt: skip
def test_layers_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"one|body|function|Expand"):
        RecurrentCase(**wrong)
