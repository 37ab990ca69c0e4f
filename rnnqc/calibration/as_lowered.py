"""Selects the form of the model that a calibration runs if lowering binds dimensions or inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rnnqc.data.binding import bound_model
from rnnqc.errors import located
from rnnqc.ir import Model
from rnnqc.passes.analysis.find_recurrent_nodes import recurrent_nodes
from rnnqc.passes.analysis.rows_of_layers import dimensions_to_bind
from rnnqc.passes.manager import PassManager
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.given import Given


def model_as_lowered(source: Given, dims: Mapping[str, int], bind: Mapping[str, Any]) -> tuple[Model, bool]:
    """Returns a model that has the same recurrent layers as lowering finds, with the same bindings.

    Bound dimensions stay open if binding them changes no layer: then data of other sizes, such as batches, can run.

    Args:
        source: The model as it was given.
        dims: Sizes of symbolic dimensions by name.
        bind: Values of inputs by name.

    Returns:
        The model, and whether its normal form folds values computed from known inputs.

    Raises:
        CompileError: It has no dimension or no input of a name, or a value does not fit.
    """
    if not (dims or bind):
        return Model.load(source), False
    every = dimensions_to_bind(source, dims, bind, normal_form())
    if bind or _layers(Model.load(source), False) != _layers(bound_model(source, every, {}), True):
        return bound_model(source, every, bind), True
    return Model.load(source), False


def _layers(model: Model, fold: bool) -> set[tuple[str, str, str]]:
    """Returns path, operator and status of each recurrent layer that lowering would find; modifies the model."""
    with located(model.source):
        PassManager(normal_form(fold=fold)).run(model)
        return {(n.path, n.op, n.status) for n in recurrent_nodes(model)}
