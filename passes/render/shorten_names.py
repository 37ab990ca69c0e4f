"""Shortens the names inside function bodies."""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Iterator, Mapping, MutableSequence

import onnx

from rnnqc.cells.rearrange_nodes import is_rearrange_node
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import DOMAIN, Model
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.cells.sequence_lengths import LENGTHS_IN_RANGE
from rnnqc.passes.render.cell_function import TWO_BODIES
from rnnqc.proto.graph_walks import Block, blocks_of

MESSAGES = frozenset({TWO_BODIES, LENGTHS_IN_RANGE})
"""Nodes whose names tell the error: onnxruntime's messages name the node that fails."""
_SHORT = 3
_GRAPH = "g"
_CUTS = ("Slice", "Gather")


class ShortenNames(Pass):
    """Gives the values inside the functions of rnnqc's operators names of one to three characters.

    Before: `the_lstm.forward/int8/within_bound/cell_state.kept_2 = Mul(the_lstm.forward/int8/..., ...)`, in a node of
    the same name; two thirds of a body are names.

    After: `aB = Mul(Z, c)`, in a node without a name

    The names of a function's inputs, outputs and attributes stay, and names outside functions; so do those of nodes in
    `MESSAGES`. Nodes that slice several values of a loop's body get the names of their outputs: onnxruntime before 1.22
    merges slices to a Split with the name of the first one, and refuses a graph with two nodes of one name.
    """

    info = PassInfo(
        name="shorten-names", summary="give short names to the values inside function bodies", numerics=Bitwise()
    )

    def run(self, model: Model) -> PassResult:
        """Shortens the names in every function of rnnqc's domain."""
        shortened = sum(_shorten(f) for f in model.functions if f.domain == DOMAIN)
        return PassResult(shortened > 0, (), {"names": shortened})


def _shorten(function: onnx.FunctionProto) -> int:
    blocks = list(blocks_of([function]))
    made = dict.fromkeys(name for block in blocks for name in _made(block))
    kept = {*function.input, *function.output}
    kept |= {name for name in made if len(name) <= _SHORT}
    free = (name for name in _names() if name not in kept)
    renamed = {name: next(free) for name in made if name not in kept}
    count = len(renamed)
    for block in blocks:
        if isinstance(block, onnx.GraphProto):
            count += block.name != _GRAPH
            block.name = _GRAPH
            for value in [*block.input, *block.output, *block.value_info, *block.initializer] if renamed else ():
                value.name = renamed.get(value.name, value.name)
        cut = _cut(block)
        for node in block.node:
            named = node.op_type in _CUTS and node.input[0] in cut
            if renamed:
                _rename(node.input, renamed)
                _rename(node.output, renamed)
            if (before := node.name) and before not in MESSAGES:
                name = node.output[0] if named else ""
                count += before != name
                node.name = name
    return count


def _rename(names: MutableSequence[str], renamed: Mapping[str, str]) -> None:
    """Replaces names by their new names."""
    for k, name in enumerate(names):
        new = renamed.get(name)
        if new is not None:
            names[k] = new


def _cut(block: Block) -> set[str]:
    """Returns the values of a subgraph that several of its nodes slice, if there are at least two.

    Slices in a function itself are of constants, folded before onnxruntime makes a Split. The exception is a function
    that rearranges its inputs, of which a graph may have several.
    """
    if isinstance(block, onnx.FunctionProto):
        moving = is_rearrange_node(block.name)
        return {name for node in block.node if moving and node.op_type in _CUTS for name in node.input[:1]}
    own = {
        *(v.name for v in block.input),
        *(n for node in block.node if node.op_type != "Constant" for n in node.output),
    }
    parts = Counter(node.input[0] for node in block.node if node.op_type in _CUTS)
    cut = {name for name, count in parts.items() if count > 1 and name in own}
    return cut if len(cut) > 1 else set()


def _made(block: Block) -> Iterator[str]:
    """Yields the names that a block defines, without its subgraphs."""
    if isinstance(block, onnx.GraphProto):
        yield from (v.name for v in [*block.input, *block.initializer])
    yield from (name for node in block.node for name in node.output if name)


def _names() -> Iterator[str]:
    """Yields a, b, ..., Z, aa, ab, ...: identifiers, shortest first."""
    more = string.ascii_letters + string.digits
    for length in itertools.count():
        for first in string.ascii_letters:
            yield from (first + "".join(rest) for rest in itertools.product(more, repeat=length))
