"""Number formats of all cells of a model: where each scale comes from.

What these would catch: a shared scale that is not shared or that forgets a member, a format taken from a point that is
not resolved yet, statistics that are not looked at or looked at under another name, settings that contradict each other
and pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rnnqc.calibration.calibrate import calibrate
from rnnqc.cells.base import GATES, LSTM_POINTS
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, UsageError
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Model, constant_array, graph_info
from rnnqc.passes.formats.derived_formats import Points
from rnnqc.passes.formats.formats import resolve_formats
from rnnqc.recipes.recipe import Recipe, load_recipe, parse_recipe
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import before

LAYERS = [RecurrentCase(T=5, B=2, I=4, H=6), RecurrentCase(T=5, B=2, I=6, H=6, direction="bidirectional", seed=1)]
PROTO = stacked_model(LAYERS)
STATISTICS = calibrate(PROTO, [LAYERS[0].feeds()])
CELLS = ("layer0.forward", "layer1.forward", "layer1.reverse")
EIGHT = '[[rule]]\npoints = "*"\nbits = 8\nsigned = true\nmode = "static"\nrange = "min-max"\n'


def _model() -> Model:
    return before("insert-qcdq", PROTO)


def _resolved(recipe: Recipe, statistics: Statistics | None = STATISTICS) -> Mapping[str, Points | None]:
    model = _model()
    held = graph_info(model.graph).initializers
    arrays = {
        c.name: {k: constant_array(held[n]) for k, n in (("W", c.W), ("R", c.R), ("B", c.B))}
        for c in model.cells.values()
    }
    return resolve_formats(list(model.cells.values()), recipe, arrays, statistics)  # type: ignore[arg-type]


def _recipe(text: str, *overrides: str) -> Recipe:
    return parse_recipe(text, "mine.toml").with_overrides(overrides)


def _scale(points: Mapping[str, Points | None], cell: str, point: str) -> Any:
    found = points[cell]
    assert found is not None
    scales = found[point].scale
    return scales[0] if len(scales) == 1 else list(scales)


def test_ranges_come_from_the_point_of_the_same_name() -> None:
    points = _resolved(_recipe(EIGHT))
    for cell in CELLS:
        for name in ("input", "hidden", "cell_state", "cell_state.kept", "input_gate.input_product", "forget_gate.acc"):
            seen = STATISTICS.points[f"{cell}.{name}"]
            expected = np.float32(max(abs(seen.min), abs(seen.max)) / 127)
            assert _scale(points, cell, name) == pytest.approx(expected, rel=1e-6), f"{cell}.{name}"


def test_one_edited_value_changes_one_scale() -> None:
    path = "layer1.reverse.output_gate.acc"
    edited = replace(STATISTICS.points[path], max=100.0)
    changed = replace(STATISTICS, points={**STATISTICS.points, path: edited})
    before_, after = _resolved(_recipe(EIGHT)), _resolved(_recipe(EIGHT), changed)
    differing = [
        f"{c}.{p.name}" for c in CELLS for p in LSTM_POINTS if (before_[c] or {})[p.name] != (after[c] or {})[p.name]
    ]
    assert differing == [path]
    assert _scale(after, "layer1.reverse", "output_gate.acc") == pytest.approx(100 / 127)


@pytest.mark.parametrize("share", ["io", "{layer}", "{cell}", "{layer}/{point}", "none"])
def test_shared_scales_cover_all_members(share: str) -> None:
    points = _resolved(_recipe(EIGHT, f"*.input.share={share}", f"*.hidden.share={share}"))
    groups: dict[str, list[tuple[str, str]]] = {}
    for cell in CELLS:
        for name in ("input", "hidden"):
            label = f"{cell}.{name}" if share == "none" else share
            label = label.format(layer=cell.partition(".")[0], cell=cell, point=name)
            groups.setdefault(label, []).append((cell, name))
    assert len(groups) == {"io": 1, "{layer}": 2, "{cell}": 3, "{layer}/{point}": 4, "none": 6}[share]
    for members in groups.values():
        seen = [STATISTICS.points[f"{c}.{n}"] for c, n in members]
        expected = max(max(-s.min, s.max) for s in seen) / 127
        for cell, name in members:
            assert _scale(points, cell, name) == pytest.approx(expected, rel=1e-6)


def test_gates_share_by_placeholder() -> None:
    points = _resolved(_recipe(EIGHT, "*.acc.share={cell}/acc"))
    for cell in CELLS:
        assert len({_scale(points, cell, f"{g}.acc") for g in GATES}) == 1
    assert len({_scale(points, c, "input_gate.acc") for c in CELLS}) == 3


def test_w_and_r_share_the_scale_of_each_gate() -> None:
    points = _resolved(_recipe(EIGHT, "*.weight.granularity=per-gate", "*.weight.share={cell}", "*.weight.narrow=true"))
    parameters = LAYERS[0].parameters()
    for gate in range(4):
        rows = slice(6 * gate, 6 * gate + 6)
        largest = max(np.abs(parameters[k][0][rows]).max() for k in ("W", "R"))
        for key in ("W", "R"):
            found = np.unique(_scale(points, CELLS[0], f"{key}.weight")[rows])
            assert found == pytest.approx([largest / 127], rel=1e-6)
    assert _scale(points, CELLS[1], "W.weight") != _scale(points, CELLS[2], "W.weight")


def test_weights_of_different_sizes_share_one_scale_per_tensor_only() -> None:
    points = _resolved(_recipe(EIGHT, "*.weight.granularity=per-tensor", "*.weight.share=all"))
    assert len({_scale(points, c, f"{k}.weight") for c in CELLS for k in "WR"}) == 1
    wide = stacked_model([LAYERS[0], RecurrentCase(T=5, B=2, I=6, H=3)])
    model = before("insert-qcdq", wide)
    held = graph_info(model.graph).initializers
    arrays = {c.name: {k: constant_array(held[n]) for k, n in (("W", c.W), ("R", c.R))} for c in model.cells.values()}
    with pytest.raises(UsageError, match="share = 'all' of weights with different numbers of output channels"):
        resolve_formats(
            list(model.cells.values()),
            load_recipe("int8").with_overrides(["*.weight.share=all"]),
            arrays,  # type: ignore[arg-type]
        )


def test_formats_of_other_points() -> None:
    points = _resolved(
        _recipe(
            EIGHT,
            "*.acc.same_as=cell_state",
            "*.cell_state.same_as=hidden",
            "*.bias.same_as=acc",
            "*.acc.rounding=floor",
        )
    )
    for cell in CELLS:
        found = points[cell]
        assert found is not None
        hidden = found["hidden"]
        for name in ("cell_state", *(f"{g}.acc" for g in GATES)):
            held, wanted = found[name].complete, hidden.complete
            assert (held.bits, held.scale, held.zero_point) == (wanted.bits, wanted.scale, wanted.zero_point)
        assert found["input_gate.acc"].integers.rounding is Rounding.FLOOR is not found["cell_state"].integers.rounding
        assert found["bias"].scale == hidden.scale * 24
        assert found["bias"].complete.axis == 0


def test_the_bias_at_the_scale_of_products() -> None:
    points = _resolved(_recipe(EIGHT, "*.bias.mode=product", "*.bias.bits=32", "*.weight.granularity=per-gate"))
    for cell in CELLS:
        x, w = _scale(points, cell, "input"), np.array(_scale(points, cell, "W.weight"))
        np.testing.assert_allclose(_scale(points, cell, "bias"), x * w, rtol=1e-6)
    with pytest.raises(CompileError, match=r"bias.*mode = product without the scales of input and W"):
        _resolved(load_recipe("int8").with_overrides(["*.bias.bits=32", "*.bias.mode=product"]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["*.acc.same_as=cell_state", "*.cell_state.same_as=input_gate.acc"], r"take their formats from each other"),
        (["*.acc.same_as=nothing"], r"acc.*same_as = 'nothing'"),
        (["*.acc.same_as=W.weight", "*.weight.granularity=per-gate"], r"same_as = 'W.weight'.*one scale"),
        (["*.acc.share={gates}"], r"share = '\{gates\}'.*\{cell\}, \{layer\}, \{gate\}, \{point\}"),
        (["*.hidden.range=n-std"], r"hidden.*n_std"),
        (["*.hidden.range=mean"], r"hidden.*range = 'mean'"),
        (["*.weight.range=average"], r"weight.*range = 'average'"),
        (["*.hidden.levels=min-code", "*.hidden.narrow=true"], r"hidden.*levels"),
        (["*.weight.granularity=per-gate", "*.weight.group_size=32", "*.weight.bits=4"], r"group_size.*granularity"),
        (
            ["*.weight.limit=0.5", "*.weight.group_size=32", "*.weight.bits=4", "*.weight.narrow=true"],
            r"weight.*group_size = 32 with limit = 0.5",
        ),
        (["*.weight.codebook=uneven"], r"codebook = uneven with bits = 8.*weights of 4 bits"),
        (["*.weight.codebook=uneven", "*.weight.bits=4"], r"codebook = uneven with group_size = none.*in groups"),
        (["*.half_range=true", "*.weight.range=min-max", "*.range=gauss"], r"half_range = true with symmetric = true"),
        (["*.hidden.bits=1"], r"layer0.forward.hidden.*bits = 1.*no weight.*hidden.bits=2"),
        (["*.cell_state.bits=1"], r"layer0.forward.cell_state.*bits = 1"),
        (["*.accumulator.bits=1"], r"layer0.forward.accumulator.*bits = 1"),
        (["*.forget_gate.activation.bits=1"], r"layer0.forward.forget_gate.activation.*bits = 1"),
    ],
)
def test_settings_that_make_no_format(overrides: list[str], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        _resolved(_recipe(EIGHT, *overrides))


def test_limits_of_weights() -> None:
    """The largest weight beyond the limit does not count; those within do."""
    exact, limited = (_resolved(_recipe(EIGHT, "*.weight.granularity=per-tensor", *o)) for o in ((), ("*.limit=0.25",)))
    for cell in CELLS:
        for key in ("W.weight", "R.weight"):
            assert _scale(exact, cell, key) * 127 > 0.5
            assert _scale(limited, cell, key) == np.float32(0.25 / 127)
    wide = _resolved(_recipe(EIGHT, "*.weight.granularity=per-tensor", "*.weight.limit=100"))
    assert wide == exact


@pytest.mark.parametrize("rule", ["gauss", "laplace"])
def test_half_ranges(rule: str) -> None:
    """One side of the distribution: half as wide, with the constants of one more bit."""
    asymmetric = ("*.symmetric=false", "*.signed=false", f"*.hidden.range={rule}")
    whole, half = (_resolved(_recipe(EIGHT, *asymmetric, *o)) for o in ((), ("*.hidden.half_range=true",)))
    for cell in CELLS:
        assert _scale(half, cell, "hidden") < 0.8 * _scale(whole, cell, "hidden")
        assert _scale(half, cell, "input") == _scale(whole, cell, "input")


@pytest.mark.parametrize("recipe", ["int8-static", "w4a8"])
def test_limits_of_compensated_weights(recipe: str) -> None:
    overrides = ["*.weight.limit=0.25", "*.weight.group_size=none"]
    points = _resolved(load_recipe(recipe).with_overrides(overrides))
    for cell in CELLS:
        found = points[cell]
        assert found is not None
        scales = np.array(found["R.weight"].scale) * (2 ** (found["R.weight"].bits - 1) - 1)
        assert scales.max() == pytest.approx(0.25, rel=1e-6)


def test_statistics_of_another_model() -> None:
    fewer = replace(STATISTICS, points={k: v for k, v in STATISTICS.points.items() if k != "layer1.forward.hidden"})
    with pytest.raises(CompileError, match=r"the statistics say nothing about 'layer1\.forward\.hidden'.*calibrate"):
        _resolved(_recipe(EIGHT), fewer)
    with pytest.raises(CompileError, match=r"layer0\.forward\.input.*no scale, and there is no calibration data"):
        _resolved(_recipe(EIGHT), None)


def test_what_is_shared_is_the_range() -> None:
    """Members of one share may have different bits."""
    points = _resolved(_recipe(EIGHT, "*.input.share=io", "*.hidden.share=io", "*.hidden.bits=16"))
    for cell in CELLS:
        x, h = _scale(points, cell, "input"), _scale(points, cell, "hidden")
        assert x * 127 == pytest.approx(h * 32767, rel=1e-6)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("*.input.mode=activation", r"layer0\.forward\.input.*mode = activation.*dynamic-row or static"),
        ("*.input.mode=bounded", r"mode = bounded.*dynamic-row or static"),
        ("*.hidden.mode=product", r"mode = product.*bounded or dynamic-row or static"),
        ("*.acc.mode=dynamic-row", r"mode = dynamic-row.*activation or static"),
        ("*.activation.mode=bounded", r"mode = bounded.*mode = static"),
        ("*.cell_state.mode=dynamic-row", r"mode = dynamic-row.*bounded or static"),
        ("*_product.mode=dynamic-row", r"mode = dynamic-row.*mode = static"),
        ("*.bias.mode=bounded", r"mode = bounded.*product or static"),
    ],
)
def test_a_mode_that_a_point_does_not_have_is_no_silence(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _resolved(_recipe(EIGHT, override))


def test_weights_share_no_scale_with_activations() -> None:
    with pytest.raises(UsageError, match=r"share = 'x' of layer0\.forward\.W\.weight and layer0\.forward\.input"):
        _resolved(_recipe(EIGHT, "*.share=x"))
    _resolved(_recipe(EIGHT, "*.weight.share=w", "*.share=x"))


@pytest.mark.parametrize("share", ["{cell.size}", "{nothing}", "{cell", "{cell:d}", "x{}"])
def test_names_that_cannot_be_filled_in(share: str) -> None:
    with pytest.raises(UsageError, match=r"\*\.input\.share.*share = .*\{cell\}, \{layer\}"):
        _resolved(_recipe(EIGHT, f"*.input.share={share}"))


def test_rows_have_no_rounded_output() -> None:
    overrides = ["*.hidden.mode=dynamic-row", "*.hidden.rounded_output=true"]
    with pytest.raises(UsageError, match=r"hidden.*rounded_output = true.*mode = static"):
        _resolved(load_recipe("int8").with_overrides(overrides))
