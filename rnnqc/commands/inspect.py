"""`rnnqc inspect`: lists recurrent layers, what lowering would do with each, and the float weights around them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rnnqc.commands.common import OK, Commands, add_command, byte_count, document
from rnnqc.commands.terminal import err, escape, new_table, out
from rnnqc.errors import explained

if TYPE_CHECKING:
    from rnnqc.lowering.inspection import Inspection
    from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode


LISTED = 20
"""So many of the operators outside the recurrent layers are printed."""


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "inspect",
        "list recurrent layers, what lowering would do with each, and the float weights around them",
        "rnnqc inspect model.onnx",
        "rnnqc inspect model.int8.onnx --json",
    )
    parser.add_argument("model", metavar="MODEL", help="a float or a lowered model")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, all operators included")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.lowering.inspection import inspect

    found = inspect(a.model)
    if a.json:
        print(document(found.to_dict()))
        return OK
    out(f"{escape(a.model)}: operator set {found.opset}, {len(found.nodes)} recurrent node(s)")
    if found.nodes or found.elementwise:
        _print_nodes(found)
    if found.points:
        _print_points(found)
    _print_rest(found)
    for text in found.hints:
        out(escape(text))
    for text in found.warnings:
        err(f"[yellow]rnnqc:[/yellow] {escape(text)}")
    return OK


def _print_points(found: Inspection) -> None:
    """The points that have a format; channels with scales of their own are counted."""
    table = new_table("point", "bits", "scale", "zero point", "rounding", "mode")
    for path, s in found.points.items():
        if s.get("bits") is None or "mode" not in s:
            continue
        scales = s.get("scale") or []
        scale = f"{scales[0]:g}" if len(scales) == 1 else f"{len(scales)} channels" if scales else ""
        zero = f"{len(s['zero_points'])} channels" if s.get("zero_points") else str(s["zero_point"])
        table.add_row(*map(escape, [path, str(s["bits"]), scale, zero, str(s["rounding"]), str(s["mode"])]))
    out("quantization points with a format:")
    out(table)


def _print_nodes(found: Inspection) -> None:
    from rnnqc.passes.analysis.elementwise_recurrences import ACTION, REASON

    table = new_table("node", "op", "I", "H", "T", "B", "direction", "options", "lowering")
    for n in found.nodes:
        cells = [n.path, n.op, *_sizes(n.attributes), str(n.attributes.get("direction") or ""), _options(n.attributes)]
        table.add_row(*map(escape, [*cells, _verdict(n, found)]))
    for e in found.elementwise:
        table.add_row(
            *map(escape, [e.path, e.op, *_sizes(e.sizes), "", "", f"float: {explained(REASON, action=ACTION)}"])
        )
    out(table)


def _print_rest(found: Inspection) -> None:
    """The largest float weights outside the recurrent layers, and the sum of all."""
    rest = found.rest
    if not rest.entries:
        return
    table = new_table("node", "op", "weight", "bytes", "--rest int8")
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
    from rnnqc.cells.forms import CUSTOM
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
