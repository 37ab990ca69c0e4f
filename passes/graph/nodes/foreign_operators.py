"""Recurrent operators outside of ONNX: recognized by name, so that none is silently left in float."""

from __future__ import annotations

import re

from rnnqc.cells.forms import ORT_DOMAIN, ORT_LSTM
from rnnqc.errors import LOWER_THE_FLOAT_MODEL
from rnnqc.ir import Node, attribute

_SEARCH = (
    "onnxruntime's search operator runs the recurrence in its subgraphs.",
    "export the decoder as a model of its own, and lower that",
)
KNOWN: dict[tuple[str, str], tuple[str, str]] = {
    (ORT_DOMAIN, ORT_LSTM): (
        "it is already quantized, dynamically, by onnxruntime's tool.",
        f"--recipe int8 takes its quantized weights over; or {LOWER_THE_FLOAT_MODEL}",
    ),
    (ORT_DOMAIN, "AttnLSTM"): (
        "its attention is a part of the step.",
        "export the layer as a Scan of its step, with the attention in it",
    ),
    **{(ORT_DOMAIN, op): _SEARCH for op in ("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch")},
}
"""Reason and action by domain and operator."""
QUANTIZED = frozenset({(ORT_DOMAIN, ORT_LSTM)})
"""Those of them that are quantized already."""
_ATEN = "org.pytorch.aten"
_NAME = re.compile(r"LSTM|GRU|RNN|Recurrent|(?:^|[_.:])(?:lstm|gru|rnn)(?:$|[_.:])|(?:lstm|gru|rnn)_cell")


def is_foreign(domain: str, op: str) -> bool:
    """Whether an operator is, or may be, a recurrent one that is not ONNX's own."""
    return bool((domain, op) in KNOWN or domain == _ATEN or (domain and _NAME.search(op)))


def foreign_refusal(node: Node) -> tuple[str, str, str] | None:
    """Returns reason, found and action for a recurrent operator that is not ONNX's own; None for other operators."""
    domain, op = node.domain or "", node.op
    if not domain:
        return None
    found = f"operator {domain}.{op}"
    if (domain, op) in KNOWN:
        reason, action = KNOWN[domain, op]
        return reason, found, action
    if domain == _ATEN:
        op = str(attribute(node, "operator", ""))
        if not _NAME.search(op):
            return None
        return (
            "it is PyTorch's own operator, which an exporter fell back to.",
            f"{found}, operator = {op!r}",
            "export with torch.onnx.export(..., dynamo=True), without the fallback to ATen",
        )
    if not is_foreign(domain, op):
        return None
    return (
        "what this custom operator computes is not known.",
        found,
        "export the layer with ONNX's LSTM, GRU or RNN, or as a Scan of its step",
    )
