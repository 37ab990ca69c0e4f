"""Mutations of protobuf messages that keep them parseable: fields are changed, removed, doubled and exchanged."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 8, 13, 16, 64, 255, 10**4, 10**6, 2**31 - 1, 2**40, 2**63 - 1)
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 3.4e38, float("inf"), float("-inf"), float("nan"), 127.5)
_TEXTS = (
    "", "X", "Y", "W", "R", "T", "B", "LSTM", "GRU", "RNN", "Scan", "Loop", "If", "Constant", "Identity",
    "MatMul", "Squeeze", "Transpose", "Reshape", "Concat", "Gather", "Slice", "Split", "ConstantOfShape",
    "Expand", "Tile", "Range", "QuantizeLinear", "DequantizeLinear", "Quant", "QuantLSTMCell", "QuantGRUCell",
    "ai.onnx", "ai.rnnqc", "com.microsoft", "onnx.brevitas", "qonnx.custom_op.general", "hidden_size",
    "direction", "bidirectional", "reverse", "activations", "activation_alpha", "clip", "layout",
    "linear_before_reset", "input_forget", "Affine", "body", "then_branch", "value", "axis", "axes", "perm",
    "../x", "a/b", "\n", "{0}%s", "[*]", "rnnqc.cells", "rnnqc.provenance", "location", "offset",
)  # fmt: skip
_INTEGER_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: 32,
    FieldDescriptor.CPPTYPE_INT64: 64,
    FieldDescriptor.CPPTYPE_UINT32: -32,
    FieldDescriptor.CPPTYPE_UINT64: -64,
}
_FLOAT_TYPES = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)
MOST_SITES = 20000

Bytes = Callable[[bytes], bytes]


def messages_in(root: Message) -> Iterator[Message]:
    """`root` and every message in it, outer ones first."""
    pending = [root]
    for _ in range(MOST_SITES):
        if not pending:
            return
        current = pending.pop(0)
        yield current
        for field, value in current.ListFields():
            if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
                pending.extend(value if field.is_repeated else [value])


def mutate(root: Message, rng: random.Random, change_bytes: Bytes, donor: Message | None = None) -> None:
    """Changes one field of `root` or of a message in it; messages to copy come from `donor` or `root`.

    A change that protobuf refuses (a text that is not UTF-8, a message that is too deep) does not happen.
    """
    with contextlib.suppress(ValueError, TypeError, OverflowError, RuntimeError):
        _mutate(root, rng, change_bytes, donor)


def _mutate(root: Message, rng: random.Random, change_bytes: Bytes, donor: Message | None) -> None:
    messages = list(messages_in(root))
    target = rng.choice(messages)
    present = [field for field, _ in target.ListFields()]
    fields = target.DESCRIPTOR.fields
    # Mostly what is there: most of the fields of ONNX are rarely used.
    field = rng.choice(present) if present and rng.random() < 0.85 else rng.choice(list(fields))
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        pool = list(messages_in(donor)) if donor is not None else messages
        _change_messages(target, field, rng, [m for m in pool if m.DESCRIPTOR is field.message_type])
    elif field.is_repeated:
        _change_repeated(getattr(target, field.name), field, rng, change_bytes, messages)
    elif rng.random() < 0.15:
        target.ClearField(field.name)
    else:
        setattr(target, field.name, _scalar(field, getattr(target, field.name), rng, change_bytes, messages))


def _change_messages(target: Message, field: Any, rng: random.Random, pool: list[Message]) -> None:
    if not field.is_repeated:
        if rng.random() < 0.3 or not pool:
            target.ClearField(field.name)
        else:
            getattr(target, field.name).CopyFrom(_copy(rng.choice(pool)))
        return
    held = getattr(target, field.name)
    action = rng.randrange(5)
    if action == 0 and held:
        del held[rng.randrange(len(held))]
    elif action == 1 and pool:
        held.add().CopyFrom(_copy(rng.choice(pool)))
    elif action == 2 and held and pool:
        held[rng.randrange(len(held))].CopyFrom(_copy(rng.choice(pool)))
    elif action == 3 and len(held) > 1:
        order = [_copy(m) for m in held]
        rng.shuffle(order)
        del held[:]
        held.extend(order)
    else:
        held.add()


def _copy(message: Message) -> Message:
    made = type(message)()
    made.CopyFrom(message)
    return made


def _change_repeated(held: Any, field: Any, rng: random.Random, change_bytes: Bytes, messages: list[Message]) -> None:
    action = rng.randrange(4)
    place = rng.randrange(len(held)) if held else 0
    if action == 0 and held:
        del held[place]
    elif action == 1 and len(held) > 1:
        other = rng.randrange(len(held))
        held[place], held[other] = held[other], held[place]
    elif action == 2 and held:
        held[place] = _scalar(field, held[place], rng, change_bytes, messages)
    else:
        held.append(_scalar(field, held[place] if held else field.default_value or None, rng, change_bytes, messages))


def _scalar(field: Any, old: Any, rng: random.Random, change_bytes: Bytes, messages: list[Message]) -> Any:
    kind = field.cpp_type
    if kind in _INTEGER_TYPES:
        return _integer(int(old or 0), _INTEGER_TYPES[kind], rng)
    if kind in _FLOAT_TYPES:
        return rng.choice((*_FLOATS, (old or 0.0) * 2, rng.gauss(0, 1)))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return not old
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice([v.number for v in field.enum_type.values])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return change_bytes(old or b"")
    return _text(rng, messages)


def _integer(old: int, width: int, rng: random.Random) -> int:
    value = rng.choice((old + 1, old - 1, old * 2, old ^ (1 << rng.randrange(16)), rng.choice(_INTEGERS)))
    bits = abs(width)
    value &= 2**bits - 1
    return value - 2**bits if width > 0 and value >= 2 ** (bits - 1) else value


def _text(rng: random.Random, messages: list[Message]) -> str:
    """A text that is somewhere in the model, so that references change; or one that means something."""
    if rng.random() < 0.6:
        for _ in range(8):
            message = rng.choice(messages)
            texts = [
                t
                for f, value in message.ListFields()
                if f.type == FieldDescriptor.TYPE_STRING
                for t in (value if f.is_repeated else [value])
            ]
            if texts:
                return str(rng.choice(texts))
    return rng.choice(_TEXTS)
