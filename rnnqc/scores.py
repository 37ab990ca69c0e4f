"""Evaluates a metric of a task on a model: `rnnqc.evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx

from rnnqc.data.binding import bound_like
from rnnqc.data.feeds import true_inputs
from rnnqc.data.given_data import LABEL, Data
from rnnqc.errors import FLOAT_MODEL, LOWERED_MODEL, MEMORY, located
from rnnqc.lowering.executable import executable
from rnnqc.lowering.lowered_before import check_order
from rnnqc.measure.chosen_metric import measure_maker
from rnnqc.measure.metrics import ACCURACY, PERPLEXITY, MetricFunction
from rnnqc.measure.runs import Calls, Runner, State, has_native
from rnnqc.proto.given import Given, as_given, name_of, proto_of
from rnnqc.results import Result

CHANGE = "against float"
"""The column for a lowered model's loss or gain, in tables."""


@dataclass(frozen=True, repr=False)
class Evaluation(Result):
    """A metric of a model on data.

    Attributes:
        metric: Its name; `module:function` or the function's own name for one of the user.
        output: The output that a built-in metric reads; "" for a function.
        calls: The number of calls in the data.
        value: The metric of the model.
        reference: The metric of the float model; None without one.
        labels: The array of labels that a built-in metric reads; for a function the given name, or "".
        model: Name of the model.
        against: Name of the float model; "" without one.
    """

    metric: str
    output: str
    calls: int
    value: float
    reference: float | None = None
    labels: str = ""
    model: str = MEMORY
    against: str = ""

    @property
    def headline(self) -> str:
        """The number of calls, and the arrays that were compared."""
        read = f", output {self.output} against {self.labels}" if self.output else ""
        return f"{self.calls} call(s){read}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metric of the float model, if given, and of the model, with the loss or gain.

        That is the difference; for a perplexity, the quotient of both minus 1.
        """
        if self.reference is None:
            return [{"model": self.model, self.metric: self.value}]
        lost = self.value / self.reference - 1 if self.metric == PERPLEXITY else self.value - self.reference
        return [
            {"model": self.against, self.metric: self.reference, CHANGE: None},
            {"model": self.model, self.metric: self.value, CHANGE: lost},
        ]

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The rows with an accuracy in percent."""
        written = {self.metric: self._figure, CHANGE: self._change}
        return [{k: written.get(k, str)(v) for k, v in row.items()} for row in self.rows]

    def _figure(self, value: float) -> str:
        form = {ACCURACY: ".2%", PERPLEXITY: ".3f"}.get(self.metric, ".6g")
        return f"{value:{form}}"

    def _change(self, lost: float | None) -> str:
        if lost is None:
            return ""
        points = self.metric == ACCURACY
        return f"{100 * lost:+.2f} points" if points else f"{lost:{'+.3%' if self.metric == PERPLEXITY else '+.3g'}}"

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        return asdict(self)


def evaluate(
    model: Given,
    data: Data,
    metric: str | MetricFunction,
    *,
    against: Given | None = None,
    state: State = None,
    output: str | None = None,
    labels: str | None = None,
    native: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Runs a model over data that includes labels, and computes a metric of the outputs.

    Examples:
        >>> import rnnqc
        >>> found = rnnqc.evaluate("models/digits_lstm.onnx", "models/digits_test.npz", "accuracy")
        >>> found.output, found.value > 0.9
        ('logits', True)

    Args:
        model: A path, a ModelProto, or what `rnnqc.lower` returns: float, lowered, or as Brevitas exported it.
        data: Inputs and labels by name: data as `rnnqc.lower` takes it. They are kept in memory.
        metric: "accuracy", "perplexity", the name `module:function`, or a function of the list of outputs and the list
            of feeds of all calls, each a dict of arrays by name. Only for a function all outputs are kept in memory.
        against: The float model to evaluate, too; each model carries its own states.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`: the data is the calls of a stream.
        output: The output that a built-in metric reads, `[...,classes]` or, for accuracy, a probability; by default the
            first that is not a state.
        labels: The array of labels, `[...]`, integers; by default the only one that is not an input, or one called
            label, labels, target or targets. Labels below 0 do not count. Arrays that follow those of the inputs, as in
            a batch of a `DataLoader`, get this name, or else "label", also in the feeds of a function. If the name is
            given for a function, every call must have such an array.
        native: Whether to run with the native library, if it is available; same bits.
        progress: Called with the number of calls done so far, and the total, for both models together.

    Returns:
        The metric of both models.

    Raises:
        UsageError: There is no such metric or output, the models are in the wrong order, or a function fails.
        CompileError: A model does not run, the data does not fit, or labels do not fit the output.
    """
    named = [(name_of(m), _loaded(m)) for m in (as_given(m) for m in (model, against) if m is not None)]
    names = _names(model, against, [proto for _, proto in named])
    inputs = {i.name for _, proto in named for i in true_inputs(proto)}
    with located(named[-1][0]):
        named[-1] = named[-1][0], bound_like(named[-1][1], named[0][1])
        calls = Calls.of(data, named[-1][1], state, labels=labels or LABEL)
    made, read = measure_maker(
        metric, inputs, [o.name for o in named[-1][1].graph.output], calls.carried, output, labels
    )
    values: list[float] = []
    labelled = ""
    for name, proto in named:
        measure = made()
        runner = Runner(executable(proto), name, native=native and has_native())
        before = len(values) * len(calls.pieces)
        for done, (piece, outputs) in enumerate(zip(calls.pieces, runner.outputs(calls), strict=True), before + 1):
            with located(f"call {piece.first}"):
                measure.add(outputs, piece.feed)
            if progress is not None:
                progress(done, len(named) * len(calls.pieces))
        values.append(measure.value())
        labelled = measure.read
    title = metric if isinstance(metric, str) else getattr(metric, "__name__", "metric")
    reference = values[1] if len(values) > 1 else None
    return Evaluation(title, read, len(calls.pieces), values[0], reference, labelled, *names)


def _names(model: Given, against: Given | None, protos: Sequence[onnx.ModelProto]) -> list[str]:
    """Returns the name of the model, and of the float one if there is one.

    Raises:
        UsageError: They are in the wrong order.
    """
    if against is None:
        return [name_of(model)]
    names = (name_of(against, FLOAT_MODEL), name_of(model, LOWERED_MODEL))
    check_order(names, protos[::-1], "rnnqc evaluate QUANT.onnx --against FLOAT.onnx")
    return list(names[::-1])


def _loaded(source: Given) -> onnx.ModelProto:
    with located(name_of(source)):
        return proto_of(source)
