"""Turns a loop that computes one step per iteration into one recurrent node."""

from __future__ import annotations

from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Model, display_name
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.invariants import Property
from rnnqc.passes.recover.loops.loop_bounds import trips_of
from rnnqc.passes.recover.loops.loop_layers import LoopLayers, layers_of
from rnnqc.passes.recover.loops.loop_results import LoopResults
from rnnqc.passes.recover.loops.loop_rewrite import LoopRewrite
from rnnqc.passes.recover.recovery_sites import RecoverySites


class RecoverLoops(RecoverySites, Pass):
    """Replaces Loop and Scan nodes whose only recurrence is in the recurrent nodes of their bodies.

    Before: `Loop(T, h, c; x_t = X[t]; LSTM(x_t, h, c) -> h', c'; y_t = h' MatMul V)`

    After: `LSTM(X, h, c) -> Y, Y_h, Y_c; Y MatMul V`

    The rest of the body is computed for all iterations at once. A loop stays, with a note and with the nodes of
    its body, where

    * another value is carried between iterations, or the input of a layer depends on its own state;
    * the number of iterations depends on data;
    * an operator of the body cannot be applied to all iterations at once.
    """

    info = PassInfo(
        name="recover-loops",
        summary="turn loops over steps into LSTM, GRU and RNN nodes",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every loop, innermost first."""
        remarks: list[Remark] = []
        self.sites = []
        count = 0
        if any(is_loop(n) for g in model.graphs() for n in g.nodes):
            model.infer_shapes()
        for graph, _, path in reversed(list(bodies(model))):
            for node in list(graph.nodes):
                if not is_loop(node) or not layers_of(node):
                    continue
                name, op = f"{path}{display_name(node)}", node.op
                recovery = _Recovery(model, graph, node)
                try:
                    self.check_kept(name)
                    made = recovery.run()
                except NotHandled as refusal:
                    recovery.undo()
                    action = refusal.action or "none; the steps inside the loop are layers of their own"
                    remarks.append(
                        self.remark(Outcome.NOTE, name, op, f"the loop stays: {refusal.reason}", refusal.found, action)
                    )
                    continue
                count += 1
                self.sites.append(name)
                remarks.append(self.remark(Outcome.NOTE, name, op, f"replaced by {', '.join(made)}."))
                model.remove_dead()
                model.sort()
                model.infer_shapes()
        return PassResult(bool(count), tuple(remarks), {"loops": count})


class _Recovery(LoopRewrite):
    """The rewrite of one loop."""

    def run(self) -> list[str]:
        """Returns the names of the new nodes.

        Raises:
            NotHandled: The loop has to stay.
        """
        trips = trips_of(self.node, Constants(self.model))
        layers = LoopLayers(self.graph, self.node, trips, self.b)
        for layer in layers_of(self.node):
            layers.add(layer)
        self.connect(LoopResults(self.graph, self.node, layers, self.b).all())
        return [f"{n.op} {n.name!r}" for n in layers.made]
