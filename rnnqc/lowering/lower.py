"""`lower`: plan, run, judge, record."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rnnqc.data.given_data import Data
from rnnqc.data.statistics import Statistics
from rnnqc.errors import located
from rnnqc.evaluation.invalid_model_errors import (
    refuse_invalid_input,
    refuse_invalid_output,
    refusing_invalid_models,
)
from rnnqc.lowering.judge import judge, refuse_other_forms
from rnnqc.lowering.options import REST_FLOAT, LowerOptions
from rnnqc.lowering.plan import make_plan
from rnnqc.lowering.record import record
from rnnqc.lowering.reports.report import Lowered
from rnnqc.lowering.run import run
from rnnqc.lowering.stages import nothing
from rnnqc.passes import Instrument
from rnnqc.proto.given import Given, as_given
from rnnqc.recipes.recipe import Recipe, override_texts


def lower(
    model: Given,
    recipe: str | Recipe | None = None,
    form: str | None = None,
    *,
    calibration: Data | None = None,
    stats: Statistics | str | os.PathLike[str] | None = None,
    state: Mapping[str, str] | Iterable[str] | None = None,
    batch: int | None = None,
    unroll: bool = False,
    dims: Mapping[str, int] | None = None,
    bind: Mapping[str, Any] | None = None,
    overrides: Iterable[str] = (),
    strict: bool = False,
    verify: bool = False,
    reproducer: str | os.PathLike[str] | None = None,
    measure: bool = False,
    patience: float = math.inf,
    rest: str = REST_FLOAT,
    strict_rest: bool = False,
    remove_sorting: bool = False,
    quantized_outputs: Sequence[str] = (),
    instruments: Sequence[Instrument] = (),
    progress: Callable[[str], None] | None = None,
) -> Lowered:
    """Lowers the recurrent layers of a float model to quantized ones.

    Examples:
        >>> import rnnqc
        >>> lowered = rnnqc.lower("models/digits_lstm.onnx", calibration="models/digits_calibration.npz")
        >>> [(row["op"], row["status"], row["form"]) for row in lowered.rows]
        [('LSTM', 'lowered', 'fused')]

        `lowered.save("digits.int8.onnx")` writes the model; `print(lowered)` reports the outcome of each layer.

    Args:
        model: A path, a ModelProto, or a `torch.onnx.ONNXProgram`.
        recipe: Name of a recipe, or a `.toml` file, or a recipe. By default "int8", except for a model with cells that
            bring their own quantization, which is kept.
        form: "fused" (default), "integer", "qcdq", "qonnx" or "ort".
        calibration: Data to calibrate with: the name of an `.npz`, of a directory of `.npz`, or `module:function`; a
            dict of arrays as an `.npz` holds them (a leading axis counts samples); or any iterable of feeds, such as a
            `torch.utils.data.DataLoader`. A feed is a dict of arrays by name of input, or arrays in the order of the
            inputs, optionally followed by labels. Arrays may be torch tensors.
        stats: The statistics of an earlier calibration instead, or their file.
        state: If the calibration data is the calls of a stream: outputs by the input they become in the next call.
        batch: How many rows of calibration data run at once (see `calibrate`); given statistics must be of this batch.
        unroll: Unroll loops (needs static sequence lengths).
        dims: Symbolic dimensions to bind, by name.
        bind: Values of inputs by name. These inputs become constants and disappear from the lowered model. A number or
            boolean fills an input of any fixed shape; a list or array has the shape of the input.
        overrides: `PATH.KEY=VALUE` before the recipe's rules.
        strict: Refuse a model with a recurrent node that stays float, or that another tool has quantized.
        verify: Compare the numerics after every pass with what the pass declares, on generated feeds and some of the
            calibration data.
        reproducer: Folder for the files that reproduce a failed comparison; those of an earlier run are removed.
        measure: Measure the SQNR of every output against the float model, on some of the calibration data (the first
            calls of a stream), or on generated data of several magnitudes (`report.sqnr_db` and the fields after it).
            Off by default: a program may lower a hundred times and has its own data to compare on
            (`compare_models`).
        patience: Measure for at most this many times as long as the lowering takes, and only if something was lowered
            now.
        rest: "float" (default), or "int8": embeddings, linear layers and convolutions around the recurrent layers are
            stored as int8 (see `docs/whole_models.md`).
        strict_rest: Refuse a model in which a weight around the recurrent layers stays float, except those that are
            too small to gain.
        remove_sorting: Remove sorts of a batch by length, which no recurrent layer needs, if nothing else reads them.
        quantized_outputs: Names of outputs that become quantized values (int8, ...) in the format of their hidden or
            cell states; `report.quantized_outputs` and the metadata tell how to convert them to real values.
        instruments: Additional observers of the passes.
        progress: Called with what is being done, in words, again and again; with the progress of a calibration, too.

    Raises:
        CompileError: The model or the options cannot be handled; onnxruntime finds the graph, or the lowered one,
            invalid; with `strict`: a recurrent node stays as it is; with `strict_rest`: a weight around them stays
            float; with form "qonnx": no layer has a cell of it.
        NumericsError: With `verify`: a pass changed more than it declares.
    """
    options = LowerOptions(
        recipe, form, unroll, dims or {}, override_texts(overrides), verify,
        None if reproducer is None else Path(reproducer), measure,
        stats, calibration, state, strict, patience, rest, strict_rest, bind or {}, batch, remove_sorting,
        tuple(quantized_outputs),
    )  # fmt: skip
    lowered = lower_to_report(model, options, instruments, progress)
    with located(lowered.report.source):
        refuse_other_forms(lowered.report, form)
    return lowered


@refusing_invalid_models
def lower_to_report(
    model: Given,
    options: LowerOptions,
    instruments: Sequence[Instrument] = (),
    progress: Callable[[str], None] | None = None,
) -> Lowered:
    """Like `lower`, but only reports a form that no layer has, for callers that write the report before they refuse.

    Raises:
        CompileError: As `lower`.
        NumericsError: As `lower`.
        InternalError: With `measure`: onnxruntime finds the lowered model of a valid model invalid.
    """
    start, model = time.perf_counter(), as_given(model)
    plan = make_plan(model, options, progress)
    with located(plan.model.source):
        passed = run(plan, instruments, progress or nothing)
        report = judge(plan, passed, start, progress or nothing)
        lowered = record(plan, passed, report)
    if not report.sqnr_db:  # otherwise both models ran
        refuse_invalid_input(model, lowered.proto)
        if options.measure:  # the measurement failed
            refuse_invalid_output(model, lowered.proto)
    return lowered
