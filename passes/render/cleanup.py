"""Removes dead and duplicate parts of the model."""

from __future__ import annotations

import hashlib

import numpy as np

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Constant, Model, constant_array, graph_info
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.unused_states import drop_unused_states
from rnnqc.passes.graph.redundant_nodes import cancel_squeezes, drop_identities, rename_in_cells

SHARED_FROM = 64  # bytes; smaller constants are shared when they are created


class Cleanup(Pass):
    """Removes unused parts and merges equal ones.

    1. Removes dead nodes and initializers, and unused states, inputs and outputs of loops. 2. Removes each
    `Identity(x)` that rnnqc made; its consumers read `x`. An Identity that computes a graph output stays
       if `x` is an input, a constant or from outside the graph; otherwise `x` gets the output's name.
    3. Replaces `Squeeze(Unsqueeze(x, a), a)` by `x`.
    4. Merges initializers with equal contents that rnnqc made.
    5. Sorts nodes topologically.
    """

    info = PassInfo(
        name="cleanup", summary="remove dead nodes, deduplicate constants, sort topologically", numerics=Bitwise()
    )

    def run(self, model: Model) -> PassResult:
        """Applies the five steps until nothing changes."""
        statistics = {"dead": 0, "states": 0, "identities": 0, "squeezes": 0, "shared": 0}
        statistics["dead"] += model.remove_dead()
        if states := drop_unused_states(model):
            statistics["states"] += states
            statistics["dead"] += model.remove_dead()
        graphs = list(model.graphs())
        # Each of the two may enable the other.
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
        return PassResult(model.sort() or any(statistics.values()), (), statistics)


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
