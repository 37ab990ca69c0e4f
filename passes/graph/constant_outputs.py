"""Analysis: outputs that depend on no input, a sign that an exporter lost a layer. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.ir import Constant, Model, Node, Value, constant_array, subgraphs

ACTION = (
    "if the model has a QuantLSTM of Brevitas: torch's dynamo exporter drops it without a word; export it again with "
    "export_qonnx(..., dynamo=False)"
)


def independent_outputs(model: Model) -> list[str]:
    """Returns the names of the outputs that depend on no input; none if the model has no inputs.

    Single constants are skipped: they are no sign of a lost layer. Where Brevitas returns a QuantTensor, its scale,
    zero point and bit width are outputs.
    """
    if not any(not isinstance(v, Constant) for v in model.graph.inputs):
        return []
    return [v.name for v in model.graph.outputs if not _depends(v) and not _is_single(v)]


def _is_single(value: Value) -> bool:
    array = constant_array(value)
    return array is not None and array.size == 1


def warning_of(names: Sequence[str]) -> str:
    """Returns the warning about outputs that depend on no input."""
    return f"no input has an influence on output {', '.join(map(repr, names))}; {ACTION}."


def lost_everything(model: Model) -> tuple[str, str] | None:
    """Returns the finding and the kind of the values if no output depends on the inputs, else None."""
    independent = independent_outputs(model)
    if not independent or len(independent) != len(model.graph.outputs):
        return None
    nodes = sum(len(g.nodes) for g in model.graphs())
    arrays = [constant_array(v) for v in model.graph.outputs]
    zeros = all(a is not None and not a.any() for a in arrays)
    return f"{nodes} node(s), outputs {', '.join(map(repr, independent))}", "zeros" if zeros else "constants"


def _depends(output: Value) -> bool:
    """Whether `output` depends on an input."""
    stack: list[Value] = [output]
    seen: set[int] = set()
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, Constant):
            continue
        seen.add(id(value))
        if not value.inputs:
            if value.name:
                return True
            continue
        for node in value.inputs:
            stack.extend(_used(node))
            if "Random" in node.op:
                return True
    return False


def _used(node: Node) -> list[Value]:
    """Inputs of a node and of the nodes in its subgraphs, whose own inputs count as derived from the node's."""
    found = list(node.inputs)
    for _, graph in subgraphs(node):
        own = {id(v) for v in graph.inputs}
        for inner in graph.nodes:
            found.extend(v for v in _used(inner) if id(v) not in own)
        found.extend(v for v in graph.outputs if id(v) not in own)
    return found
