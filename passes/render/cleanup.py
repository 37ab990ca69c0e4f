"""Tidies up behind the other passes."""

from __future__ import annotations

import hashlib

import numpy as np

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Constant, Model, constant_array, graph_info
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.unused_states import drop_unused_states
from rnnqc.passes.graph.redundant_nodes import cancel_squeezes, drop_identities, rename_in_cells

SHARED_FROM = 64  # bytes; smaller constants are shared when they are made


class Cleanup(Pass):
    """Removes what nothing uses and joins what is equal.

    1. Dead nodes and initializers go, and what loops carry, read and return in vain.
    2. `Identity(x)` of rnnqc's own making goes; its consumers use `x`. An Identity that makes a graph output stays
       where `x` is an input, a constant or made outside the graph, and otherwise gives its name to `x`.
    3. `Squeeze(Unsqueeze(x, a), a)` becomes `x`.
    4. Initializers with equal contents made by rnnqc become one.
    5. Nodes are sorted topologically.
    """

    info = PassInfo(
        name="cleanup", summary="remove dead nodes, deduplicate constants, sort topologically", numerics=Bitwise()
    )

    def run(self, model: Model) -> PassResult:
        """Applies the five steps until the graph is tidy."""
        statistics = {"dead": 0, "states": 0, "identities": 0, "squeezes": 0, "shared": 0}
        statistics["dead"] += model.remove_dead()
        if states := drop_unused_states(model):
            statistics["states"] += states
            statistics["dead"] += model.remove_dead()
        graphs = list(model.graphs())
        # Each of the two can make room for the other.
        while True:
            squeezes = sum(cancel_squeezes(model, g, graphs) for g in graphs)
            identities = sum(drop_identities(model, g, graphs) for g in graphs)
            statistics["squeezes"] += squeezes
            statistics["identities"] += identities
            if not squeezes + identities:
                break
        statistics["shared"] = _share_initializers(model)
        if statistics["squeezes"] or statistics["identities"] or statistics["shared"]:
            statistics["dead"] += model.remove_dead()
        before = [n for g in model.graphs() for n in g.nodes]
        model.sort()
        moved = any(a is not b for a, b in zip(before, (n for g in model.graphs() for n in g.nodes), strict=True))
        return PassResult(moved or any(statistics.values()), (), statistics)


def _share_initializers(model: Model) -> int:
    seen: dict[tuple[str, tuple[int, ...], bytes], Constant] = {}
    shared = 0
    originals = {t.name for g in model.graphs() if (p := graph_info(g).proto) is not None for t in p.initializer}
    held = graph_info(model.graph).initializers
    graphs = list(model.graphs())
    for name, constant in list(held.items()):
        if name in originals:
            continue
        array = constant_array(constant)
        if array is None or array.nbytes < SHARED_FROM:
            continue
        key = (array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest())
        first = seen.setdefault(key, constant)
        if first is not constant:
            rename_in_cells(model, constant.name, first.name)
            model.replace_all_uses(constant, first, graphs)
            shared += 1
    return shared
