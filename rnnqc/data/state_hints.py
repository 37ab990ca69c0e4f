"""Guesses which inputs and outputs of a model are states carried from call to call."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

import onnx

from rnnqc.cells.types import CELL_TYPES, fused_type
from rnnqc.data.declared_shapes import declared_sizes, shapes_fit
from rnnqc.data.input_uses import Role, sources_of, uses_of
from rnnqc.proto.graph_walks import blocks_of

_FINAL = {Role.STATE: 1, Role.CELL: 2}
"""Index of the output of a recurrent node that has the final value of a state."""
_NAMED_BEFORE = frozenset({"in", "input", "prev", "previous", "old", "init", "initial"})
_NAMED_AFTER = frozenset({"out", "output", "next", "new", "final", "n"})


def likely_states(proto: onnx.ModelProto) -> dict[str, str]:
    """Returns outputs that could become inputs of the next call, by input, as the graph shows.

    The input is the initial state of a recurrent node, or a part of it, and exactly one output with its shape holds the
    node's final state.
    """
    outputs = proto.graph.output
    declared = {i.name: i for i in proto.graph.input}
    nodes = [n for block in blocks_of([proto.graph]) for n in block.node]
    inputs = {*declared}
    found: dict[str, str] = {}
    for node in nodes:
        if node.op_type not in CELL_TYPES and not fused_type(node.op_type):
            continue
        for index, use in uses_of(node):
            if use.role not in _FINAL or index >= len(node.input) or _FINAL[use.role] >= len(node.output):
                continue
            starts = sources_of(node.input[index], proto, inputs)
            final = node.output[_FINAL[use.role]]
            if not final or len(set(starts)) != 1:
                continue
            before = declared[starts[0]]
            ends = [o.name for o in outputs if _fits(before, o) and sources_of(o.name, proto, {final})]
            if len(ends) == 1:
                found[before.name] = ends[0]
    return found


def states_of(*models: onnx.ModelProto) -> dict[str, str]:
    """Returns the likely states of one model, given in several forms: recovery turns steps into nodes, for example.

    Also adds inputs whose outputs follow the same naming as these, such as caches of convolutions: `cache` and
    `next_cache` beside `h` and `next_h`. They are a guess, and left out if they would leave no input for data.
    """
    found: dict[str, str] = {}
    for proto in models:
        found = {**likely_states(proto), **found}
    ways = {_way(*pair) for pair in found.items()}
    named = {i: o for i, o in named_states(models[0]).items() if _way(i, o) in ways} if found else {}
    more = {i: o for i, o in named.items() if i not in found and o not in found.values()}
    return {**found, **more} if any(i.name not in found | more for i in models[0].graph.input) else found


def named_states(proto: onnx.ModelProto) -> dict[str, str]:
    """Returns outputs that could become inputs of the next call, by input, as names show: `h_in` and `h_out`.

    Shapes have to match. Unlike `likely_states` this is a guess from names. An output that is merely a copy of an
    input, such as a mask, is not a state: the model does not change it.
    """
    inputs = {i.name for i in proto.graph.input}
    copies = {n.output[0]: n.input[0] for n in proto.graph.node if n.op_type == "Identity"}
    outputs = [o for o in proto.graph.output if _original(o.name, copies) not in inputs]
    found: dict[str, str] = {}
    for value in proto.graph.input:
        ways = {o.name: _way(value.name, o.name) for o in outputs if _fits(value, o)}
        fitting = [name for name, way in ways.items() if way is not None and way[1]]
        if len(fitting) == 1:
            found[value.name] = fitting[0]
    return found if len(set(found.values())) == len(found) else {}


def hinted_states(*models: onnx.ModelProto, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns likely states for messages: `known` if there are any, otherwise a guess; in the order of the inputs.

    Args:
        models: One model, in several forms.
        known: Outputs by the input that they appear to become.
    """
    found = known or states_of(*models) or named_states(models[0])
    return {i.name: found[i.name] for i in models[0].graph.input if i.name in found}


def named_alike(before: str, after: str) -> bool:
    """Whether two names follow a pattern for one state before and after a call."""
    return _way(before, after) is not None


def _original(value: str, copies: Mapping[str, str]) -> str:
    """Follows `value` back through copies."""
    while value in copies:
        value = copies[value]
    return value


def _way(before: str, after: str) -> tuple[frozenset[str], frozenset[str]] | None:
    """Returns the words that distinguish the input and the output of one state; None if the names differ otherwise.

    A letter at the end counts, too: `r1i` and `r1o`, `state` and `stateN`.
    """
    if re.search(r"\di$", before) and after == f"{before[:-1]}o":
        return frozenset("i"), frozenset("o")
    if after in (f"{before}n", f"{before}N"):
        return frozenset(), frozenset("n")
    first, second = _words(before), _words(after)
    stem = [w for w in first if w not in _NAMED_BEFORE]
    if not stem or stem != [w for w in second if w not in _NAMED_AFTER]:
        return None
    return _NAMED_BEFORE & set(first), _NAMED_AFTER & set(second)


def _words(name: str) -> list[str]:
    return [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w]


def _fits(before: onnx.ValueInfoProto, after: onnx.ValueInfoProto) -> bool:
    types = before.type.tensor_type.elem_type, after.type.tensor_type.elem_type
    return types[0] == types[1] and shapes_fit(declared_sizes(before), declared_sizes(after))


def options_of_states(states: Mapping[str, str]) -> str:
    """Formats outputs by input as options `--state IN:OUT`."""
    return " ".join(f"--state {shlex.quote(f'{i}:{o}')}" for i, o in states.items())


def state_warnings(models: Iterable[onnx.ModelProto], carried: Mapping[str, str], feeds: int) -> list[str]:
    """Returns a sentence for each state that the data carries oddly or not at all (see `state_remarks`).

    Args:
        models: Several forms of one model: as it is, and lowered.
        carried: Outputs by the input that they become.
        feeds: The number of feeds or calls in the data.
    """
    likely = states_of(*models)
    return [f"{reason}. Resolution: {action}." for reason, action in state_remarks(likely, carried, feeds)]


def state_remarks(likely: Mapping[str, str], carried: Mapping[str, str], feeds: int) -> list[tuple[str, str]]:
    """Returns remarks on states that the data carries in a suspicious way; they may be intended.

    Args:
        likely: Outputs by the input that they appear to become (see `likely_states`).
        carried: Outputs by the input that they become.
        feeds: The number of feeds or calls in the data.

    Returns:
        Reason and resolution: for each carried input that gets another state's output, and for those not carried.
    """
    crossed = [name for name, output in carried.items() if likely.get(name, output) != output]
    remarks = [
        (
            f"state {name!r} is carried from output {carried[name]!r}, and its final value is {likely[name]!r}",
            f"{options_of_states({name: likely[name]})}, unless the other output is meant",
        )
        for name in crossed
    ]
    left = {name: output for name, output in likely.items() if name not in carried}
    if left and feeds > 1:
        names = ", ".join(map(repr, left))
        reason = f"inputs that look like states are not carried from one of {feeds} feeds to the next: {names}"
        remarks.append((reason, f"{options_of_states(left)}, if the feeds are the calls of a stream"))
    return remarks
