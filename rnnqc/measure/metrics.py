"""Metrics of tasks: accuracy and perplexity against labels, and functions of the user."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.data.feeds import Feeds
from rnnqc.data.streaming import Outputs
from rnnqc.data.user_code import check_names_a_module, importable_working_folder, named_object
from rnnqc.errors import CompileError, UsageError

Array = npt.NDArray[Any]
MetricFunction = Callable[[Sequence[Outputs], Sequence[Feeds]], float]
USUAL_LABELS = ("label", "labels", "target", "targets")
LARGEST_EXPONENT = 700.0
PROBABILITIES_SUM = 1e-3
"""How far the sum of probabilities may be from 1."""


class Measure(abc.ABC):
    """A figure that is computed call by call."""

    @abc.abstractmethod
    def add(self, outputs: Outputs, feed: Feeds) -> None:
        """Adds one call: its outputs by name, and the arrays of the data, including labels."""

    @abc.abstractmethod
    def value(self) -> float:
        """Returns the figure for all calls so far."""

    @property
    def read(self) -> str:
        """The array of labels that was read; "" if a function reads what it likes."""
        return ""


class OfFunction(Measure):
    """A function of the user, called once on all calls, which are kept until then.

    Args:
        function: A function of the list of outputs and the list of feeds.
        labels: The name of the labels; if set, every call must have them.
    """

    def __init__(self, function: MetricFunction, labels: str | None = None) -> None:
        self._function, self._labels = function, labels
        self._outputs: list[Outputs] = []
        self._feeds: list[Feeds] = []

    def add(self, outputs: Outputs, feed: Feeds) -> None:
        """Keeps the call.

        Raises:
            CompileError: It has no array of that name.
        """
        _check_there(self._labels, feed)
        self._outputs.append(outputs)
        self._feeds.append(feed)

    def value(self) -> float:
        """Returns the result of the function.

        Raises:
            UsageError: It fails, or returns no number.
        """
        return called(self._function, self._outputs, self._feeds)

    @property
    def read(self) -> str:
        """The array of labels, if it was named."""
        return self._labels or ""


class AgainstLabels(Measure):
    """A mean over the labels of an output.

    Args:
        output: The output's name.
        inputs: The model's inputs; labels are an array that is not one of them.
        labels: The name of the labels; by default the only such array, or the only one with a usual name.
    """

    KINDS: ClassVar[str] = "f"
    """Kinds of dtypes that the output may have, in numpy's notation."""
    SUPPORTED: ClassVar[str] = "floats: one value for each class"
    """The accepted outputs, for messages."""
    FALLING: ClassVar[bool] = False
    """Whether less is better."""

    def __init__(self, output: str, inputs: Collection[str], labels: str | None = None) -> None:
        self._output, self._inputs, self._labels = output, frozenset(inputs), labels
        self._total, self._count, self._read = 0.0, 0, ""

    @property
    def read(self) -> str:
        """The array of labels."""
        return self._read

    def add(self, outputs: Outputs, feed: Feeds) -> None:
        """Adds one call. Labels below 0 do not count; they mark padding.

        Raises:
            CompileError: There are no labels, or they do not fit the output.
        """
        name = self._read = self._labels or _name_of_labels(feed, self._inputs)
        _check_there(name, feed)
        labels, values = feed[name], np.asarray(outputs[self._output])
        if labels.dtype.kind not in "iub":
            raise CompileError(
                f"labels {name!r} are {labels.dtype}.", supported="whole numbers", action="convert them with astype"
            )
        if values.dtype.kind not in self.KINDS:
            raise CompileError(
                f"output {self._output!r} is {values.dtype}.",
                supported=self.SUPPORTED,
                action="name another output with --output, or give a metric module:function",
            )
        if values.dtype.kind != "f":
            self._add_classes(values, name, labels)
            return
        if values.ndim == labels.ndim + 1 and values.shape[:-1] == labels.shape and values.shape[-1] > 1:
            rows, wanted = values.reshape(-1, values.shape[-1]), labels.reshape(-1).astype(np.int64)
        elif values.size == labels.size and values.shape[: labels.ndim] == labels.shape[: values.ndim]:
            rows, wanted = values.reshape(-1, 1), labels.reshape(-1).astype(np.int64)
        else:
            raise CompileError(
                f"labels {name!r} have shape {list(labels.shape)}, output {self._output!r} {list(values.shape)}.",
                supported=f"labels {list(values.shape[:-1])}, one for each row of the output",
                action="reshape the labels; or name the output with --output, the labels with --labels",
            )
        most = max(1, rows.shape[1] - 1)
        if wanted.size and wanted.max() > most:
            raise CompileError(
                f"labels {name!r} go up to {wanted.max()}; output {self._output!r} has {rows.shape[1]} value(s) a row.",
                supported=f"labels from 0 to {most}; below 0 where a row does not count",
                action="name other labels with --labels, or another output with --output",
            )
        self._add_rows(rows, wanted)

    def _add_classes(self, values: Array, name: str, labels: Array) -> None:
        """Adds integer outputs: the classes themselves, as from an argmax or a Viterbi decoder."""
        if values.size != labels.size or values.shape[: labels.ndim] != labels.shape[: values.ndim]:
            raise CompileError(
                f"labels {name!r} have shape {list(labels.shape)}, output {self._output!r}, of whole numbers, "
                f"{list(values.shape)}.",
                supported=f"labels {list(values.shape)}, one for each class that is put out",
                action="reshape the labels; or name the output with --output, the labels with --labels",
            )
        self._add_rows(values.reshape(-1, 1), labels.reshape(-1).astype(np.int64))

    def _add_rows(self, rows: Array, wanted: Array) -> None:
        counted = wanted >= 0
        self._total += self._sum(rows[counted], wanted[counted])
        self._count += int(counted.sum())

    @property
    def _mean(self) -> float:
        if not self._count:
            raise CompileError("no label counts: all are below 0.", supported="labels from 0 on")
        return self._total / self._count

    @abc.abstractmethod
    def _sum(self, rows: Array, labels: Array) -> float:
        """Returns the sum over rows of the averaged quantity."""


class Accuracy(AgainstLabels):
    """The share of rows whose largest value, probability above 0.5, or class itself matches the label."""

    KINDS = "fiub"
    SUPPORTED = "floats: one value for each class; or whole numbers: the classes"

    def value(self) -> float:
        """Returns a value from 0 to 1."""
        return self._mean

    def _sum(self, rows: Array, labels: Array) -> float:
        if rows.dtype.kind != "f":
            return float(np.sum(rows[:, 0] == labels))
        known = ~np.isnan(rows).any(axis=1)  # a row with NaN never counts as right
        if rows.shape[1] > 1:
            return float(np.sum((rows.argmax(axis=1) == labels) & known))
        if (rows[known] < 0).any() or (rows[known] > 1).any():
            raise CompileError(
                f"output {self._output!r} has one value a row, from {np.nanmin(rows):.3g} to {np.nanmax(rows):.3g}.",
                supported="a probability, or a value for each class",
                action="give a metric module:function, which knows what such a value means",
            )
        return float(np.sum(((rows[:, 0] > 0.5) == (labels > 0)) & known))


class Perplexity(AgainstLabels):
    """The exponential of the mean negative log-likelihood of the labels."""

    FALLING = True

    def value(self) -> float:
        """Returns a value from 1 on; infinite if it is undefined."""
        return math.exp(self._mean) if self._mean < LARGEST_EXPONENT else math.inf

    def _sum(self, rows: Array, labels: Array) -> float:
        if rows.shape[1] < 2:
            raise CompileError(
                f"output {self._output!r} has one value a row.",
                supported="logits, log-probabilities or probabilities of all tokens",
                action="name another output with --output",
            )
        wide = rows.astype(np.float64)
        chosen = np.take_along_axis(wide, labels[:, None], axis=1)[:, 0]
        with np.errstate(divide="ignore"):
            if (wide >= 0).all() and (np.abs(wide.sum(axis=1) - 1) < PROBABILITIES_SUM).all():
                return -float(np.sum(np.log(chosen)))
            peak = wide.max(axis=1)
            return float(np.sum(np.log(np.exp(wide - peak[:, None]).sum(axis=1)) + peak - chosen))


ACCURACY, PERPLEXITY = "accuracy", "perplexity"
BUILTIN: Mapping[str, type[AgainstLabels]] = {ACCURACY: Accuracy, PERPLEXITY: Perplexity}
"""The built-in metrics, by their names for `--metric`."""


def _check_there(labels: str | None, feed: Feeds) -> None:
    """Raises CompileError if the labels have a name and the data has no such array."""
    if labels is not None and labels not in feed:
        raise CompileError(
            f"the data has no array {labels!r}; arrays: {', '.join(sorted(feed))}.",
            supported="labels beside the inputs",
            action="name them with --labels",
        )


def _name_of_labels(feed: Feeds, inputs: Collection[str]) -> str:
    """Returns the name of the array that holds labels.

    Raises:
        CompileError: There is none, or several are possible.
    """
    others = sorted(set(feed) - set(inputs))
    usual = [name for name in others if name in USUAL_LABELS]
    found = others if len(others) == 1 else usual
    if len(found) != 1:
        raise CompileError(
            f"which array holds the labels is not clear; beside inputs the data has: {', '.join(others) or 'none'}.",
            supported="one array beside the inputs, or one called " + ", ".join(USUAL_LABELS),
            action="name the labels with --labels, or add them to the data" if others else "add labels to the data",
        )
    return found[0]


def called(function: MetricFunction, outputs: Sequence[Outputs], feeds: Sequence[Feeds]) -> float:
    """Calls a metric of the user.

    Raises:
        UsageError: It fails, or returns no number.
    """
    try:
        value = float(function(outputs, feeds))
    except CompileError:
        raise  # its message says what is wrong
    except Exception as error:
        raise UsageError(
            f"the metric failed ({type(error).__name__}: {error}).",
            supported="a function of the outputs and the inputs of all calls that returns a number",
            action="call it in Python to see the error in full",
        ) from error
    if math.isnan(value):
        raise UsageError("the metric is not a number (NaN).", supported="numbers; more is better")
    return value


def load_metric(source: str, builtin: Collection[str] = ()) -> MetricFunction:
    """Loads the function `module:function`; also finds modules in the working folder.

    Args:
        source: The text of the user.
        builtin: Names that are metrics as well, for the message.

    Raises:
        UsageError: There is none.
    """
    supported = ", ".join((*builtin, "module:function"))
    module, separator, name = source.partition(":")
    if not separator or not module or not name:
        raise UsageError(f"--metric {source!r}.", supported=supported, action="for example my_task:accuracy")
    check_names_a_module(source, f"--metric {source!r}")
    try:
        with importable_working_folder():
            function: MetricFunction = named_object(source)
    except Exception as error:
        raise UsageError(
            f"--metric {source!r}: cannot be loaded ({type(error).__name__}: {error}).",
            supported=supported,
            action="import it in Python to see the error in full",
        ) from error
    if not callable(function):
        raise UsageError(f"--metric {source!r}: is a {type(function).__name__}.", supported="a function")
    return function
