"""Finds the first value that differs between two forms of a model: in loops, branches and functions, too.

All values inside are made outputs: those of a Scan or Loop step by step, those of a branch where it is taken; functions
are inlined first. A value is compared with the one of the same name; where there is none, with one whose name differs
only by what passes add to names: a number to make it unique, the step of a written-out loop, the kind of the integer
operands. Passes may measure such a value in other units: then it is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, helper

from rnnqc.diagnostics import CompileError
from rnnqc.evaluate import make_session, run_session
from rnnqc.graph_walks import captured
from rnnqc.numerics import Numerics, sqnr_db
from rnnqc.passes.observe import NotObservableError, Observed, with_outputs
from rnnqc.passes.point_names import alias
from rnnqc.shape_inference import INFERENCE_ERRORS, infer_shapes

Array = npt.NDArray[Any]
Steps = tuple[int, ...]
"""The iterations of the loops around a value, from outside to inside; loops of one kind in each other count as one."""
Series = list[tuple[Steps, Array]]
Types = Mapping[str, tuple[int, int]]
OTHER_UNITS, OTHER_UNITS_DB = 8.0, 30.0
_SMALL = 1024
_LOOPS = ("Scan", "Loop")


@dataclass(frozen=True)
class Divergence:
    """The first value that differs too much.

    Attributes:
        value: Its name in the model before the pass.
        inside: The nodes in whose subgraphs it is, from outside to inside: operator and first output.
        step: The first step of the innermost loop at which it differs; None outside of loops.
        text: By how much.
    """

    value: str
    inside: tuple[str, ...]
    step: int | None
    text: str

    def __str__(self) -> str:
        where = "".join(f" in {node}" for node in reversed(self.inside))
        return f"{self.value!r}{where}{'' if self.step is None else f' at step {self.step}'}: {self.text}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"value": self.value, "inside": list(self.inside), "step": self.step, "difference": self.text}


@dataclass(frozen=True)
class _Place:
    """A value of a model: where it is made."""

    name: str
    inside: tuple[str, ...]
    looped: bool


def first_divergence(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array], numerics: Numerics
) -> Divergence | None:
    """The first value that both models make and that differs by more than `numerics` allows.

    The order is that of `before`; what a loop makes comes before its results, step after step.

    Returns:
        None if there is no such value, or the values cannot be brought out.
    """
    sides = [inlined(model) for model in (before, after)]
    made = [names_by_alias(model) for model in sides]
    pairs = [(place, _matching(place, *made)) for place in _places(sides[0].graph)]
    common = [(place, names) for place, names in pairs if names]
    values = values_of(sides[0], [p.name for p, _ in common], feeds)
    other = values_of(sides[1], [n for _, names in common for n in names], feeds)
    failing: list[tuple[_Place, Steps, str]] = []
    for place, names in common:
        if place.name not in values or any(n not in other for n in names):
            continue
        exact = names == [place.name]
        steps = values[place.name]
        others = other[names[0]] if exact or len(names) == 1 else [o for n in names for o in other[n]]
        found = _difference(steps, others, numerics, exact)
        if found is not None:
            failing.append((place, *found))
            if not place.looped:
                break
    if not failing:
        return None
    # Of one loop, the first iteration at which anything differs; of loops inside it, again.
    first = failing[0][0].inside[:1]
    there = [f for f in failing if f[0].inside[:1] == first]
    if first and first[0].startswith(_LOOPS):
        least = min(f[1][:1] for f in there)
        there = [f for f in there if f[1][:1] == least]
    same = [f for f in there if f[0].inside == there[0][0].inside]
    place, steps_there, text = min(same, key=lambda f: f[1])
    return Divergence(place.name, place.inside, steps_there[-1] if steps_there else None, text)


def _difference(before: Series, after: Series, numerics: Numerics, exact: bool) -> tuple[Steps, str] | None:
    """The first step at which two values differ, and how; None if they do not, or cannot be compared."""
    if len(before) != len(after):
        return ((before or after)[-1][0], f"{len(before)} steps became {len(after)}") if exact else None
    pairs = [(a, b) for (_, a), (_, b) in zip(before, after, strict=True)]
    other = any(a.shape != b.shape or a.dtype != b.dtype for a, b in pairs) or _in_other_units(pairs)
    if other and not exact:
        return None
    for (steps, _), (a, b) in zip(before, pairs, strict=True):
        verdict = numerics.check(a, b)
        if not verdict.ok:
            return steps, verdict.text
    return None


def _in_other_units(pairs: Sequence[tuple[Array, Array]]) -> bool:
    """Whether the second values are the first ones in other units, that is times a number far from one; or codes."""
    a, b = (np.concatenate([np.ravel(p[k]) for p in pairs]) if pairs else np.zeros(0) for k in (0, 1))
    if a.dtype.kind != "f" or a.size < 3:
        return a.dtype.kind != "f"
    a, b = a.astype(np.float64), b.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or not np.ptp(a):
        return False
    factor, offset = np.polyfit(a, b, 1)
    far = not 1.0 / OTHER_UNITS < abs(factor) < OTHER_UNITS
    return bool(far and sqnr_db(b, factor * a + offset) > OTHER_UNITS_DB)


def names_by_alias(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Names of values by their aliases, in the order of steps."""
    found: dict[str, list[tuple[int, str]]] = {}
    for place in _places(model.graph):
        short, step = alias(place.name)
        found.setdefault(short, []).append((step, place.name))
    return {short: [n for _, n in sorted(names, key=lambda p: p[0])] for short, names in found.items()}


def _matching(place: _Place, before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> list[str]:
    """The names in the other model that stand for a value: itself, the only one of its alias, or one for each step."""
    short = alias(place.name)[0]
    names = after.get(short, [])
    if place.name in names:
        return [place.name]
    steps = [alias(n)[1] for n in names]
    if len(before[short]) > 1 or len(set(steps)) < len(steps):
        return []
    return names if len(names) == 1 or steps == list(range(len(names))) else []


def _places(graph: onnx.GraphProto, inside: tuple[str, ...] = (), looped: bool = False) -> Iterator[_Place]:
    """All values that nodes make, those of a subgraph before the results of its node."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                owner = f"{node.op_type} {next(filter(None, node.output), node.name)!r}"
                yield from _places(attribute.g, (*inside, owner), looped or node.op_type in _LOOPS)
        for name in node.output:
            if name:
                yield _Place(name, inside, looped)


def values_of(
    model: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, Array], known: Types | None = None
) -> dict[str, Series]:
    """The values of each name, one for each step; what cannot be brought out is missing.

    Args:
        model: The model.
        names: Of values.
        feeds: What it is run on.
        known: What `types_of` says of the model and feeds of these sizes.
    """
    known = types_of(model, feeds) if known is None else known
    wanted = []
    levels = {place.name: place for place in _places(model.graph)}
    for name in dict.fromkeys(names):
        place = levels[name]
        if not place.inside:
            wanted.append(Observed("", "", name, False, 1, 0))
        elif name in known:
            kind, rank = known[name]
            wanted.append(Observed("", "", name, place.looped, rank + place.looped, 0, kind))
    found: dict[str, Series] = {}
    work = [wanted]
    while work:
        group = work.pop()
        try:
            found.update(_run(model, group, levels, feeds))
        except (CompileError, NotObservableError):
            # One of them cannot be brought out: try in halves.
            if len(group) > 1:
                work += [group[: len(group) // 2], group[len(group) // 2 :]]
    return found


def _run(
    model: onnx.ModelProto, group: Sequence[Observed], levels: Mapping[str, _Place], feeds: Mapping[str, Array]
) -> dict[str, Series]:
    if not group:
        return {}
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    outputs = with_outputs(proto, group, [])
    session = make_session(proto, optimize=False)
    results = run_session(session, feeds, sequences=True)
    return {v.value: _series(results[outputs[v.value]], v, levels[v.value]) for v in group}


def _series(held: Any, value: Observed, place: _Place) -> Series:
    if not isinstance(held, list):  # a tensor, or what Scans made of its steps
        array = np.asarray(held)
        return [((t,), a) for t, a in enumerate(array)] if place.looped else [((), array)]
    arrays = [np.asarray(h) for h in held]
    loops = any(owner.startswith("Loop") for owner in place.inside)
    outer: list[Steps] = [(k,) if loops else () for k in range(len(arrays))]
    if value.step and any(a.ndim == value.rank for a in arrays):  # of a Scan in a Loop or a branch: all its steps
        return [((*o, t), a) for o, whole in zip(outer, arrays, strict=True) if whole.ndim for t, a in enumerate(whole)]
    return list(zip(outer, arrays, strict=True))


def types_of(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Types:
    """Element type and rank of values, where inference knows them."""
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    large = [t for t in sized.graph.initializer if math.prod(t.dims) > _SMALL]  # their shapes are enough
    sized.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in large)
    small = [t for t in sized.graph.initializer if math.prod(t.dims) <= _SMALL]
    del sized.graph.initializer[:]
    sized.graph.initializer.extend(small)
    for value in sized.graph.input:
        if value.name in feeds:
            for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=False):
                dim.dim_value = size
    known: dict[str, onnx.TypeProto] = {}
    _infer(sized, known)
    return {
        name: (kind.tensor_type.elem_type, len(kind.tensor_type.shape.dim))
        for name, kind in known.items()
        if kind.tensor_type.elem_type and kind.tensor_type.HasField("shape")
    }


def _infer(model: onnx.ModelProto, known: dict[str, onnx.TypeProto]) -> None:
    """Notes the types of all values of a graph and its subgraphs, which onnx does not infer with it."""
    try:
        graph = infer_shapes(model).graph
    except INFERENCE_ERRORS:
        graph = model.graph
    for tensor in graph.initializer:
        known[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    stored = {t.name: t for t in graph.initializer if math.prod(t.dims) <= _SMALL}
    known.update((v.name, v.type) for v in [*graph.input, *graph.value_info, *graph.output] if v.HasField("type"))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                body = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
                body.graph.CopyFrom(attribute.g)
                for value, kind in zip(body.graph.input, _entering(node, known), strict=False):
                    if kind is not None:
                        value.type.CopyFrom(kind)
                for output in body.graph.output:
                    output.type.tensor_type.ClearField("shape")
                outer = sorted(captured(attribute.g) & known.keys())
                body.graph.initializer.extend(stored[n] for n in outer if n in stored)
                body.graph.input.extend(helper.make_value_info(n, known[n]) for n in outer if n not in stored)
                _infer(body, known)


def _entering(node: onnx.NodeProto, known: Mapping[str, onnx.TypeProto]) -> Iterator[onnx.TypeProto | None]:
    """The types of what the body of a Scan or Loop takes."""
    if node.op_type == "Loop":
        yield helper.make_tensor_type_proto(onnx.TensorProto.INT64, [])
        yield helper.make_tensor_type_proto(onnx.TensorProto.BOOL, [])
        for name in node.input[2:]:
            kind = onnx.TypeProto()
            kind.CopyFrom(known.get(name, kind))
            for dim in kind.tensor_type.shape.dim:  # of the first iteration alone
                dim.Clear()
            yield kind if name in known else None
    if node.op_type != "Scan":
        return
    numbers = {a.name: a for a in node.attribute}
    count = numbers["num_scan_inputs"].i
    axes = list(numbers["scan_input_axes"].ints) if "scan_input_axes" in numbers else [0] * count
    for k, name in enumerate(node.input, count - len(node.input)):
        kind = onnx.TypeProto()
        kind.CopyFrom(known.get(name, kind))
        if k >= 0 and kind.tensor_type.shape.dim:
            del kind.tensor_type.shape.dim[axes[k]]
        yield kind if name in known else None


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its functions: a value of a function is called by the calling node's name, `/`, and its own."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.functions[:]
    del result.graph.node[:]
    result.graph.node.extend(_expanded(model.graph.node, functions))
    versions = {o.domain: o.version for o in result.opset_import}
    for function in model.functions:
        for opset in function.opset_import:
            if opset.domain not in versions:
                versions[opset.domain] = opset.version
                result.opset_import.append(opset)
    return result


def _expanded(
    nodes: Iterable[onnx.NodeProto], functions: Mapping[tuple[str, str, str], onnx.FunctionProto]
) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        function = functions.get((node.domain, node.op_type, node.overload))
        if function is None:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for attribute in copy.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    inner = list(_expanded(attribute.g.node, functions))
                    del attribute.g.node[:]
                    attribute.g.node.extend(inner)
            yield copy
            continue
        prefix = node.name or (node.output[0] if node.output else node.op_type)
        actual = dict(zip(function.input, [*node.input, *[""] * len(function.input)], strict=False))
        results = {inner: outer for inner, outer in zip(function.output, node.output, strict=False) if outer}
        attributes = {a.name: a for a in [*function.attribute_proto, *node.attribute]}
        body = [_renamed(n, {**actual, **results}, prefix, attributes) for n in function.node]
        yield from _expanded(body, functions)


def _renamed(
    node: onnx.NodeProto, names: Mapping[str, str], prefix: str, attributes: Mapping[str, AttributeProto]
) -> onnx.NodeProto:
    """A node of a function, as it stands at the call."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)

    def called(name: str) -> str:
        return names.get(name, f"{prefix}/{name}") if name else ""

    copy.input[:] = [called(n) for n in node.input]
    copy.output[:] = [called(n) for n in node.output]
    copy.name = f"{prefix}/{node.name}" if node.name else ""
    del copy.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in attributes:
                given = copy.attribute.add()
                given.CopyFrom(attributes[attribute.ref_attr_name])
                given.name = attribute.name
            continue
        held = copy.attribute.add()
        held.CopyFrom(attribute)
        if held.type == AttributeProto.GRAPH:
            inner = [_renamed(n, names, prefix, attributes) for n in held.g.node]
            del held.g.node[:]
            held.g.node.extend(inner)
            for value in [*held.g.input, *held.g.output, *held.g.value_info, *held.g.initializer]:
                value.name = called(value.name)
    return copy
