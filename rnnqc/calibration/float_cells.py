"""The float cells of a model, as calibration and searches observe them."""

from __future__ import annotations

from collections.abc import Callable

from rnnqc.data.binding import bound_values
from rnnqc.errors import CompileError, explained
from rnnqc.ir import Model
from rnnqc.passes.analysis.custom_products import custom_cells
from rnnqc.passes.analysis.find_recurrent_nodes import recurrent_nodes
from rnnqc.passes.cells.decompose_lstm import DecomposeLstm
from rnnqc.passes.manager import PassManager
from rnnqc.passes.pipeline import NORMAL_FORM, normal_form


def decompose(model: Model, verb: str, look: Callable[[Model], bool] | None = None, *, fold: bool = False) -> None:
    """Lowers the recurrent layers of a float model to explicit loops, in place; then it has cells.

    Args:
        model: The model.
        verb: The purpose, for messages.
        look: Called with the model in normal form; returns whether it found something else of use.
        fold: Whether to fold values computed from known inputs first, as for bound dimensions; always done if inputs
            are bound.

    Raises:
        CompileError: It has no recurrent layer that can be quantized, or is already lowered.
    """
    lowered = [c.name for c in model.cells.values() if c.form != "float"]
    lowered += [record["name"] for record in custom_cells(model).values()]
    if lowered:
        raise CompileError(
            f"cell {lowered[0]!r} is lowered already.",
            supported="float models",
            action=f"{verb} the model that it was lowered from",
        )
    PassManager(normal_form(fold=fold or bool(bound_values(model.metadata)))).run(model)
    more = look is not None and look(model)
    PassManager([DecomposeLstm()], given=NORMAL_FORM).run(model)
    if not model.cells and not more:
        refused = next((n for n in recurrent_nodes(model) if n.status == "float"), None)
        raise CompileError(
            "no recurrent layer that can be quantized."
            if refused is None
            else f"no recurrent layer that can be quantized: {refused.op} {refused.path!r} stays float: "
            + explained(*refused.refusal[:2]),
            supported="models with at least one float LSTM, GRU or RNN layer of constant weights",
            action="`rnnqc inspect` lists the recurrent layers; cells of Brevitas are lowered without data",
        )
