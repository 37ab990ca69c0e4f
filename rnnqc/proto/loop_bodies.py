"""Checks that the subgraphs of If, Loop and Scan have the inputs and outputs that their nodes require."""

from __future__ import annotations

import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of

_TODAYS_SCAN = 9
_SCAN_LISTS = ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")


def check_bodies(node: onnx.NodeProto, opset: int, source: str) -> None:
    """Checks an If, a Loop or a Scan; other nodes pass.

    Raises:
        CompileError: With the node and the numbers.
    """
    graphs = {a.name: a.g for a in node.attribute if a.HasField("g")}
    where = f"{source}: node {node.name!r} ({node.op_type})"
    if node.op_type == "If":
        for name, branch in graphs.items():
            _expect(f"{where}: inputs of {name}", len(branch.input), 0)
            _expect(f"{where}: outputs of {name}", len(branch.output), len(node.output))
    if node.op_type == "Loop" and "body" in graphs:
        carried = len(node.input) - 2
        body = graphs["body"]
        _expect(f"{where}: inputs of body", len(body.input), 2 + carried)
        _expect(f"{where}: outputs", len(node.output), len(body.output) - 1)
        _expect(f"{where}: outputs, of which states:", min(carried, len(node.output)), carried)
    if node.op_type == "Scan" and "body" in graphs and opset >= _TODAYS_SCAN:
        _check_scan(node, graphs["body"], where)


def check_results(model: onnx.ModelProto, source: str) -> None:
    """Refuses a model with an If or a Scan of which two results are one value.

    onnxruntime 1.32 runs such a node and leaves one of the results unwritten.

    Raises:
        CompileError: With the node and the value.
    """
    for block in blocks_of([model.graph, *model.functions]):
        for node in block.node:
            for attribute in node.attribute if node.op_type in ("If", "Scan") else ():
                twice = _twice(attribute.g) if attribute.HasField("g") else None
                if twice is not None:
                    raise CompileError(
                        f"{source}: node {node.name!r} ({node.op_type}): {twice!r} is two outputs of its "
                        f"{attribute.name}, of which onnxruntime leaves one unwritten, with arbitrary numbers.",
                        supported="a value of its own for each output",
                        action="put an Identity node in front of one of them; a tool that removes those made this file "
                        "(onnx_ir's IdentityEliminationPass does)",
                    )


def _twice(graph: onnx.GraphProto) -> str | None:
    names = [o.name for o in graph.output]
    return next((n for n in names if names.count(n) > 1), None)


def _check_scan(node: onnx.NodeProto, body: onnx.GraphProto, where: str) -> None:
    scanned = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    states = len(node.input) - scanned
    if scanned < 1 or states < 0:
        raise CompileError(
            f"{where}: num_scan_inputs = {scanned} of {len(node.input)} inputs.",
            supported="1 up to the number of inputs",
            action="export the model again",
        )
    _expect(f"{where}: inputs of body", len(body.input), len(node.input))
    _expect(f"{where}: outputs", len(node.output), len(body.output))
    _expect(f"{where}: outputs, of which states:", min(states, len(node.output)), states)
    for attr in node.attribute:
        if attr.name in _SCAN_LISTS and attr.ints:
            wanted = scanned if "input" in attr.name else len(node.output) - states
            _expect(f"{where}: numbers in {attr.name}", len(attr.ints), wanted)


def _expect(what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise CompileError(
            f"{what}: {found}.",
            supported=f"{wanted}, which the rest of the node needs",
            action="export the model again",
        )
