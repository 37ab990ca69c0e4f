"""`rnnqc inspect`: lists recurrent layers, how lowering would handle each, and the float weights around them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rnnqc.cells.types import CELL_TYPES
from rnnqc.commands.shared.arguments import OK, Commands, add_bindings, add_command, byte_count, document, pairs, values
from rnnqc.commands.shared.terminal import LEAST_NAME, escape, out, out_table, shortened, tell
from rnnqc.errors import explained

if TYPE_CHECKING:
    from rnnqc.lowering.inspection import Inspection
    from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode


LISTED = 20
"""The number of operators outside the recurrent layers that are printed."""


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
    add_bindings(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON, all operators included")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.formats.quantized_outputs import described_outputs
    from rnnqc.lowering.inspection import inspect

    found = inspect(a.model, dims=pairs(a.dim, "--dim"), bind=values(a.bind, "--bind"))
    if a.json:
        print(document(found.to_dict()))
        return OK
    out(f"{escape(a.model)}: operator set {found.opset}, {len(found.nodes)} recurrent node(s)")
    _print_ends(found)
    if found.nodes or found.elementwise:
        _print_nodes(found)
    if found.points:
        _print_points(found)
    for text in described_outputs(found.quantized_outputs):
        out(f"quantized output {escape(text)}")
    _print_rest(found)
    for text in found.hints:
        out(escape(text))
    for text in found.warnings:
        tell(text)
    return OK


def _print_ends(found: Inspection) -> None:
    """Prints the inputs and outputs, and which of them appear to be one state before and after a call."""
    states = {i: f"{o} of the call before" for i, o in found.states.items()}
    states |= {o: f"{i} of the next call" for i, o in found.states.items()}
    rows = [
        [v.name, kind, v.type, v.shape_text, states.get(v.name, "")]
        for kind, ends in (("input", found.inputs), ("output", found.outputs))
        for v in ends
    ]
    out_table(("name", "", "type", "shape", "looks like" if states else ""), rows)
    out("")


def _print_points(found: Inspection) -> None:
    """Prints the points that have a format; for scales per channel, the number of channels."""
    from rnnqc.passes.graph.nodes.quant_operators import CELL_OP

    rows = []
    for path, s in found.points.items():
        if s.get("bits") is None or "mode" not in s:
            continue
        scales = s.get("scale") or []
        apart = not scales and s.get("axis") is not None
        scale = f"{scales[0]:g}" if len(scales) == 1 else f"{len(scales)} channels" if scales else "channels" * apart
        zero = f"{len(s['zero_points'])} channels" if s.get("zero_points") else str(s["zero_point"])
        rows.append([path, str(s["bits"]), scale, zero, str(s["rounding"]), str(s["mode"])])
    out("quantization points with a format:")
    out_table(("point", "bits", "scale", "zero point", "rounding", "mode"), rows)
    if any(row[2] == "channels" for row in rows):
        exported = any(n.op == CELL_OP for n in found.nodes)
        writers = "rnnqc lower EXPORT --json writes" if exported else "rnnqc lower --json and --save-formats write"
        out(
            f"Scales of 'channels' are in the operator's multipliers; {writers} them, "
            "rnnqc dump writes the units of the products."
        )


def _print_nodes(found: Inspection) -> None:
    """Prints a row for each node, and remarks below the table."""
    from rnnqc.passes.analysis.elementwise_recurrences import ACTION

    rows, said = [], []
    for n in found.nodes:
        short, text = _verdict(n, found)
        options = _options(n.attributes)
        rows.append([n.path, n.op, *_sizes(n.attributes), str(n.attributes.get("direction") or ""), options, short])
        said += [f"{n.path}: {text}"] if text else []
    for e in found.elementwise:
        rows.append([e.path, e.op, *_sizes(e.sizes), "", "", "float"])
        said.append(f"{e.path}: float: {explained(e.reason, action=ACTION)}")
    out_table(("node", "op", "I", "H", "T", "B", "direction", "options", "lowering"), rows)
    for text in said:
        out(escape(text))


def _print_rest(found: Inspection) -> None:
    """Prints the largest float weights outside the recurrent layers, and the sum of all."""
    from rnnqc.lowering.reports.rest_report import told_of_rest

    rest = found.rest
    for text in told_of_rest(rest.exported):
        out(escape(text))
    if not rest.entries:
        return
    rows, said = [], []
    shown = sorted(rest.entries, key=lambda e: -e.bytes)[:LISTED]
    for e in shown:
        shape = "x".join(map(str, e.shape))
        share = f" ({100 * e.bytes / found.bytes:.1f} %)" if found.bytes else ""
        size = f"as {shortened(e.shares, LEAST_NAME)}" if e.shares else f"{byte_count(e.bytes)}{share}"
        rows.append([e.node, e.op, shape, size, "float" if e.reason else "int8"])
        said += [f"{e.node}: float: {explained(e.reason, e.found)}"] if e.reason else []
        said += [f"{e.node}: has its weight in common with {e.shares}"] if e.shares else []
    out("")
    out_table(("node", "op", "weight", "bytes", "--rest int8"), rows)
    for text in said:
        out(escape(text))
    if len(rest.entries) > len(shown):
        out(f"... and {len(rest.entries) - len(shown)} smaller ones (--json lists all)")
    out(rest.summary(found.bytes))


def _options(at: Mapping[str, Any]) -> str:
    options = [*at.get("inputs", []), *([f"clip={at['clip']:g}"] if at.get("clip") else [])]
    options += ["input_forget"] if at.get("input_forget") else []
    options += at.get("activations", [])
    return " ".join([*options, *([at["type"]] if at.get("type") else [])])


def _verdict(n: RecurrentNode, found: Inspection) -> tuple[str, str]:
    """Returns how lowering would handle a node in a few words, and a longer text: reason, cells, notes."""
    from rnnqc.cells.forms import CUSTOM
    from rnnqc.ir import safe_name
    from rnnqc.passes.analysis.custom_products import described

    at = n.attributes
    others = sum(p.endswith(".value") for p in at.get("points", ()))
    parts = f"{at.get('products', 0)} products, and {others} values where the recipe quantizes them"
    short = {"lowered": "will be lowered", "float": "float", "quantized": "stays as it is", "done": f"done ({n.form})"}
    cells = found.cells.get(n.path, [])
    usual = n.op in CELL_TYPES and all(c.rpartition(".")[0] == safe_name(n.path) for c in cells)
    more = {
        "lowered": "" if usual else " ".join(cells) or parts,
        "float": explained(*n.refusal),
        "quantized": explained(*n.refusal),
        "done": described(at) if n.form == CUSTOM else "",
    }[n.status]
    text = f"{short[n.status]}: {more}" if more else ""
    for r in found.notes.get(n.path, []):
        text += f"{'. ' if text else ''}Note: {explained(r.reason, r.found, r.action)}"
    return short[n.status], text


def _sizes(attributes: Mapping[str, Any]) -> list[str]:
    """Returns I, H, T and B for the table; for a custom cell H lists the widths of all states, `64+256`."""
    keys = ("input_size", "hidden_size", "sequence_length", "batch")
    unknown = "-" if "products" in attributes else "?"
    found = {k: str(attributes[k]) for k in keys if attributes.get(k) is not None}
    if attributes.get("state_sizes"):
        found["hidden_size"] = "+".join(unknown if w is None else str(w) for w in attributes["state_sizes"])
    return [found.get(k, unknown) for k in keys]
