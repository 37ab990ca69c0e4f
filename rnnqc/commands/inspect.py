"""`rnnqc inspect`: lists recurrent layers and what lowering would do with each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from rnnqc.commands.common import OK, Commands, json_text
from rnnqc.commands.terminal import err, escape, out
from rnnqc.errors import Outcome, Remark, located


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser("inspect", help="list recurrent layers and what lowering would do with each")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.evaluation.invalid_model_errors import blaming_invalid
    from rnnqc.ir import Model
    from rnnqc.lowering.executable import brings_its_own
    from rnnqc.lowering.layer_hints import layer_hints
    from rnnqc.passes import DecomposeLstm, PassManager, ReadQuantLstmCell
    from rnnqc.passes.analysis.custom_products import described
    from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes, recurrent_nodes
    from rnnqc.passes.graph.constant_outputs import independent_outputs, warning_of
    from rnnqc.passes.pipeline import normal_form
    from rnnqc.proto.files import load_proto

    with blaming_invalid(a.model), located(a.model):
        model = Model.load(a.model)
        opset = model.opset
        independent = independent_outputs(model)
        earlier = lowered_nodes(model)
        PassManager(normal_form(keep_codes=brings_its_own(model))).run(model)
        present = recurrent_nodes(model)
        remarks = [*ReadQuantLstmCell()(model).remarks, *DecomposeLstm()(model).remarks]
        refused = {r.node: r for r in remarks if r.outcome is Outcome.FLOAT}
        notes: dict[str, list[Remark]] = {}
        for remark in remarks:
            if remark.outcome is Outcome.NOTE and remark.action:
                notes.setdefault(remark.node, []).append(remark)
    nodes = [n.refused(refused[n.path]) if n.path in refused and not n.form else n for n in present] + earlier
    cells: dict[str, list[str]] = {}
    for cell in model.cells.values():
        cells.setdefault(cell.node, []).append(cell.name)
    if a.json:
        entries = [
            {
                "node": n.path, "op": n.op, "attributes": n.attributes, "weight_bytes": n.weight_bytes,
                "lowering": n.status, "form": n.form, "cells": cells.get(n.path, []),
                "reason": n.refusal[0], "found": n.refusal[1], "action": n.refusal[2],
                "notes": [{"reason": r.reason, "found": r.found, "action": r.action} for r in notes.get(n.path, [])],
            }
            for n in nodes
        ]  # fmt: skip
        print(json_text({"model": a.model, "opset": opset, "nodes": entries, "independent_outputs": independent}))
        return OK
    out(f"{escape(a.model)}: operator set {opset}, {len(nodes)} recurrent node(s)")
    table = Table("node", "op", "I", "H", "T", "B", "direction", "options", "lowering", box=None, pad_edge=False)
    for n in nodes:
        at = n.attributes
        options = [*at.get("inputs", []), *([f"clip={at['clip']:g}"] if at.get("clip") else [])]
        options += ["input_forget"] if at.get("input_forget") else []
        options += at.get("activations", [])
        options += [at["type"]] if at.get("type") else []
        others = sum(p.endswith(".value") for p in at.get("points", ()))
        parts = f"{at.get('products', 0)} products, and {others} values where the recipe quantizes them"
        verdict = {
            "lowered": "will be lowered: " + (" ".join(cells.get(n.path, [])) or parts),
            "float": f"float: {n.refusal[0]} Found: {n.refusal[1]}. Resolution: {n.refusal[2]}.",
            "quantized": f"stays as it is: {n.refusal[0]} Found: {n.refusal[1]}. Resolution: {n.refusal[2]}.",
            "done": f"done ({n.form})" + (f": {described(at)}" if n.form == "products" else ""),
        }[n.status]
        for r in notes.get(n.path, []):
            verdict += f". Note: {r.reason} Found: {r.found}. Resolution: {r.action}."
        table.add_row(
            *map(escape, (n.path, n.op, *_sizes(at), str(at.get("direction") or ""), " ".join(options), verdict))
        )
    if nodes:
        out(table)
    else:
        for text in layer_hints(load_proto(Path(a.model))):
            err(f"[yellow]rnnqc:[/yellow] {escape(text)}")
    if independent:
        err(f"[yellow]rnnqc:[/yellow] {escape(warning_of(independent))}")
    return OK


def _sizes(attributes: Mapping[str, Any]) -> list[str]:
    """I, H, T and B for the table; of a recurrence of other equations H are the widths of all states, `64+256`."""
    keys = ("input_size", "hidden_size", "sequence_length", "batch")
    unknown = "-" if "products" in attributes else "?"
    found = {k: str(attributes[k]) for k in keys if attributes.get(k) is not None}
    if attributes.get("state_sizes"):
        found["hidden_size"] = "+".join(unknown if w is None else str(w) for w in attributes["state_sizes"])
    return [found.get(k, unknown) for k in keys]
