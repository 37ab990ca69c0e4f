"""The metric that a user chose, by name or as a function: the same for `evaluate`, `report` and `tune`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from rnnqc.data.feeds import Feeds
from rnnqc.data.streaming import Outputs
from rnnqc.errors import UsageError, located
from rnnqc.measure.metrics import BUILTIN, Measure, MetricFunction, OfFunction, load_metric


def measure_maker(
    metric: str | MetricFunction,
    inputs: Collection[str],
    outputs: Sequence[str],
    carried: Mapping[str, str],
    output: str | None = None,
    labels: str | None = None,
) -> tuple[Callable[[], Measure], str]:
    """Returns a factory for the measure of a model, and the output that it reads; "" if a function reads them all.

    Args:
        metric: The name of a built-in one, `module:function`, or a function.
        inputs: Names of the model's inputs.
        outputs: Names of its outputs.
        carried: Outputs by the input that they become in the next call; built-in metrics skip them by default.
        output: The output that a built-in metric reads instead of the first.
        labels: The array of labels; for a function, the name of the array that is not an input.

    Raises:
        UsageError: There is no such metric, or no such output.
    """
    if not isinstance(metric, str) or metric not in BUILTIN:
        function = load_metric(metric, tuple(BUILTIN)) if isinstance(metric, str) else metric
        if output is not None:
            raise UsageError(
                f"--output {output} with a metric of your own.",
                supported=f"--output with {' and '.join(BUILTIN)}",
                action="leave --output out: your function gets all outputs",
            )
        return lambda: OfFunction(function, labels), ""
    values = [name for name in outputs if name not in carried.values()]
    read = output if output is not None else values[0] if values else ""
    if read not in outputs:
        raise UsageError(
            f"--output {read!r}: the model has no such output.",
            supported=", ".join(outputs),
            action="name an output of the model",
        )
    return lambda: BUILTIN[metric](read, inputs, labels), read


def metric_function(
    metric: str | MetricFunction, inputs: Collection[str], outputs: Sequence[str], carried: Mapping[str, str]
) -> MetricFunction:
    """Returns the chosen metric as a function of the outputs and the arrays of all calls.

    Args:
        metric: As `measure_maker` takes it.
        inputs: Names of the model's inputs.
        outputs: Names of its outputs.
        carried: Outputs by the input that they become in the next call.

    Raises:
        UsageError: There is no such metric.
    """
    made, _ = measure_maker(metric, inputs, outputs, carried)

    def value(results: Sequence[Outputs], feeds: Sequence[Feeds]) -> float:
        measure = made()
        for call, (result, feed) in enumerate(zip(results, feeds, strict=True)):
            with located(f"call {call}"):
                measure.add(result, feed)
        return measure.value()

    return value


def is_falling(metric: str | MetricFunction | None) -> bool:
    """Whether less of a metric is better; for a function of the user, more is."""
    return isinstance(metric, str) and metric in BUILTIN and BUILTIN[metric].FALLING
