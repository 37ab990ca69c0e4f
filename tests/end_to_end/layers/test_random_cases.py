"""`tests.generate`: random valid models pass all checks, and the checks find violations.

What these would catch: a combination of attributes, placement, names, recipe and operator set that a pass does not
foresee; checks that pass whatever happens.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from rnnqc.lowering.lower import lower
from rnnqc.lowering.reports.report import Lowered
from tests import generate as testing
from tests.generate import checks, draws
from tests.generate.__main__ import main
from tests.generate.renaming import STYLES
from tests.laws.parametrize import in_turn

CASES, GROUPS, QUICK, MANY = 64, 32, 8, 2000


def _check(seeds: range) -> None:
    found = {seed: findings for seed in seeds if (findings := testing.check(testing.generate(seed)))}
    assert not found, {seed: (str(testing.generate(seed)), texts) for seed, texts in found.items()}


@pytest.mark.few(1)
@pytest.mark.parametrize("group", [pytest.param(g, marks=[pytest.mark.slow] * (g >= QUICK)) for g in range(GROUPS)])
def test_random_cases(group: int) -> None:
    size = CASES // GROUPS
    _check(range(group * size, (group + 1) * size))


def test_stacked_layers_in_branches() -> None:
    """Codes from layer to layer in a branch of If, whose sizes are fixed: onnxruntime lost them."""
    case = testing.Case(
        layers=(
            testing.RecurrentCase(
                T=4, I=10, H=10, direction="reverse", bias=False, clip=0.25, opset=18, seed=42833, op="GRU",
                linear_before_reset=True,
            ),
            testing.RecurrentCase(
                T=4, I=10, H=1, clip=30.0, input_forget=True, dynamic_time=True, opset=18, seed=22586
            ),
        ),
        depth=1, naming="shell", recipe="int8-static", calibrated=True,
    )  # fmt: skip
    assert not testing.check(case)


LSTM_LOOP = testing.RecurrenceCase(op="LSTM", form="loop", time=3, initial="dynamic", dynamic_time=True)
HIGHWAY = testing.RecurrenceCase(op="highway", form="loop", time=3, lengths="zeros")
WRITTEN_OTHERWISE = {
    "a loop in a function": testing.Case(recurrence=LSTM_LOOP, calls="function"),
    "steps in a function of a function": testing.Case(
        recurrence=testing.RecurrenceCase(op="GRU", form="unrolled"), calls="nested"
    ),
    "one of two overloads": testing.Case(recurrence=HIGHWAY, calls="overload"),
    "steps whose first product is used by nothing": testing.Case(
        recurrence=testing.RecurrenceCase(
            op="random", form="unrolled", order="dbca", products="separate", bias="none", initial="dynamic",
            outputs=("y",), time=3, batch=1, I=1, H=8, seed=57950,
        )
    ),
    "weights of a loop that are turned": testing.Case(recurrence=HIGHWAY, source="transposed"),
    "weights of a loop that are sums": testing.Case(recurrence=HIGHWAY, source="sum"),
    "weights of steps of float16": testing.Case(
        recurrence=testing.RecurrenceCase(op="projection", form="unrolled"), source="half"
    ),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("what", WRITTEN_OTHERWISE)
def test_recurrences_that_are_written_otherwise(what: str) -> None:
    """They must not silently stay float: functions hid loops, and only initializers counted as weights."""
    checked = testing.examine(WRITTEN_OTHERWISE[what])
    assert not checked.findings
    assert checked.forms and not any(form.startswith("float") for form in checked.forms)


def test_float64_with_weights_that_are_computed() -> None:
    """The type of W is known after shape inference alone; onnxruntime has no such kernel."""
    assert not testing.check(testing.Case(layers=(testing.RecurrentCase(weights="computed"),), dtype="float64"))


@pytest.mark.few(1)
@in_turn(source=testing.outer_forms.SOURCES, dtype=testing.outer_forms.DTYPES)
def test_types_and_sources_of_weights(dtype: str, source: str) -> None:
    if source == "codes" and dtype != "float32":
        pytest.skip("DequantizeLinear of this operator set makes float32")
    assert not testing.check(testing.Case(layers=(testing.RecurrentCase(),), dtype=dtype, source=source))


@pytest.mark.few(1)
@pytest.mark.parametrize("wiring", testing.layers.WIRINGS[::-1])
def test_wirings(wiring: str) -> None:
    first = testing.RecurrentCase(I=4, opset=17)
    row = (first, first.replace(I=testing.layers.width_after(first, wiring), seed=1))
    case = testing.Case(layers=row, wiring=wiring)
    assert not testing.check(case)
    if wiring not in ("chain", "concat"):
        assert case.model() != replace(case, wiring="chain").model(), "nothing is between the layers"


@pytest.mark.slow
def test_many_random_cases() -> None:
    _check(range(10000, 10000 + MANY))


@pytest.mark.few(1)
@in_turn(naming=[*STYLES][::-1], depth=[*[1] * (len(STYLES) - 1), 2])
def test_every_kind_of_names(naming: str, depth: int) -> None:
    """Names in nested If nodes, with sizes that are bound by odd names."""
    layer = testing.RecurrentCase(T=3, dynamic_time=True, dynamic_batch=True, lens=(3, 1), initial_h=True)
    case = testing.Case(layers=(layer,), naming=naming, depth=depth)
    assert naming == "plain" or {n.name for n in case.model().graph.node} != {f"level_{depth - 1}"}
    assert not testing.check(case)


def test_a_case_is_a_function_of_its_seed() -> None:
    for seed in (0, 1, 2, 3):
        one, two = testing.generate(seed), testing.generate(seed)
        assert one == two
        assert one.model().SerializeToString() == two.model().SerializeToString()
        for a, b in zip(one.feeds(), two.feeds(), strict=True):
            assert {k: v.tobytes() for k, v in a.items()} == {k: v.tobytes() for k, v in b.items()}
    assert len({str(testing.generate(seed)) for seed in range(50)}) == 50


def test_cases_cover_what_they_are_to_cover() -> None:
    cases = [testing.generate(seed) for seed in range(400)]
    layers = [layer for case in cases for layer in case.layers]
    for name, wanted in {
        "op": {"LSTM", "GRU", "RNN"},
        "direction": {"forward", "reverse", "bidirectional"},
        "placement": {"main", "if", "loop", "scan", "function"},
        "weights": {"initializer", "constant", "computed", "body"},
        "layout": {0, 1},
        "opset": set(range(7, 23)),
        "linear_before_reset": {True, False},
        "input_forget": {True, False},
        "peepholes": {True, False},
        "initial_h": {True, False},
        "initial_c": {True, False},
    }.items():
        assert {getattr(layer, name) for layer in layers} == wanted, name
    written = [case.recurrence for case in cases if case.recurrence is not None]
    assert {r.form for r in written} == {"unrolled", "scan", "loop", "script", "keras"}
    assert {r.op for r in written} == {"LSTM", "GRU", "RNN", "highway", "projection", "random"}
    assert {r.dynamic_time for r in written} == {True, False}
    assert {r.initial for r in written} == set(testing.recurrences.INITIAL)
    assert {layer.states_from for layer in layers if layer.states} == {"input", "constant", "learned", "computed"}
    assert {case.source for case in cases} == set(testing.outer_forms.SOURCES)
    assert {case.calls for case in cases} == set(testing.outer_forms.CALLS)
    assert {case.dtype for case in cases} == set(testing.outer_forms.DTYPES)
    assert {case.wiring for case in cases} == set(testing.layers.WIRINGS)
    assert len({case.overrides for case in cases}) > 30
    assert {case.recipe for case in cases} == {name for name, _ in testing.cases.RECIPES}
    assert {case.naming for case in cases} == set(STYLES)
    assert {case.depth for case in cases} == {0, 1, 2}
    assert {case.shared for case in cases} == {True, False}


def test_the_expression_of_a_case_makes_it_again() -> None:
    from tests.generate.float_layer import Activation

    names = {"Activation": Activation, **{n: getattr(testing, n) for n in ("Case", "RecurrentCase", "RecurrenceCase")}}
    for seed in range(60):
        case = testing.generate(seed)
        assert eval(str(case), names) == case


# ---- planted faults -------------------------------------------------------------------------------------------------


def _changed(lowered: Lowered, change: Any) -> Lowered:
    proto = onnx.ModelProto()
    proto.CopyFrom(lowered.proto)
    change(proto)
    return replace(lowered, _proto=proto)


def _one_code_off(proto: onnx.ModelProto) -> None:
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if tensor.name.endswith("/W_q") or (array.dtype.itemsize == 1 and array.ndim >= 2):
            changed = array.copy()
            changed.flat[0] ^= 64
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
            return
    raise AssertionError([t.name for t in proto.graph.initializer])


def _renamed_output(proto: onnx.ModelProto) -> None:
    proto.graph.node.add(op_type="Identity", input=[proto.graph.output[0].name], output=["other"])
    proto.graph.output[0].name = "other"


FAULTS = {
    "bits": ("integer", _one_code_off),
    "signature": ("integer", _renamed_output),
}


def _plant(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    form, change = FAULTS[kind]

    def faulty(model: Any, recipe: Any = None, form_: Any = None, **arguments: Any) -> Lowered:
        lowered = lower(model, recipe, **arguments)
        wrong = arguments.get("form") == form and not arguments.get("unroll")
        return _changed(lowered, change) if wrong else lowered

    monkeypatch.setattr(checks, "lower", faulty)


SOUND = testing.Case(layers=(testing.RecurrentCase(),))


@functools.cache
def _sound() -> tuple[testing.Case, ...]:
    """The case, if the unmodified case has no findings."""
    return () if testing.check(SOUND) else (SOUND,)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SOUND in _sound()
    _plant(monkeypatch, kind)
    assert kind in {f.kind for f in testing.check(SOUND)}


def test_an_error_of_the_compiler_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **named: Any) -> Lowered:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(checks, "lower", broken)
    (finding,) = testing.check(testing.Case(layers=(testing.RecurrentCase(),)))
    assert finding.kind == "error"
    assert "planted" in finding.text


def test_shrinking_keeps_the_fault_alone() -> None:
    """Shrinking keeps the clip and the GRU, and removes everything else."""

    def still(case: testing.Case) -> bool:
        return any(layer.op == "GRU" and layer.clip is not None for layer in case.layers)

    seed = next(s for s in range(1000) if still(testing.generate(s)) and len(testing.generate(s).layers) > 1)
    small = testing.shrink(testing.generate(seed), still)
    assert still(small)
    (layer,) = small.layers
    assert (layer.T, layer.B, layer.I, layer.H, layer.direction, layer.activations) == (1, 1, 1, 1, "forward", None)
    assert (small.depth, small.naming, small.recipe, small.calibrated) == (0, "plain", "int8", False)


def test_cases_have_the_data_that_their_recipe_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="calibrated=True"):
        testing.Case(layers=(testing.RecurrentCase(),), recipe="pow2-int16")
    assert main(["--cases", "1", "--seed", "2", "--recipe", "pow2-int16"]) == 0, capsys.readouterr().out


def test_recurrences_are_made_smaller() -> None:
    case = testing.Case(recurrence=testing.RecurrenceCase(op="GRU", activations=("HardSigmoid", "Softsign"), time=5))
    made = testing.shrink(case, lambda c: c.recurrence is not None and c.recurrence.op == "GRU")
    assert made.recurrence is not None
    assert (made.recurrence.activations, made.recurrence.time) == (("Sigmoid", "Tanh"), 1)


def test_shrinking_ends() -> None:
    asked = []
    testing.shrink(testing.generate(0), lambda case: not asked.append(case) and False, most=5)
    assert len(asked) <= 5


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_command_without_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "2", "--seed", "3", "-o", str(tmp_path / "found")]) == 0
    assert "2 case(s) from seed 3: 0 with findings" in capsys.readouterr().out
    assert not (tmp_path / "found").exists()


def test_command_with_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _plant(monkeypatch, "signature")
    seed = next(s for s in range(100) if testing.generate(s).layers and testing.generate(s).recipe == "int8")
    assert main(["--cases", "1", "--seed", str(seed), "-o", str(tmp_path), "--no-shrink"]) == 1
    assert "signature" in capsys.readouterr().out
    folder = tmp_path / str(seed)
    names = {p.name for p in folder.iterdir()}
    feeds_of_case = {f"feeds_{k}.npz" for k in range(len(names) - 2)}
    assert len(feeds_of_case) > 1 and names == {*feeds_of_case, "model.onnx", "report.txt"}
    onnx.checker.check_model(onnx.load(folder / "model.onnx"))
    report = (folder / "report.txt").read_text()
    assert f"seed {seed}" in report and "signature" in report
    with np.load(folder / "feeds_0.npz") as feeds:
        assert feeds.files


def test_draws_of_a_seed() -> None:
    one, two = draws.SeededDraws(7), draws.SeededDraws(7)
    assert [one.integer(0, 100) for _ in range(5)] == [two.integer(0, 100) for _ in range(5)]
    values = {draws.SeededDraws(s).eighths(-0.5, 0.5) for s in range(100)}
    assert values == {k / 8 for k in range(-4, 5)}
