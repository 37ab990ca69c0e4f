"""Parses the pairs `IN:OUT` that say which inputs of a model carry states from call to call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx

from rnnqc.data.declared_shapes import Declared, declared_sizes, shapes_fit
from rnnqc.data.feeds import true_inputs
from rnnqc.data.state_hints import hinted_states, options_of_states
from rnnqc.errors import UsageError


def state_pairs(state: Mapping[str, str] | Iterable[str] | None, proto: onnx.ModelProto) -> dict[str, str]:
    """Returns outputs by the input that they become, from such pairs or from texts `IN:OUT`.

    Raises:
        UsageError: A text names no input or no output of the model, an input twice, or an output that cannot become it.
    """
    if isinstance(state, str):
        raise UsageError(f"state = {state!r} is one text.", supported="a list of texts such as 'IN:OUT', or a dict")
    inputs = {i.name: i for i in true_inputs(proto)}
    outputs = {o.name: o for o in proto.graph.output}
    given = list(state.items()) if isinstance(state, Mapping) else [_split(t, inputs, outputs) for t in state or ()]
    carried: dict[str, str] = {}
    for name, output in given:
        if name not in inputs or output not in outputs:
            raise _unknown(name, output, inputs, outputs)
        _check_fits(inputs[name], outputs[output], proto)
        if carried.setdefault(name, output) != output:
            found = f"{carried[name]!r} and {output!r}"
            raise UsageError(
                f"--state: input {name!r} has two outputs, {found}.", supported="one", action="leave one out"
            )
    return carried


def _split(text: str, inputs: Collection[str], outputs: Collection[str]) -> tuple[str, str]:
    """Splits `IN:OUT` at the colon that leaves names of the model: names may contain colons, too."""
    parts = text.split(":")
    pairs = [(":".join(parts[:k]), ":".join(parts[k:])) for k in range(1, len(parts))]
    known = [(name, output) for name, output in pairs if name in inputs and output in outputs]
    turned = [(name, output) for name, output in pairs if name in outputs and output in inputs]
    return (*known, *turned, *pairs, (text, ""))[0]


def _unknown(name: str, output: str, inputs: Collection[str], outputs: Collection[str]) -> UsageError:
    """Makes the error for a pair that is not an input and an output of the model."""
    text = f"{name}:{output}" if output else name
    action = "name an input of the model and the output that becomes it"
    several = [_split(part, inputs, outputs) for part in text.split(",")]
    if not output:
        found = "not of the form IN:OUT."
    elif name in outputs and output in inputs:
        found = f"{name!r} is an output of the model, and {output!r} is an input: the two are swapped."
        action = f"swap them: {options_of_states({output: name})}"
    elif len(several) > 1 and all(i in inputs and o in outputs for i, o in several):
        found = "several pairs with commas between them."
        action = f"separate the pairs by spaces: {options_of_states(dict(several))}"
    else:
        wrong = f"no input {name!r}" if name not in inputs else f"no output {output!r}"
        found = f"the model has {wrong}."
    return UsageError(
        f"--state {text!r}: {found}",
        supported=f"inputs {sorted(inputs)}, outputs {sorted(outputs)}",
        action=action,
    )


def _check_fits(value: onnx.ValueInfoProto, output: onnx.ValueInfoProto, proto: onnx.ModelProto) -> None:
    """Refuses a pair whose declared shapes can never be equal.

    Raises:
        UsageError: The declared shapes differ.
    """
    before, after = declared_sizes(value), declared_sizes(output)
    if before is None or after is None or shapes_fit(before, after):
        return
    likely = hinted_states(proto)
    name = value.name
    raise UsageError(
        f"--state {f'{name}:{output.name}'!r}: input {name!r} has shape {Declared.of(value).shape_text}, "
        f"output {output.name!r} has {Declared.of(output).shape_text}.",
        supported="an output of the shape of the input that it becomes",
        action=f"carry {options_of_states({name: likely[name]})}"
        if likely.get(name, output.name) != output.name
        else "name the output that is the state after the call",
    )
