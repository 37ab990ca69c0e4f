"""Recipes: rules, overrides and their messages.

What these would catch: a later rule that beats an earlier one, a misspelt key that is silently ignored, a value that
passes and fails much later, a recipe file whose mistakes are not located.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rnnqc.cells.base import LSTM_POINTS
from rnnqc.errors import CompileError, UsageError
from rnnqc.formats.rounding import Rounding
from rnnqc.recipes.keys import KEYS, require, rounding_of
from rnnqc.recipes.recipe import Recipe, builtin_recipes, load_recipe, parse_recipe, recipe_text
from rnnqc.recipes.rules import Rule, parse_override

TEXT = """
name = "mine"
summary = "for tests"
[[rule]]
points = "encoder/*.weight"
bits = 4
[[rule]]
points = "*.weight"
bits = 8
signed = true
[[rule]]
points = "*"
bits = "none"
signed = false
"""


def test_first_match_wins_for_each_key() -> None:
    recipe = parse_recipe(TEXT, "mine.toml")
    assert (recipe.name, recipe.summary, len(recipe.rules)) == ("mine", "for tests", 3)
    assert recipe.settings("encoder/lstm.forward.W.weight") == {"bits": 4, "signed": True}
    assert recipe.settings("decoder.forward.W.weight") == {"bits": 8, "signed": True}
    assert recipe.settings("decoder.forward.input") == {"bits": None, "signed": False}
    assert Recipe("empty", "", ()).settings("anything") == {}


def test_overrides_come_first_and_in_order() -> None:
    recipe = parse_recipe(TEXT, "mine.toml").with_overrides(
        ["*.R.weight.bits=3", "*.weight.bits=6", "*.input.scale=0.5"]
    )
    assert recipe.settings("encoder/a.forward.R.weight")["bits"] == 3
    assert recipe.settings("encoder/a.forward.W.weight")["bits"] == 6
    assert recipe.settings("a.forward.input") == {"scale": 0.5, "bits": None, "signed": False}


@pytest.mark.parametrize(
    ("text", "points", "key", "value"),
    [
        ("*.weight.bits=4", "*.weight", "bits", 4),
        (" encoder/*.W.weight.bits = 4 ", "encoder/*.W.weight", "bits", 4),
        ("*.bits=none", "*", "bits", None),
        ("*.bits=None", "*", "bits", None),
        ("a.b.input.mode=static", "a.b.input", "mode", "static"),
        ('a.input.mode="static"', "a.input", "mode", "static"),
        ("a.input.chain=false", "a.input", "chain", False),
        ("a.input.scale=1e-3", "a.input", "scale", 0.001),
        ("a.input.scale=2", "a.input", "scale", 2.0),
        ("a.input.zero_point=-3", "a.input", "zero_point", -3),
        ("a.acc.rounding=half_up", "a.acc", "rounding", "half_up"),
        ("*.weight.group_size=64", "*.weight", "group_size", 64),
        ("*.weight.group_size=none", "*.weight", "group_size", None),
        ("*.weight.wide_channels=0", "*.weight", "wide_channels", 0.0),
        ("*.weight.wide_channels=0.05", "*.weight", "wide_channels", 0.05),
    ],
)
def test_override_syntax(text: str, points: str, key: str, value: Any) -> None:
    rule = parse_override(text)
    assert (rule.points, dict(rule.settings)) == (points, {key: value})
    assert type(rule.settings[key]) is type(value)


@pytest.mark.parametrize("text", ["", "bits=4", ".bits=4", "*.weight.bits", "=4", "*.weight"])
def test_malformed_override(text: str) -> None:
    with pytest.raises(UsageError, match=r'not of the form PATH\.KEY=VALUE.*overrides=\["\*\.weight\.bits=4"\]'):
        parse_override(text)


def test_unknown_key_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        parse_override("*.weight.bit=4")
    assert "unknown key 'bit'" in str(caught.value)
    assert all(key in str(caught.value) for key in KEYS)
    with pytest.raises(UsageError, match=r"mine\.toml, rule 2: unknown key 'widht'") as caught:
        parse_recipe('[[rule]]\npoints = "*"\n[[rule]]\npoints = "*"\nwidht = 8', "mine.toml")
    assert all(key in str(caught.value) for key in KEYS)


@pytest.mark.parametrize(
    "setting",
    [
        "bits=0",
        "bits=33",
        "bits=true",
        "bits=8.0",
        "bits=eight",
        "signed=1",
        "narrow=yes",
        "chain=0",
        "scale=0",
        "scale=-1.0",
        "scale=inf",
        "scale=nan",
        "scale=true",
        "scale=1e-31",
        "scale=big",
        "zero_point=1.5",
        "zero_point=true",
        "granularity=per-row",
        "group_size=0",
        "group_size=-32",
        "group_size=20",
        "group_size=true",
        "group_size=64.0",
        "wide_channels=-0.1",
        "wide_channels=1.5",
        "wide_channels=true",
        "wide_channels=nan",
        "wide_channels=some",
        "mode=dynamic",
        "rounding=nearest",
        "table=linear",
    ],
)
def test_unknown_value_says_what_the_key_accepts(setting: str) -> None:
    key = setting.partition("=")[0]
    with pytest.raises(UsageError) as caught:
        parse_override(f"*.weight.{setting}")
    assert f"{key} = " in str(caught.value)
    assert f"Supported: {KEYS[key].accepts}." in str(caught.value)


@pytest.mark.parametrize("values", ["[1]", "{a = 1}"])
@pytest.mark.parametrize("key", sorted(KEYS))
def test_no_key_takes_a_list_or_a_table(key: str, values: str) -> None:
    """Except for lists of the channels."""
    values = "[true]" if key in ("scale", "zero_point") and values == "[1]" else values
    with pytest.raises(UsageError, match=key):
        parse_override(f"*.weight.{key}={values}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", r"mine\.toml: not a TOML file"),
        ('nam = "x"', r"mine\.toml: unknown entry 'nam'.*name, summary, base, kind, \[\[rule\]\]"),
        ("[[rule]]\nbits = 8", r"mine\.toml, rule 1: 'points' is missing"),
        ("[[rule]]\npoints = 3", r"mine\.toml, rule 1: 'points' is missing"),
        ("rule = [3]", r"mine\.toml, rule 1: 'points' is missing"),
        ('[[rule]]\npoints = "*"\n[[rule]]\npoints = "*"\nbits = 99', r"mine\.toml, rule 2: bits = 99"),
    ],
)
def test_wrong_recipe_is_located(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_recipe(text, "mine.toml")


@pytest.mark.parametrize("text", ["rule = 3", 'rule = "x"', "[rule]\npoints = '*'"])
def test_rules_that_are_no_list(text: str) -> None:
    with pytest.raises(UsageError, match=r"mine\.toml.*\[\[rule\]\]"):
        parse_recipe(text, "mine.toml")


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT, encoding="utf-8")
    assert load_recipe(str(path)) == parse_recipe(TEXT, str(path))


def test_file_without_a_name_is_called_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plain.toml"
    path.write_text("", encoding="utf-8")
    assert load_recipe(str(path)) == Recipe(str(path), "", ())


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml: cannot be read"):
        load_recipe(str(tmp_path / "absent.toml"))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe4"')
    with pytest.raises(UsageError, match=r"latin\.toml: cannot be read"):
        load_recipe(str(tmp_path / "latin.toml"))


def test_unknown_name_lists_the_recipes() -> None:
    with pytest.raises(UsageError, match=r"no recipe 'int9'.*Supported: .*int8.*\.toml"):
        load_recipe("int9")


@pytest.mark.parametrize("recipe", builtin_recipes(), ids=lambda r: r.name)
def test_builtin(recipe: Recipe) -> None:
    """Its name is that of its file alone; a copy of the file is called after the copy."""
    assert load_recipe(recipe.name) == recipe
    assert parse_recipe(recipe_text(recipe.name), "mine.toml").name == "mine.toml"
    assert recipe.summary
    assert recipe.unmatched(["any/cell.forward"]) == [], "a rule without a point is a mistake"
    for point in LSTM_POINTS:
        if point.name == "accumulator":
            continue  # exact where nothing is said
        if recipe.kind == "cells" or point.name.endswith(".weight"):
            assert "bits" in recipe.settings(f"cell.{point.name}"), point.name


@pytest.mark.parametrize("recipe", builtin_recipes(), ids=lambda r: r.name)
def test_builtin_has_no_setting_without_effect(recipe: Recipe) -> None:
    """A key that none of the points of a rule understands is a mistake."""
    assert Recipe("r", "", recipe.rules, len(recipe.rules)).without_effect(["any/cell.forward"]) == []


def test_base_rules_follow() -> None:
    recipe = parse_recipe('base = "int8"\n[[rule]]\npoints = "*.weight"\nbits = 4', "mine.toml")
    assert recipe.settings("a.forward.W.weight") == {**load_recipe("int8").settings("a.forward.W.weight"), "bits": 4}
    assert parse_recipe('base = "fp16"', "mine.toml").kind == "weight-only"
    for base in ('"int9"', '"../int8"', "3"):
        with pytest.raises(UsageError, match=r"mine\.toml: base = "):
            parse_recipe(f"base = {base}", "mine.toml")
    with pytest.raises(UsageError, match=r"mine\.toml: kind = 'x'.*cells, weight-only"):
        parse_recipe('kind = "x"', "mine.toml")


def test_unmatched_names_globs_that_speak_about_nothing() -> None:
    rules = (Rule("a.*", {}), Rule("b.forward.W.weight", {}), Rule("*.inptu", {}), Rule("c.*", {}))
    assert Recipe("r", "", rules, overrides=4).unmatched(["a.forward", "b.forward"]) == ["*.inptu", "c.*"]
    # A recipe is for many models: only overrides have to match.
    assert Recipe("r", "", rules, overrides=3).unmatched(["a.forward", "b.forward"]) == ["*.inptu"]
    assert Recipe("r", "", rules).unmatched(["a.forward", "b.forward"]) == []


def test_regular_expressions_match_whole_paths() -> None:
    recipe = parse_recipe('[[rule]]\npoints = "re:encoder.*[WR].weight"\nbits = 4', "mine.toml")
    assert recipe.settings("encoder/a.forward.W.weight") == {"bits": 4}
    assert recipe.settings("an_encoder/a.forward.W.weight") == recipe.settings("encoder/a.forward.W.weights") == {}
    with pytest.raises(UsageError, match=r"mine\.toml, rule 1: 're:\(' is no regular expression"):
        parse_recipe('[[rule]]\npoints = "re:("', "mine.toml")
    with pytest.raises(UsageError, match="is no regular expression"):
        parse_override("re:[.bits=4")


def test_what_a_file_says_in_vain() -> None:
    text = '[[rule]]\npoints = "*.inptu"\nbits = 4\n[[rule]]\npoints = "*.input"\ntable = "exact"\nbits = 8\n'
    recipe = parse_recipe('base = "int8"\n' + text, "mine.toml").with_overrides(["*.weight.bits=4"])
    assert recipe.idle(["a.forward"]) == [
        "no quantization point matches '*.inptu'",
        "*.input.table: no quantization point that matches understands 'table'",
    ]
    assert load_recipe("int8").idle(["a.forward"]) == []


def test_formats_of_another_cell_are_one_message() -> None:
    """A saved file has some thirty rules for each cell; the first few and the name that is there are enough."""
    texts = [f'[[rule]]\npoints = "old.{point}"\nbits = 8\n' for point in ("input", "hidden", "W.weight", "R.weight")]
    (text,) = parse_recipe("".join(texts), "mine.toml").idle(["new.forward"])
    assert text.startswith("no quantization point matches 4 of its rules: 'old.input', 'old.hidden', 'old.W.weight' ")
    assert text.endswith("and 1 more; the cells of this model are 'new.forward'")


def test_the_wrong_number_of_a_list_is_named() -> None:
    text = f'[[rule]]\npoints = "*.weight"\nscale = {[0.5] * 200 + [0.0] + [0.5] * 55}\n'
    with pytest.raises(UsageError, match=r"^mine\.toml, rule 1: scale\[200\] = 0\.0\. Supported: a number from 2"):
        parse_recipe(text, "mine.toml")


def test_python_s_warnings_of_sets_are_not_shown(recwarn: pytest.WarningsRecorder) -> None:
    parse_recipe('[[rule]]\npoints = "re:a[[b]"\nbits = 8\n', "mine.toml")
    assert not recwarn.list


def test_text_of_a_recipe(tmp_path: Path) -> None:
    assert parse_recipe(recipe_text("w4a8"), "w4a8.toml").rules == load_recipe("w4a8").rules
    (tmp_path / "mine.toml").write_text(TEXT, encoding="utf-8")
    assert recipe_text(str(tmp_path / "mine.toml")) == TEXT
    with pytest.raises(UsageError, match="no recipe 'int9'"):
        recipe_text("int9")


def test_globs_are_case_sensitive() -> None:
    assert Rule("*.W.weight", {}).matches("a.forward.W.weight")
    assert not Rule("*.w.weight", {}).matches("a.forward.W.weight")


def test_reading_settings() -> None:
    assert rounding_of({}) is Rounding.HALF_EVEN
    assert rounding_of({"rounding": "floor"}) is Rounding.FLOOR
    assert require({"scale": 0.5}, "scale", "a.input") == 0.5
    with pytest.raises(
        CompileError, match=r'does not say .scale. of .a\.input.*overrides=\["a\.input\.scale=\.\.\."\]'
    ):
        require({}, "scale", "a.input")


def test_wildcards_do_not_reach_accumulators() -> None:
    """Saturating sums of 16 bits are not what somebody means who asks for 16-bit values."""
    recipe = parse_recipe(TEXT, "mine.toml").with_overrides(["*.bits=16", "re:.*.forward.*.bits=12"])
    assert recipe.settings("a.forward.cell_state")["bits"] == 16
    assert "bits" not in recipe.settings("a.forward.accumulator")
    for glob in ("*.accumulator", "a.*.accumulator", "re:.*\\.accumulator"):
        assert recipe.with_overrides([f"{glob}.bits=24"]).settings("a.forward.accumulator")["bits"] == 24


FOLLOWING = """
name = "follows"
summary = "for tests"
[[rule]]
points = "*.b"
same_as = "a"
[[rule]]
points = "*.c"
same_as = "b"
[[rule]]
points = "*"
bits = 8
range = "mse"
"""


@pytest.mark.parametrize(
    ("overrides", "follows"),
    [
        ([], {"b": "a", "c": "b"}),
        (["*.b.bits=16"], {"c": "b"}),
        (["*.c.bits=16"], {"b": "a"}),
        (["*.bits=16"], {"b": "a", "c": "b"}),
        (["x.c.bits=16", "x.b.bits=16"], {"c": "b"}),
        (["*.c.limit=2.0"], {"b": "a"}),
        (["*.c.share=one"], {"b": "a"}),
        (["*.c.range=mse"], {"b": "a", "c": "b"}),
        (["*.c.percentile=99"], {"b": "a", "c": "b"}),
        (["*.c.pow2=false"], {"b": "a", "c": "b"}),
        (["*.c.rounding=floor"], {"b": "a", "c": "b"}),
        (["*.c.same_as=a", "*.c.bits=16"], {"b": "a", "c": "a"}),
        (["*.c.same_as=none"], {"b": "a"}),
    ],
)
def test_an_override_of_a_format_ends_same_as(overrides: list[str], follows: dict[str, str]) -> None:
    recipe = parse_recipe(FOLLOWING, "follows.toml")
    for given in (recipe.with_overrides(overrides), replace(recipe, own=0).with_overrides(overrides)):
        made = given.settings_of_points("x", "abc", lambda _, target: [target])
        assert {p: s["same_as"] for p, s in made.items() if s.get("same_as")} == follows


def test_points_that_follow_each_other() -> None:
    text = FOLLOWING.replace('points = "*"', 'points = "*.a"\nsame_as = "c"\n[[rule]]\npoints = "*"')
    made = parse_recipe(text, "circle.toml").with_overrides(["*.b.bits=16"])
    assert "same_as" not in made.settings_of_points("x", "abc", lambda _, target: [target])["b"]
