"""The pass manager.

What these would catch: an impossible order that fails in the middle of a lowering, instruments called in another order
or not at all after a failure, provenance of passes that did nothing.
"""

from __future__ import annotations

import pytest

from rnnqc.errors import PipelineError, StructureError
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Model
from rnnqc.passes import (
    Canonicalize,
    Cleanup,
    DecomposeLstm,
    FoldScales,
    FuseQuantLstmCell,
    InsertQcdq,
    Instrument,
    Pass,
    PassInfo,
    PassManager,
    PassResult,
    Unroll,
)
from rnnqc.passes.invariants import Property
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import INT8


class Destroyer(Pass):
    """Takes away what decompose-lstm needs."""

    info = PassInfo("destroyer", "destroy", Bitwise(), clears=frozenset({Property.CANONICAL}))

    def run(self, model: Model) -> PassResult:
        return PassResult(False)


class Failing(Pass):
    """Fails."""

    info = PassInfo("failing", "fail", Bitwise())

    def run(self, model: Model) -> PassResult:
        raise RuntimeError("out of ideas")


class Breaking(Pass):
    """Takes the name of the first node's output for another value, too."""

    info = PassInfo("breaking", "break", Bitwise())

    def run(self, model: Model) -> PassResult:
        model.graph.nodes[0].outputs[0].name = model.graph.inputs[0].name
        return PassResult(True)


class Recorder(Instrument):
    """Notes every call."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def before_pass(self, pass_: Pass, model: Model) -> None:
        self.log.append(f"{self.name} before {pass_.info.name}")

    def after_pass(self, pass_: Pass, model: Model, result: PassResult) -> None:
        self.log.append(f"{self.name} after {pass_.info.name}")

    def pass_failed(self, pass_: Pass, model: Model, error: Exception) -> None:
        self.log.append(f"{self.name} failed {pass_.info.name}: {error}")


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ([DecomposeLstm()], r"'decompose-lstm' requires 'canonical', but no pass before it establishes that"),
        ([DecomposeLstm(), Canonicalize()], r"'decompose-lstm' requires 'canonical', but no pass before it"),
        ([Canonicalize(), InsertQcdq(INT8)], r"'insert-qcdq' requires 'cells-decomposed'"),
        ([Canonicalize(), DecomposeLstm(), FoldScales()], r"'fold-scales' requires 'cells-quantized'"),
        (
            [Canonicalize(), DecomposeLstm(), InsertQcdq(INT8), FuseQuantLstmCell()],
            r"'fuse-quant-lstm-cell' requires 'scales-folded'",
        ),
        ([Unroll()], r"'unroll' requires 'canonical'"),
        (
            [Canonicalize(), Destroyer(), DecomposeLstm()],
            r"'decompose-lstm' requires 'canonical', but pass 'destroyer' before it destroys that",
        ),
    ],
)
def test_impossible_order_is_refused_at_construction(passes: list[Pass], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        PassManager(passes)


def test_possible_orders() -> None:
    PassManager([])
    PassManager([Cleanup()])
    PassManager([Canonicalize(), Destroyer(), Canonicalize(), DecomposeLstm()])
    PassManager([DecomposeLstm()], given=frozenset({Property.CANONICAL}))


def test_instruments_are_called_like_brackets() -> None:
    log: list[str] = []
    PassManager([Canonicalize(), Cleanup()], [Recorder("a", log), Recorder("b", log)]).run(
        Model.load(RecurrentCase().model())
    )
    assert log == [
        *("a before canonicalize", "b before canonicalize", "b after canonicalize", "a after canonicalize"),
        *("a before cleanup", "b before cleanup", "b after cleanup", "a after cleanup"),
    ]


def test_instruments_hear_of_a_failure() -> None:
    log: list[str] = []
    manager = PassManager([Failing(), Cleanup()], [Recorder("a", log), Recorder("b", log)])
    with pytest.raises(RuntimeError, match="out of ideas"):
        manager.run(Model.load(RecurrentCase().model()))
    assert log == [
        "a before failing",
        "b before failing",
        "b failed failing: out of ideas",
        "a failed failing: out of ideas",
    ]


def test_a_structure_that_a_pass_breaks_is_found_after_it() -> None:
    with pytest.raises(StructureError, match="more than one producer"):
        PassManager([Breaking()]).run(Model(RecurrentCase().model()))


def test_provenance_names_the_passes_that_changed_something() -> None:
    model = Model.load(RecurrentCase(opset=17).model())
    results = PassManager([Canonicalize(), Cleanup(), DecomposeLstm(), Destroyer()]).run(model)
    assert [r.modified for r in results] == [True, False, True, False]
    assert model.provenance == ["canonicalize", "decompose-lstm"]
    assert '["canonicalize","decompose-lstm"]' in [p.value for p in model.proto.metadata_props]
    PassManager([Canonicalize(), Cleanup()]).run(model)
    assert model.provenance == ["canonicalize", "decompose-lstm", "cleanup"]
