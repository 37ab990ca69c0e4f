"""`rnnqc inspect`: lists recurrent layers, what lowering would do with each, and the float weights around them."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rnnqc.cells.forms import CUSTOM
from rnnqc.commands.common import OK, Commands, byte_count, json_text
from rnnqc.commands.terminal import err, escape, out
from rnnqc.errors import explained

if TYPE_CHECKING:
    from rnnqc.lowering.inspection import Inspection
    from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode


LISTED = 20
"""So many of the operators outside the recurrent layers are printed."""


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser(
        "inspect", help="list recurrent layers, what lowering would do with each, and the float weights around them"
    )
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.lowering.inspection import inspect_layers

    found = inspect_layers(a.model)
    if a.json:
        print(json_text(_as_dict(a.model, found)))
        return OK
    out(f"{escape(a.model)}: operator set {found.opset}, {len(found.nodes)} recurrent node(s)")
    if found.nodes:
        _print_nodes(found)
    _print_rest(found)
    for text in _warnings(a.model, found):
        err(f"[yellow]rnnqc:[/yellow] {escape(text)}")
    return OK


def _as_dict(model: str, found: Inspection) -> dict[str, Any]:
    nodes = [
        {
            "node": n.path, "op": n.op, "attributes": n.attributes, "weight_bytes": n.weight_bytes,
            "lowering": n.status, "form": n.form, "cells": found.cells.get(n.path, []),
            "reason": n.refusal[0], "found": n.refusal[1], "action": n.refusal[2],
            "notes": [{"reason": r.reason, "found": r.found, "action": r.action} for r in found.notes.get(n.path, [])],
        }
        for n in found.nodes
    ]  # fmt: skip
    rest = {**dataclasses.asdict(found.rest), "file_bytes": found.bytes}
    return {
        "model": model, "opset": found.opset, "nodes": nodes, "independent_outputs": found.constant_outputs,
        "training_dropouts": found.dropouts, "rest": rest,
    }  # fmt: skip


def _warnings(model: str, found: Inspection) -> list[str]:
    from rnnqc.layers.layer_hints import layer_hints
    from rnnqc.passes.graph.constant_outputs import warning_of
    from rnnqc.passes.graph.training_mode import training_warning
    from rnnqc.proto.files import load_proto

    hints = [] if found.nodes else layer_hints(load_proto(Path(model)))
    hints += [warning_of(found.constant_outputs)] if found.constant_outputs else []
    return hints + ([training_warning(found.dropouts)] if found.dropouts else [])


def _print_nodes(found: Inspection) -> None:
    table = Table("node", "op", "I", "H", "T", "B", "direction", "options", "lowering", box=None, pad_edge=False)
    for n in found.nodes:
        cells = [n.path, n.op, *_sizes(n.attributes), str(n.attributes.get("direction") or ""), _options(n.attributes)]
        table.add_row(*map(escape, [*cells, _verdict(n, found)]))
    out(table)


def _print_rest(found: Inspection) -> None:
    """The largest float weights outside the recurrent layers, and the sum of all."""
    rest = found.rest
    if not rest.entries:
        return
    table = Table("node", "op", "weight", "bytes", "--rest int8", box=None, pad_edge=False)
    shown = sorted(rest.entries, key=lambda e: -e.bytes)[:LISTED]
    for e in shown:
        shape = "x".join(map(str, e.shape))
        share = f" ({100 * e.bytes / found.bytes:.1f} %)" if found.bytes else ""
        size = f"shared with {e.shares}" if e.shares else f"{byte_count(e.bytes)}{share}"
        verdict = f"float: {explained(e.reason, e.found)}" if e.reason else "int8"
        table.add_row(*map(escape, [e.node, e.op, shape, size, verdict]))
    out("")
    out(table)
    if len(rest.entries) > len(shown):
        out(f"... and {len(rest.entries) - len(shown)} smaller ones (--json lists all)")
    out(rest.summary(found.bytes))


def _options(at: Mapping[str, Any]) -> str:
    options = [*at.get("inputs", []), *([f"clip={at['clip']:g}"] if at.get("clip") else [])]
    options += ["input_forget"] if at.get("input_forget") else []
    options += at.get("activations", [])
    return " ".join([*options, *([at["type"]] if at.get("type") else [])])


def _verdict(n: RecurrentNode, found: Inspection) -> str:
    """How lowering would handle a node, with the notes about it."""
    from rnnqc.passes.analysis.custom_products import described

    at = n.attributes
    others = sum(p.endswith(".value") for p in at.get("points", ()))
    parts = f"{at.get('products', 0)} products, and {others} values where the recipe quantizes them"
    verdict = {
        "lowered": "will be lowered: " + (" ".join(found.cells.get(n.path, [])) or parts),
        "float": f"float: {explained(*n.refusal)}",
        "quantized": f"stays as it is: {explained(*n.refusal)}",
        "done": f"done ({n.form})" + (f": {described(at)}" if n.form == CUSTOM else ""),
    }[n.status]
    for r in found.notes.get(n.path, []):
        verdict += f". Note: {explained(r.reason, r.found, r.action)}"
    return verdict


def _sizes(attributes: Mapping[str, Any]) -> list[str]:
    """I, H, T and B for the table; of a custom cell H are the widths of all states, `64+256`."""
    keys = ("input_size", "hidden_size", "sequence_length", "batch")
    unknown = "-" if "products" in attributes else "?"
    found = {k: str(attributes[k]) for k in keys if attributes.get(k) is not None}
    if attributes.get("state_sizes"):
        found["hidden_size"] = "+".join(unknown if w is None else str(w) for w in attributes["state_sizes"])
    return [found.get(k, unknown) for k in keys]
