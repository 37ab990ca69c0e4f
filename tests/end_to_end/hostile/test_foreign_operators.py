"""Recurrent operators that are not ONNX's own: each is listed with what to do, and --strict refuses the model.

What these would catch: a recurrent operator of another domain that nobody mentions; one that is mentioned, but not in
subgraphs and functions; an operator with a similar name that is none.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import rnnqc
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process

FOREIGN = {
    "DynamicQuantizeLSTM": ("com.microsoft", "DynamicQuantizeLSTM", {}, "already quantized", "lower the float model"),
    "AttnLSTM": ("com.microsoft", "AttnLSTM", {}, "attention", "Scan of its step"),
    "BeamSearch": ("com.microsoft", "BeamSearch", {}, "search operator", "a model of its own"),
    "GreedySearch": ("com.microsoft", "GreedySearch", {}, "search operator", "a model of its own"),
    "aten::lstm": ("org.pytorch.aten", "ATen", {"operator": "lstm"}, "PyTorch's own operator", "dynamo=True"),
    "aten::gru_cell": ("org.pytorch.aten", "ATen", {"operator": "gru_cell"}, "PyTorch's own", "dynamo=True"),
    "of a vendor": ("com.vendor", "FusedGRU", {}, "is not known", "ONNX's LSTM, GRU or RNN"),
    "of another": ("my.ops", "rnn", {}, "is not known", "ONNX's LSTM, GRU or RNN"),
}
OTHERS = [("com.microsoft", "Gelu", {}), ("org.pytorch.aten", "ATen", {"operator": "relu"}), ("my.ops", "turn", {})]


def model(domain: str, op: str, attributes: dict[str, str], place: str = "main graph") -> onnx.ModelProto:
    """A layer that is lowered, and a custom operator behind it, or in a branch, or in a function."""
    proto = RecurrentCase(outputs=("Y",)).model()
    node = helper.make_node(op, ["Y"], ["Z"], "custom", domain=domain, **attributes)
    shown = helper.make_tensor_value_info("Z", TensorProto.FLOAT, None)
    if place == "branch":
        other = helper.make_node("Identity", ["Y"], ["Z"])
        branches = {f"{k}_branch": helper.make_graph([n], k, [], [shown]) for k, n in (("then", node), ("else", other))}
        node = helper.make_node("If", ["flag"], ["Z"], "choice", **branches)
        proto.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    imports = [*proto.opset_import, helper.make_opsetid(domain, 1)]
    if place == "function":
        proto.functions.append(helper.make_function("test.functions", "Outer", ["Y"], ["Z"], [node], imports))
        imports.append(helper.make_opsetid("test.functions", 1))
        node = helper.make_node("Outer", ["Y"], ["Z"], "call", domain="test.functions")
    proto.graph.node.append(node)
    proto.graph.output.append(shown)
    del proto.opset_import[:]
    proto.opset_import.extend(imports)
    return proto


@pytest.mark.few(6)
@pytest.mark.parametrize("place", ["main graph", "branch", "function"])
@pytest.mark.parametrize("name", FOREIGN)
def test_reported(
    name: str, place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The nodes lack inputs and attributes, for which onnxruntime calls the models invalid.
    monkeypatch.setattr("rnnqc.lowering.lower.refuse_invalid_input", lambda *_: None)
    domain, op, attributes, reason, action = FOREIGN[name]
    onnx.save(model(domain, op, attributes, place), tmp_path / "in.onnx")
    path = {"main graph": "custom", "branch": "choice/then_branch/custom", "function": "call/custom"}[place]
    entries = {e.node: e for e in rnnqc.lower(tmp_path / "in.onnx").report.entries}
    assert entries["the_lstm"].status == "lowered"
    entry = entries[path]
    status = "quantized" if op == "DynamicQuantizeLSTM" else "float"
    assert (entry.status, entry.op) == (status, op)
    assert reason in entry.reason and action in entry.action and domain in entry.found
    strict = in_process(capfd, "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--strict")
    text = " ".join(strict.text.split())
    assert strict.code == 3 and not (tmp_path / "out.onnx").exists(), text
    assert f'Operator "{op}" (node {path!r})' in text and reason in text and action in text
    inspected = in_process(capfd, "inspect", tmp_path / "in.onnx", "--json")
    assert inspected.code == 0 and reason in inspected.out and f'"{status}"' in inspected.out


@pytest.mark.parametrize("node", OTHERS, ids=lambda n: n[1])
def test_others_are_no_recurrent_layers(node: tuple[str, str, dict[str, str]]) -> None:
    assert [e.node for e in rnnqc.lower(model(*node), strict=True).report.entries] == ["the_lstm"]
