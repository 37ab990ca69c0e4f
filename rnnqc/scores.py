"""What a model is worth in its task: `rnnqc.evaluate`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

from rnnqc.data.feeds import true_inputs
from rnnqc.errors import MEMORY, UsageError, located
from rnnqc.lowering.executable import executable
from rnnqc.measure.metrics import BUILTIN, Measure, MetricFunction, OfFunction, load_metric
from rnnqc.measure.runs import Calls, Data, Runner, State, has_native
from rnnqc.proto.files import load_proto

Source = str | os.PathLike[str] | onnx.ModelProto


@dataclass(frozen=True)
class Evaluation:
    """A metric of a model on data.

    Attributes:
        metric: Its name; `module:function` or the function's own name for one of the user.
        output: The output that a built-in metric reads; "" for a function.
        calls: How many calls the data makes.
        value: The metric of the model.
        reference: That of the float model; None without one.
    """

    metric: str
    output: str
    calls: int
    value: float
    reference: float | None = None


def evaluate(
    model: Source,
    data: Data,
    metric: str | MetricFunction,
    *,
    against: Source | None = None,
    state: State = None,
    output: str | None = None,
    labels: str | None = None,
    native: bool = True,
) -> Evaluation:
    """Runs a model over data, with labels beside the inputs, and says what a metric makes of the outputs.

    Args:
        model: A model: float, lowered, or as Brevitas exported it.
        data: Inputs and labels by name: feeds, or the name of an `.npz`, of a directory of `.npz`, or
            `module:function`. They are kept in memory.
        metric: "accuracy", "perplexity", the name `module:function`, or a function of the list of outputs and the list
            of feeds of all calls, each a dict of arrays by name. The outputs of all calls are held for a function only.
        against: The float model, whose metric stands beside; each model carries its own states.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`: the data is the calls of a stream.
        output: The output that a built-in metric reads, `[...,classes]` or, for accuracy, a probability; by default the
            first that is no state.
        labels: The array of labels, `[...]`, whole numbers; by default the only one that is no input, or one called
            label, labels, target or targets. Labels below 0 do not count.
        native: Whether to run with the native library, if it is there; same bits.

    Returns:
        The metric of both models.

    Raises:
        UsageError: There is no such metric or output, or a function fails.
        CompileError: A model does not run, the data does not fit, or labels do not fit the output.
    """
    named = [(_name(m), _loaded(m)) for m in (model, against) if m is not None]
    with located(named[-1][0]):
        calls = Calls.of(data, named[-1][1], state, labelled=True)
    made, read = _maker(metric, [proto for _, proto in named], calls, output, labels)
    values = []
    for name, proto in named:
        measure = made()
        runner = Runner(executable(proto), name, native=native and has_native())
        for piece, outputs in zip(calls.pieces, runner.outputs(calls), strict=True):
            with located(f"call {piece.first}"):
                measure.add(outputs, piece.feed)
        values.append(measure.value())
    title = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    return Evaluation(title, read, len(calls.pieces), values[0], values[1] if len(values) > 1 else None)


def _maker(
    metric: str | MetricFunction, models: list[onnx.ModelProto], calls: Calls, output: str | None, labels: str | None
) -> tuple[Callable[[], Measure], str]:
    """What makes the measure of a model, and the output that it reads.

    Raises:
        UsageError: There is no such metric, or no such output.
    """
    if not isinstance(metric, str) or metric not in BUILTIN:
        function = load_metric(metric, tuple(BUILTIN)) if isinstance(metric, str) else metric
        for option, given in (("output", output), ("labels", labels)):
            if given is not None:
                raise UsageError(
                    f"--{option} {given} with a metric of your own.",
                    supported=f"--{option} with {' and '.join(BUILTIN)}",
                    action=f"leave --{option} out: your function gets all outputs and all arrays",
                )
        return lambda: OfFunction(function), ""
    inputs = {i.name for proto in models for i in true_inputs(proto)}
    outputs = [o.name for o in models[-1].graph.output]
    values = [name for name in outputs if name not in calls.carried.values()]
    read = output if output is not None else values[0] if values else ""
    if read not in outputs:
        raise UsageError(
            f"--output {read!r}: the model has no such output.",
            supported=", ".join(outputs),
            action="name an output of the model",
        )
    return lambda: BUILTIN[metric](read, inputs, labels), read


def _name(source: Source) -> str:
    return MEMORY if isinstance(source, onnx.ModelProto) else os.fspath(source)


def _loaded(source: Source) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    with located(os.fspath(source)):
        return load_proto(Path(source))
