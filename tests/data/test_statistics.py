"""The statistics file: the same numbers and bytes after a round trip, edits that count, and nothing wrong accepted.

What these would catch: numbers that change in the file, an order that depends on hashes, an edit that is ignored, a
damaged file that is used or ends in a traceback.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import rnnqc
from rnnqc.data.statistics import NUMBERS, PointStatistics, Statistics
from rnnqc.formats.compensation import shrunk
from rnnqc.formats.histogram import Histogram
from tests.generate.layers import RecurrentCase

CASE = RecurrentCase(direction="bidirectional", B=3, T=6)
ONE = RecurrentCase(T=2, B=1)


@pytest.fixture(scope="module")
def statistics() -> Statistics:
    return rnnqc.calibrate(CASE.model(), [CASE.feeds()])


@pytest.fixture(scope="module")
def saved(statistics: Statistics, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("saved") / "stats.json"
    statistics.save(path)
    return path.read_text()


@pytest.fixture
def file(saved: str, tmp_path: Path) -> Path:
    (tmp_path / "stats.json").write_text(saved)
    return tmp_path / "stats.json"


def test_round_trip(statistics: Statistics, file: Path, tmp_path: Path) -> None:
    loaded = Statistics.load(file)
    assert loaded.source == str(file) and loaded.cells == statistics.cells and loaded.settings == statistics.settings
    assert loaded.points.keys() == statistics.points.keys()
    for name, point in statistics.points.items():
        for key in NUMBERS:
            assert getattr(loaded.points[name], key) == getattr(point, key), f"{name}.{key}"
        for key in ("channel_max", "channel_mean", "channel_square", "second_moment"):
            a, b = getattr(loaded.points[name], key), getattr(point, key)
            assert (a is None) == (b is None)
            assert a is None or (a.dtype == b.dtype and a.tobytes() == b.tobytes()), (
                "lowering is the same from the file"
            )
        assert loaded.points[name].as_dict() == point.as_dict()
        assert loaded.points[name].fix_positions == point.fix_positions
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == file.read_bytes()


def test_second_moments_are_symmetric_and_those_of_the_values(statistics: Statistics) -> None:
    moment = statistics.points["the_lstm.forward.input"].second_moment
    assert moment is not None and (moment == moment.T).all()
    rows = CASE.feeds()["X"].reshape(-1, CASE.I).astype(np.float64)
    np.testing.assert_allclose(moment, rows.T @ rows / len(rows), rtol=1e-5, atol=1e-6)


def test_rounding_uses_shrunk_moments(statistics: Statistics) -> None:
    """Shrunk for the number of rows; as they are where a file does not have the means of channels."""
    point = statistics.points["the_lstm.forward.input"]
    rows = CASE.feeds()["X"].reshape(-1, CASE.I)
    assert point.second_moment is not None and point.channel_mean is not None
    wanted = shrunk(point.second_moment, point.channel_mean, len(rows))
    assert np.abs(wanted - point.second_moment).max() > 1e-3
    np.testing.assert_array_equal(point.shrunk_moment, wanted)
    np.testing.assert_array_equal(statistics.shrunk_moments["the_lstm.forward.input"], wanted)
    assert replace(point, channel_mean=None).shrunk_moment is point.second_moment
    assert replace(point, second_moment=None).shrunk_moment is None


def test_the_file_is_for_people(statistics: Statistics, file: Path) -> None:
    lines = file.read_text().splitlines()
    assert sum('"max": ' in line for line in lines) >= len(statistics.points), "one line for each scalar"
    assert max(line.count("[") for line in lines) == 1, "arrays on one line each"
    data = json.loads(file.read_text())
    assert list(data) == sorted(data) and list(data["points"]) == sorted(data["points"])
    assert data["format"] == "rnnqc-statistics" and data["version"] == 1


NUMBER = st.floats(-1e30, 1e30)


@given(
    st.lists(NUMBER, min_size=2, max_size=2).map(sorted),
    st.integers(1, 2**60),
    st.integers(-1074, 900),
    st.integers(-20, 20),
)
def test_any_numbers_survive(bounds: list[float], count: int, exponent: int, position: int) -> None:
    point = PointStatistics(
        (1, 2), count, count, bounds[0], bounds[1], bounds[0], bounds[1], bounds[0], abs(bounds[1]), 0.0,
        Histogram(2.0**exponent, position, np.array([1, 0, count])), (0.5, 1e-05), {8: {"mse": {position: count}}},
    )  # fmt: skip
    cells = {"a": {"hidden_size": 1, "input_size": 1, "op": "LSTM", "reverse": False}}
    text = Statistics({"a.input": point}, cells).text
    path = Path("/dev/shm" if Path("/dev/shm").is_dir() else ".") / "rnnqc_statistics_test.json"
    try:
        path.write_text(text)
        loaded = Statistics.load(path)
    finally:
        path.unlink()
    assert loaded.points["a.input"].as_dict() == point.as_dict() and loaded.text == text
    assert "1.0e-05" in text and not re.search(r"[\[,: ]-?\d+e", text), "YAML takes 1e-05 for a text"


@pytest.fixture(scope="module")
def saved_of_one(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Statistics of one point, for tests with an error in a single number."""
    path = tmp_path_factory.mktemp("one") / "stats.json"
    rnnqc.calibrate(ONE.model(), [ONE.feeds()]).save(path)
    return path.read_text()


@pytest.fixture
def small_file(saved_of_one: str, tmp_path: Path) -> Path:
    (tmp_path / "stats.json").write_text(saved_of_one)
    return tmp_path / "stats.json"


def edited(file: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    data = json.loads(file.read_text())
    replaced = change(data)
    file.write_text(json.dumps(data if replaced is None else replaced))
    return file


def test_an_edit_changes_one_number(statistics: Statistics, file: Path) -> None:
    text = file.read_text()
    old = statistics.points["the_lstm.forward.cell_state"].max
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if '"the_lstm.forward.cell_state": {' in line)
    at = next(k for k in range(start, len(lines)) if lines[k].strip() == f'"max": {json.dumps(old)},')
    lines[at] = '      "max": 6,'
    file.write_text("\n".join(lines))
    loaded = Statistics.load(file)
    assert loaded.points["the_lstm.forward.cell_state"].max == 6.0
    changed = [n for n, p in loaded.points.items() if p.as_dict() != statistics.points[n].as_dict()]
    assert changed == ["the_lstm.forward.cell_state"]
    assert loaded.points[changed[0]].as_dict() | {"max": old} == statistics.points[changed[0]].as_dict()


POINT, GATE = "the_lstm.forward.input", "the_lstm.forward.forget_gate.activation"


def _set(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return change


def _delete(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return change


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (_set("format", value="x"), "no statistics file"),
    "an array": (lambda data: [data], "no statistics file"),
    "another version": (_set("version", value=2), "version is 2. Supported: version 1"),
    "a text for a number": (_set("points", POINT, "max", value="6"), f'points.{POINT}.max is "6"'),
    "null": (_set("points", POINT, "max", value=None), f"points.{POINT}.max is null"),
    "true": (_set("points", POINT, "max", value=True), f"points.{POINT}.max is true"),
    "NaN": (_set("points", POINT, "mean", value=float("nan")), f"points.{POINT}.mean is NaN"),
    "infinity": (_set("points", POINT, "max", value=float("inf")), f"points.{POINT}.max is Infinity"),
    "a huge number": (_set("points", POINT, "max", value=10**400), f"points.{POINT}.max is 1000"),
    "min above max": (_set("points", POINT, "min", value=1e9), f"points.{POINT} is of min 1e+09 and max"),
    "negative deviation": (_set("points", POINT, "std", value=-1), f"points.{POINT}.std is -1"),
    "no values": (_set("points", POINT, "count", value=0), f"points.{POINT}.count is 0"),
    "half a call": (_set("points", POINT, "calls", value=1.5), f"points.{POINT}.calls is 1.5"),
    "unknown key": (_set("points", POINT, "maximum", value=1), "unknown key 'maximum'"),
    "unknown key outside": (_set("more", value=1), "unknown key 'more'"),
    "missing key": (_delete("points", POINT, "avg_max"), "without 'avg_max'"),
    "unknown cell": (_set("points", "x.input", value={}), "points.x.input is a point of none of them"),
    "no cells": (_delete("model"), "without 'model'"),
    "sizes": (_set("model", "cells", "the_lstm.forward", "hidden_size", value=-4), "hidden_size is -4"),
    "runs": (_set("points", POINT, "call_runs", value=[1, 999]), "call_runs is of 1000. Supported: runs of"),
    "width": (_set("points", POINT, "histogram", "width", value=0.3), "width is 0.3. Supported: a power of two"),
    "counts": (_set("points", POINT, "histogram", "counts", value=[1, -1]), "counts[1] is -1"),
    "no counts": (_set("points", POINT, "histogram", "counts", value=[]), "counts is []"),
    "votes": (_set("points", POINT, "fix_positions", "8", "mse", value={"a": 1}), "the key 'a'"),
    "a long number": (_set("points", POINT, "fix_positions", "8", "mse", value={"1" * 5000: 1}), "the key '111"),
    "long bits": (_set("points", POINT, "fix_positions", "1" * 5000, value={}), "the key '111"),
    "first bin": (_set("points", POINT, "histogram", "first", value=-(2**31)), "histogram.first is -2147483648"),
    "many bins": (_set("points", POINT, "histogram", "counts", value=[1] * 5000), "counts is of 5000 bins from"),
    "too few channels": (
        lambda data: data["points"][POINT].update(channel_max=[1.0], channel_mean=[1.0], second_moment="AACAPw=="),
        "is of 1. Supported: statistics of 3 channels, the input_size",
    ),
    "too few channels of a gate": (
        lambda data: data["points"][GATE].update(channel_square=[1.0], channel_mean=[1.0]),
        "is of 1. Supported: statistics of 4 channels, the hidden_size",
    ),
    "too few squares": (_set("points", GATE, "channel_square", value=[1.0]), "of different lengths"),
    "kind of votes": (_set("points", POINT, "fix_positions", "8", "best", value={}), "unknown key 'best'"),
    "bits of votes": (_set("points", POINT, "fix_positions", "x", value={}), "the key 'x'"),
    "channels": (_set("points", POINT, "channel_max", value=[1.0]), "of different lengths"),
    "moments": (_set("points", POINT, "second_moment", value="AAAA"), "second_moment is "),
    "no base64": (_set("points", POINT, "second_moment", value="%%"), "no base64"),
    "NaN moments": (_set("points", POINT, "second_moment", value="AADAfwAAwH8AAMB/AADAfwAAwH8AAMB/"), "not all finite"),
}


def test_a_tool_for_yaml_may_write_it_again(tmp_path: Path) -> None:
    """Block style with plain texts, and small numbers without a point, as tools of YAML 1.2 write them."""
    file, case = tmp_path / "stats.json", RecurrentCase(T=2)
    rnnqc.calibrate(case.model(), [case.feeds()]).save(file)
    loader, dumper = (getattr(yaml, f"C{name}", getattr(yaml, name)) for name in ("SafeLoader", "SafeDumper"))
    data = yaml.load(file.read_text(), Loader=loader)
    assert data == json.loads(file.read_text())
    data["settings"]["weights"] = {"the_lstm.forward": "5089216102452e11"}
    data["points"][POINT]["mean"] = 1.5e-07
    written = yaml.dump(data, Dumper=dumper).replace("1.5e-07", "15e-08")
    assert "the_lstm.forward: 5089216102452e11" in written and "mean: 15e-08" in written
    path = file.with_name("stats.YML")
    path.write_text(written)
    loaded = Statistics.load(path)
    assert loaded.settings["weights"] == data["settings"]["weights"]
    assert {n: p.as_dict() for n, p in loaded.points.items()} == data["points"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the whole is no statistics file"),
        ("a: [1", "is not YAML"),
        ("[" * 100_000, "is not YAML"),
        ("a: 1\na: 2", "key 'a' stands there twice"),
        ("a: &x [1]\nb: *x", "an alias, line 1"),
        ("[a]: 1", "a key that is no text"),
        ("a: 1\n---\nb: 2", "is not YAML"),
        ("a: !!python/object/apply:os.abort []", "the whole is no statistics file"),
    ],
)
def test_wrong_yaml(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "stats.yaml"
    path.write_text(text)
    with pytest.raises(rnnqc.UsageError, match=message):
        Statistics.load(path)


def test_yaml_without_its_library(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert Statistics.load(file).points
    with pytest.raises(rnnqc.UsageError, match=r"PyYAML is not installed.*pip install pyyaml"):
        Statistics.load(file.rename(file.with_name("stats.yaml")))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_entries(name: str, small_file: Path) -> None:
    change, message = WRONG[name]
    file = small_file
    with pytest.raises(rnnqc.UsageError) as caught:
        Statistics.load(edited(file, change))
    assert str(caught.value).startswith(f"{file}: ") and message in str(caught.value)
    assert "Resolution:" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"PK\x03\x04", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"format": "rnnqc-statistics", "format": "rnnqc-statistics"}', "twice"),
    ],
)
def test_no_json(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    path.write_bytes(data)
    with pytest.raises(rnnqc.UsageError, match=message):
        Statistics.load(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(rnnqc.UsageError, match=r"No such file|Is a directory"):
            Statistics.load(path)


def test_a_file_cut_off_anywhere_is_refused(file: Path) -> None:
    data = file.read_bytes()
    for length in range(0, len(data) - 2, max(1, len(data) // 40)):
        file.write_bytes(data[:length])
        with pytest.raises(rnnqc.UsageError, match="is not JSON"):
            Statistics.load(file)
