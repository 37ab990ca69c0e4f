"""What every analysis of a float model begins with."""

from __future__ import annotations

from collections.abc import Callable

from rnnqc.errors import CompileError
from rnnqc.ir import Model
from rnnqc.passes.analysis.custom_products import custom_cells
from rnnqc.passes.base import Pass
from rnnqc.passes.cells.decompose_lstm import DecomposeLstm
from rnnqc.passes.invariants import Property
from rnnqc.passes.manager import PassManager
from rnnqc.passes.normalize.canonicalize import Canonicalize
from rnnqc.passes.normalize.compute_in_float32 import ComputeInFloat32
from rnnqc.passes.normalize.fold_product_weights import FoldProductWeights
from rnnqc.passes.normalize.read_weight_codes import ReadWeightCodes
from rnnqc.passes.normalize.repair_lstm_export import RepairLstmExport
from rnnqc.passes.normalize.simplify_sequences import SimplifySequences
from rnnqc.passes.recover.recognize_steps import RecognizeSteps
from rnnqc.passes.recover.recover_loops import RecoverLoops
from rnnqc.passes.recover.roll_steps import RollSteps


def normal_form(*, keep_codes: bool = False) -> list[Pass]:
    """The passes before the recurrent nodes are counted; recurrences written in other ways are nodes then.

    Args:
        keep_codes: Whether weights that are stored as codes stay codes.
    """
    return [
        RepairLstmExport(),
        ReadWeightCodes(keep=keep_codes),
        Canonicalize(keep_codes=keep_codes),
        ComputeInFloat32(),
        RecognizeSteps(),
        RollSteps(),
        RecoverLoops(),
        SimplifySequences(),
        FoldProductWeights(),
    ]


def decompose(model: Model, verb: str, look: Callable[[Model], bool] | None = None) -> None:
    """Takes the recurrent layers of a float model apart, in place; then it has cells.

    Args:
        model: The model.
        verb: What it is wanted for, for messages.
        look: Called with the model in normal form; whether it has found something else that is wanted.

    Raises:
        CompileError: It has no recurrent layer that can be quantized, or is lowered already.
    """
    lowered = [c.name for c in model.cells.values() if c.form != "float"]
    lowered += [record["name"] for record in custom_cells(model).values()]
    if lowered:
        raise CompileError(
            f"cell {lowered[0]!r} is lowered already.",
            supported="float models",
            action=f"{verb} the model that it was lowered from",
        )
    PassManager(normal_form()).run(model)
    more = look is not None and look(model)
    PassManager([DecomposeLstm()], given=frozenset({Property.CANONICAL})).run(model)
    if not model.cells and not more:
        raise CompileError(
            "no recurrent layer that can be quantized.",
            supported="models with at least one float LSTM, GRU or RNN layer of constant weights",
            action="`rnnqc inspect` lists the recurrent layers; cells of Brevitas are lowered without data",
        )
