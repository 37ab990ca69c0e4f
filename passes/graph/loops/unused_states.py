"""Removes unused states, sequences and outputs of Loop and Scan nodes."""

from __future__ import annotations

from collections.abc import Iterable

from rnnqc.ir import Graph, Model, Node, Value, attribute, captured_values
from rnnqc.passes.graph.loops.loop_states import bodies, capture_invariants, is_loop, is_used, live_states, states_of


def drop_unused_states(model: Model) -> int:
    """Removes from every Loop and Scan the unused states, sequences and outputs; returns how many.

    A state that only depends on itself is removed, too. A body reads its loop-invariant states as outer values, so that
    weights carried by a while loop are not states. A Scan keeps one sequence, which determines the number of elements.
    """
    count = 0
    kept = {id(v) for g in model.graphs() for v in g.outputs}
    for _, owner, _ in reversed(list(bodies(model))):
        if owner is not None and is_loop(owner):
            count += capture_invariants(model, owner)
            count += _drop(owner, kept)
    return count


def _drop(node: Node, kept: set[int]) -> int:
    body: Graph = node.attrs["body"]
    states = states_of(node)
    total = len(states)
    lead_in, lead_out = (2, 1) if node.op == "Loop" else (0, 0)

    results = [k for k in range(len(body.outputs) - lead_out - total) if is_used(_at(node.outputs, total + k), kept)]
    read: set[int] = set()

    def reads(values: Iterable[Value]) -> set[int]:
        _read(body, values, read)
        return read

    reads([*body.outputs[:lead_out], *(body.outputs[lead_out + total + k] for k in results)])
    order = [s.index for s in live_states(states, kept, reads)]
    sequences = body.inputs[lead_in + total :]
    taken = [k for k, v in enumerate(sequences) if id(v) in read] or list(range(len(sequences[:1])))
    dropped = total - len(order) + len(sequences) - len(taken) + len(body.outputs) - lead_out - total - len(results)
    if not dropped:
        return 0
    inputs = [*range(lead_in), *(lead_in + k for k in order), *(lead_in + total + k for k in taken)]
    outputs = [*order, *(total + k for k in results)]
    body.inputs[:] = [body.inputs[k] for k in inputs]
    body.outputs[:] = [*body.outputs[:lead_out], *(body.outputs[lead_out + k] for k in outputs)]
    given, made = [node.inputs[k] for k in inputs], [node.outputs[k] for k in outputs if k < len(node.outputs)]
    node.inputs.clear()
    node.inputs.extend(given)
    node.outputs.clear()
    node.outputs.extend(made)
    if node.op == "Scan":
        node.attrs["num_scan_inputs"] = len(taken)
        for key, chosen in (("scan_input", taken), ("scan_output", results)):
            for name in (f"{key}_axes", f"{key}_directions"):
                held = attribute(node, name, None)
                if held and chosen:
                    node.attrs[name] = [held[k] for k in chosen]
                elif held:
                    del node.attrs[name]
    return dropped


def _at(values: list[Value], index: int) -> Value | None:
    return values[index] if index < len(values) else None


def _read(body: Graph, made: Iterable[Value], found: set[int]) -> None:
    """Adds to `found` the values of `body` that `made` depends on, by id."""
    stack = list(made)
    local = {id(n) for n in body.nodes}
    while stack:
        value = stack.pop()
        if id(value) in found:
            continue
        found.add(id(value))
        for node in value.inputs:
            if id(node) in local:
                stack += [*node.inputs, *captured_values(node)]
