"""The report of a lowering.

What these would catch: an entry that is lost on the way to JSON, a float node that is not explained.
"""

from __future__ import annotations

import json

from rnnqc.lowering.reports.report import Entry, Report


def test_explanation() -> None:
    plain = Entry("body/lstm", "LSTM", "float", reason="W is not constant.")
    assert plain.explanation == "Operator \"LSTM\" (node 'body/lstm') stays float: W is not constant."
    full = Entry("l", "GRU", "float", reason="no.", found="a GRU", action="wait")
    assert full.explanation.endswith("stays float: no. Found: a GRU. Resolution: wait.")


def test_float_entries() -> None:
    entries = [Entry("a", "LSTM", "lowered", "fused"), Entry("b", "GRU", "float"), Entry("c", "LSTM", "lowered")]
    assert [e.node for e in Report("m.onnx", "int8", "fused", entries).float_entries] == ["b"]


def test_json() -> None:
    report = Report(
        "m.onnx", "int8", "fused", [Entry("a", "LSTM", "lowered", "fused", cells=["a.forward"])], seconds=[("p", 0.5)]
    )
    data = json.loads(json.dumps(report.to_dict()))
    assert data["entries"][0]["cells"] == ["a.forward"]
    assert data["seconds"] == [["p", 0.5]]
    assert set(data) == set(vars(report))


def test_reports_share_nothing() -> None:
    Report("a", "r", "f").entries.append(Entry("n", "LSTM", "float"))
    assert Report("b", "r", "f").entries == []
