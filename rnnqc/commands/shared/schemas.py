"""JSON schemas of the commands' --json output, derived from the types of the results."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from rnnqc.commands.shared.arguments import JSON_VERSION
from rnnqc.measure.verdict import LEVELS

Schema = dict[str, Any]
NUMBER: Schema = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
"""A number; JSON has no infinity and no NaN, which are text."""
TEXT, WHOLE, TRUTH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
ANY: Schema = {}
NULL: Schema = {"type": "null"}
_PLAIN: Mapping[Any, Schema] = {str: TEXT, int: WHOLE, float: NUMBER, bool: TRUTH, Any: ANY, type(None): NULL}


def schema_of(kind: Any) -> Schema:
    """Returns the schema of a type: numbers, text, lists, tuples, mappings, unions and dataclasses."""
    kind = getattr(kind, "__supertype__", kind)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return fixed({f.name: schema_of(hints[f.name]) for f in dataclasses.fields(kind)})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(a) for a in arguments]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return by_name(schema_of(arguments[1]))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [schema_of(a) for a in arguments], "items": False}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return array(schema_of(arguments[0]))
    raise TypeError(f"no schema of {kind}")


def fixed(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """Returns the schema of an object with these keys and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def array(items: Schema) -> Schema:
    """Returns the schema of a list."""
    return {"type": "array", "items": items}


def by_name(values: Schema) -> Schema:
    """Returns the schema of an object with any keys."""
    return {"type": "object", "additionalProperties": values}


def maybe(schema: Schema) -> Schema:
    """Returns the schema that also allows null."""
    return {"anyOf": [schema, NULL]}


def _properties(kind: Any, *without: str) -> dict[str, Schema]:
    return {k: v for k, v in schema_of(kind)["properties"].items() if k not in without}


def _lower() -> Schema:
    from rnnqc.lowering.reports.report import Report

    return fixed({**_properties(Report, "seconds"), "evidence": _report()}, optional=("evidence",))


def _report() -> Schema:
    from rnnqc.reporting.evidence import Evidence

    return fixed({**_properties(Evidence), "verdict": maybe(_verdict())})


def _verdict() -> Schema:
    return fixed({"level": {"enum": list(LEVELS)}, "figure": TEXT, "text": TEXT})


def _bench() -> Schema:
    from rnnqc.timing import Measurement

    return fixed({"model": TEXT, "against": maybe(TEXT), **_properties(Measurement)})


def _evaluate() -> Schema:
    texts = {
        "model": TEXT,
        "against": maybe(TEXT),
        "metric": TEXT,
        "output": maybe(TEXT),
        "labels": maybe(TEXT),
        "failures": array(TEXT),
    }
    return fixed({**texts, "calls": WHOLE, "value": NUMBER, "reference": maybe(NUMBER), "ok": TRUTH})


def _tune() -> Schema:
    from rnnqc.search.greedy import Measured

    measured = schema_of(Measured)
    point = fixed({"cost": WHOLE, "quality": NUMBER, "call_seconds": NUMBER, "settings": by_name(by_name(ANY))})
    return fixed(
        {
            "model": TEXT, "recipe": TEXT, "start": measured, "result": measured, "reached": TRUTH, "tried": WHOLE,
            "ended_early": TRUTH, "unseen_layers": array(TEXT), "weight_bytes": schema_of(tuple[int, int]),
            "call_seconds": schema_of(tuple[float, float]), "float_quality": NUMBER,
            "settings": by_name(by_name(ANY)), "frontier": array(point),
        }
    )  # fmt: skip


def _verify() -> Schema:
    from rnnqc.measure.differences import OutputComparison, StepComparison

    steps = fixed({**_properties(StepComparison), "count": WHOLE, "worst": WHOLE, "growing": TRUTH})
    output = fixed({**_properties(OutputComparison), "steps": maybe(steps), "level": TEXT})
    native = fixed({"name": TEXT, "same_bits": TRUTH, "equal": NUMBER})
    optimized = fixed({"name": TEXT, "same_bits": TRUTH, "max_abs": NUMBER})
    return fixed(
        {
            "feeds": WHOLE, "generated": TRUTH, "states": array(TEXT), "outputs": array(output),
            "levels": by_name(by_name(NUMBER)), "native": maybe(array(native)),
            "native_optimized": maybe(array(optimized)), "min_sqnr_db": maybe(NUMBER),
            "thresholds": by_name(by_name(NUMBER)), "failures": array(TEXT), "ok": TRUTH, "verdict": maybe(_verdict()),
        }
    )  # fmt: skip


def _inspect() -> Schema:
    from rnnqc.data.declared_shapes import Declared
    from rnnqc.lowering.reports.rest_report import RestReport
    from rnnqc.passes.analysis.elementwise_recurrences import ElementwiseRecurrence

    why, declared = {"reason": TEXT, "found": TEXT, "action": TEXT}, schema_of(Declared)
    node = fixed(
        {
            "node": TEXT, "op": TEXT, "attributes": by_name(ANY), "weight_bytes": WHOLE,
            "lowering": {"enum": ["lowered", "float", "quantized", "done"]}, "form": TEXT, "cells": array(TEXT), **why,
            "notes": array(fixed(why)),
        }
    )  # fmt: skip
    return fixed(
        {
            "model": TEXT, "opset": WHOLE, "inputs": array(declared), "outputs": array(declared),
            "nodes": array(node), "independent_outputs": array(TEXT),
            "training_dropouts": array(TEXT), "rest": fixed({**_properties(RestReport), "file_bytes": WHOLE}),
            "slow_stock": TEXT, "points": by_name(by_name(ANY)), "deciding_inputs": by_name(array(WHOLE)),
            "likely_states": by_name(TEXT), "quantized_outputs": by_name(by_name(ANY)),
            "elementwise_recurrences": array(fixed({**_properties(ElementwiseRecurrence), "reason": TEXT})),
        }
    )  # fmt: skip


SCHEMAS = {
    "inspect": _inspect,
    "lower": _lower,
    "verify": _verify,
    "evaluate": _evaluate,
    "bench": _bench,
    "tune": _tune,
    "report": _report,
}
"""The schemas by command."""


def schema(command: str) -> Schema:
    """Returns the JSON schema (2020-12) of a command's --json output."""
    made = SCHEMAS[command]()
    made["properties"] = {"version": {"const": JSON_VERSION}, **made["properties"]}
    made["required"] = ["version", *made["required"]]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"rnnqc {command} --json"}
    return {**head, **made}
