"""Reads the operators of Brevitas and QONNX: `Quant` and its variants, and `QuantLSTMCell` with its 48 inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import make_activation
from rnnqc.errors import NotHandled
from rnnqc.formats.qonnx import DOMAINS, ROUNDINGS, FloatArray, QonnxQuantizer
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Node, Value, attribute, constant_array, input_or_none, shape_of

CELL_OP = "QuantLSTMCell"
QUANT_OPS = ("Quant", "IntQuant", "BipolarQuant")
TRUNC_OP = "Trunc"
QUANTIZERS = (
    *("output", "cell_state", "input_acc", "forget_acc", "cell_acc", "output_acc"),
    *("input_sigmoid", "forget_sigmoid", "cell_tanh", "output_sigmoid", "hidden_state_tanh"),
)
"""In the order of the inputs from number 15 on: scale, zero point and bit width of each."""
GATES = ("input", "output", "forget", "cell")
"""In ONNX order, as rnnqc has them; the node's inputs are in the order input, forget, cell, output."""
NODE_GATES = ("input", "forget", "cell", "output")
_X, _HIDDEN, _CELL, _W, _R, _BIAS, _FIRST = 0, 1, 2, 3, 7, 11, 15
INPUTS = _FIRST + 3 * len(QUANTIZERS)
ACTIVATIONS = (make_activation("Sigmoid"), make_activation("Tanh"), make_activation("Tanh"))
WIDEST_WEIGHT = 16
_CELL_ATTRIBUTES = {
    *("batch_first", "reverse_input", "cifg"),
    *(f"{q}_{end}" for q in QUANTIZERS for end in ("signed", "narrow", "narrow_range", "rounding_mode")),
}
_EXPORT = "export the model again with brevitas.export.export_qonnx and constant parameters"


@dataclass(frozen=True)
class Parameter:
    """A weight matrix or bias.

    Attributes:
        values: float32, rounded by the quantizer if there is one.
        quantizer: Its quantizer; None for raw values.
        codes: Its quantized values; None for raw values.
        raw: The input of the quantizer; None for raw values.
    """

    values: FloatArray
    quantizer: QonnxQuantizer | None = None
    codes: npt.NDArray[np.int64] | None = None
    raw: FloatArray | None = None


@dataclass(frozen=True)
class QuantLstm:
    """A `QuantLSTMCell` node of Brevitas with all properties explicit.

    Attributes:
        hidden_size: H.
        input_size: I.
        batch_first: Whether X and outputs are `[B,T,...]`.
        reverse: Whether time is reversed.
        cifg: Whether f = Q(1) - i.
        quantizers: By name, see `QUANTIZERS`.
        W: `[H,I]` for each gate in `GATES`.
        R: `[H,H]` for each gate.
        bias: `[H]` for each gate.
        x: Input.
        initial_h: Input.
        initial_c: Input.
    """

    hidden_size: int
    input_size: int
    batch_first: bool
    reverse: bool
    cifg: bool
    quantizers: dict[str, QonnxQuantizer]
    W: list[Parameter]
    R: list[Parameter]
    bias: list[FloatArray]
    x: Value
    initial_h: Value
    initial_c: Value


def is_quant_lstm(node: Node) -> bool:
    """Whether the node is a cell of Brevitas."""
    return node.op == CELL_OP and node.domain in DOMAINS


def is_quant(node: Node) -> bool:
    """Whether the node is an integer quantizer."""
    return node.op in QUANT_OPS and node.domain in DOMAINS


def is_trunc(node: Node) -> bool:
    """Whether the node truncates low bits of quantized values."""
    return node.op == TRUNC_OP and node.domain in DOMAINS


def rounding_of(node: Node, default: str) -> Rounding:
    """Returns the rounding mode of a Quant or Trunc node.

    Raises:
        NotHandled: It is unknown.
    """
    return _rounding(node.op, attribute(node, "rounding_mode", default))


def read_quant(node: Node) -> QonnxQuantizer:
    """Reads a Quant, IntQuant or BipolarQuant node as a quantizer.

    Raises:
        NotHandled: Its parameters are not constant, or of an unknown kind.
    """
    if node.op == "BipolarQuant":
        zero = np.zeros((), np.float32)
        return QonnxQuantizer(_constant(node, 1, "scale"), zero, 1, True, False, Rounding.HALF_EVEN)
    scale, zero_point, bits = (_constant(node, k, n) for k, n in ((1, "scale"), (2, "zeropt"), (3, "bitwidth")))
    mode = attribute(node, "rounding_mode", "ROUND")
    signed, narrow = _flag(node, "signed", default=True), _flag(node, "narrow", default=False)
    return _quantizer(node.op, scale, zero_point, bits, signed, narrow, mode)


def read_quant_lstm(node: Node) -> QuantLstm:
    """Reads all properties of the node.

    Raises:
        NotHandled: They have an unknown form, or parameters are not constant.
    """
    if len(node.inputs) != INPUTS:
        raise NotHandled("it is no cell as Brevitas exports it.", f"{len(node.inputs)} inputs, not {INPUTS}", _EXPORT)
    unknown = sorted(set(node.attrs) - _CELL_ATTRIBUTES)
    if unknown:
        action = "export the model with a version of Brevitas that rnnqc knows; what the attribute changes is not known"
        raise NotHandled("it has an attribute that no version of Brevitas writes.", ", ".join(unknown), action)
    quantizers = {name: _cell_quantizer(node, k, name) for k, name in enumerate(QUANTIZERS)}
    batch_first, reverse, cifg = (_flag(node, name) for name in ("batch_first", "reverse_input", "cifg"))
    order = [NODE_GATES.index("input" if cifg and g == "forget" else g) for g in GATES]
    w, r = ([_parameter(node, first + k, f"{GATES[n]} gate") for n, k in enumerate(order)] for first in (_W, _R))
    sequence = shape_of(node.inputs[_X])
    if sequence is not None and len(sequence) != 3:
        raise NotHandled("its sequence has not three axes.", f"shape {sequence}", _EXPORT)
    sizes = [p.values.shape for p in (*w, *r)]
    if any(len(size) != 2 for size in sizes):
        raise NotHandled("its weights are no matrices.", f"shapes {sizes}", _EXPORT)
    hidden = r[0].values.shape[0]
    expected = [(hidden, w[0].values.shape[-1])] * len(w) + [(hidden, hidden)] * len(r)
    if sizes != expected:
        raise NotHandled("its weights do not fit together.", f"shapes {sizes}", _EXPORT)
    for index, name in ((_HIDDEN, "hidden"), (_CELL, "cell")):
        _check_state(node.inputs[index], name, hidden)
    bias: list[FloatArray] = []
    for n, k in enumerate(order):
        values = _parameter(node, _BIAS + k, f"bias of the {GATES[n]} gate").values
        if values.shape not in ((), (1,), (hidden,)):
            raise NotHandled("a bias does not fit.", f"shape {list(values.shape)}, H = {hidden}", _EXPORT)
        bias.append(np.broadcast_to(values, (hidden,)).astype(np.float32))
    return QuantLstm(
        hidden,
        w[0].values.shape[1],
        batch_first,
        reverse,
        cifg,
        quantizers,
        w,
        r,
        bias,
        node.inputs[_X],
        node.inputs[_HIDDEN],
        node.inputs[_CELL],
    )


def _check_state(value: Value, name: str, hidden: int) -> None:
    shape = shape_of(value)
    action = "pass states [B,H], one for each row of the input"
    if shape is not None and len(shape) != 2:
        raise NotHandled(f"its initial {name} state has not two axes.", f"shape {shape}", action)
    if shape is not None and isinstance(shape[1], int) and shape[1] != hidden:
        raise NotHandled(f"its initial {name} state does not fit.", f"shape {shape}, H = {hidden}", action)


def _cell_quantizer(node: Node, index: int, name: str) -> QonnxQuantizer:
    at = _FIRST + 3 * index
    scale, zero_point, bits = (
        _constant(node, at + k, f"{name} {n}") for k, n in enumerate(("scale", "zero_point", "bit_width"))
    )
    # Every version of Brevitas writes output_sigmoid_narrow_range.
    narrow = _flag(node, f"{name}_narrow", f"{name}_narrow_range")
    signed = _flag(node, f"{name}_signed")
    mode = attribute(node, f"{name}_rounding_mode", None)
    if mode is None:
        raise _lacks(f"{name}_rounding_mode")
    return _quantizer(name, scale, zero_point, bits, signed, narrow, mode)


def _flag(node: Node, *names: str, default: bool | None = None) -> bool:
    """Returns a boolean attribute, by any of its names.

    Raises:
        NotHandled: It is not 0 or 1; or it is missing and has no default, so that either is possible.
    """
    found = [value for name in names if (value := attribute(node, name, None)) is not None]
    if not found and default is not None:
        return default
    if not found:
        raise _lacks(names[0])
    if isinstance(found[0], bool) or found[0] not in (0, 1) or not isinstance(found[0], int):
        raise NotHandled(f"its attribute {names[0]} is neither 0 nor 1.", f"{found[0]!r}", _EXPORT)
    return bool(found[0])


def _lacks(name: str) -> NotHandled:
    return NotHandled(
        f"it lacks the attribute {name}.", "a node that Brevitas did not write, or that was edited", _EXPORT
    )


def _rounding(name: str, mode: str | bytes) -> Rounding:
    text = str(mode.decode() if isinstance(mode, bytes) else mode).upper()
    if text not in ROUNDINGS:
        raise NotHandled(f"{name} rounds in an unknown way.", f"rounding_mode {text!r}", f"use {', '.join(ROUNDINGS)}")
    return ROUNDINGS[text]


def _quantizer(
    name: str,
    scale: FloatArray,
    zero_point: FloatArray,
    bits: FloatArray,
    signed: bool,
    narrow: bool,
    mode: str | bytes,
) -> QonnxQuantizer:
    rounding = _rounding(name, mode)
    if bits.size != 1 or not 1 <= float(bits.ravel()[0]) <= 32 or float(bits.ravel()[0]) % 1:
        raise NotHandled(f"{name} has no bit width.", f"bit width {bits.tolist()}", "use 1 to 32 bits")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise NotHandled(f"{name} has a scale that is none.", f"scale {scale.ravel()[:4].tolist()}", "train the scales")
    if not np.isfinite(zero_point).all():
        raise NotHandled(f"{name} has a zero point that is none.", f"{zero_point.ravel()[:4].tolist()}", _EXPORT)
    return QonnxQuantizer(scale, zero_point, int(bits.ravel()[0]), signed, narrow, rounding)


def check_zero_point(name: str, quantizer: QonnxQuantizer) -> None:
    """Checks that the zero point is an integer of the quantizer's range, for integer arithmetic.

    Raises:
        NotHandled: It is not.
    """
    zero_point = quantizer.zero_point
    if quantizer.bipolar:
        sound = not zero_point.any()
    else:
        inside = (zero_point >= quantizer.minimum) & (zero_point <= quantizer.maximum)
        sound = bool((inside & (zero_point % 1 == 0)).all())
    if not sound:
        found = f"zero point {zero_point.ravel()[:4].tolist()}, codes {quantizer.minimum} .. {quantizer.maximum}"
        raise NotHandled(f"{name} has a zero point outside its range.", found, "round the zero points")


def _parameter(node: Node, index: int, name: str) -> Parameter:
    value = node.inputs[index]
    array = constant_array(value)
    if array is not None:
        return Parameter(check_finite(name, np.asarray(array, np.float32)))
    producer = value.inputs[0] if len(value.inputs) == 1 else None
    if producer is None or not is_quant(producer):
        made = "a graph input" if producer is None else f"the output of {producer.op}"
        raise NotHandled(f"the {name} is not constant.", made, _EXPORT)
    quantizer = read_quant(producer)
    raw = check_finite(name, _constant(producer, 0, name))
    return Parameter(quantizer(raw), quantizer, quantizer.codes(raw), raw)


def check_finite(name: str, array: FloatArray) -> FloatArray:
    """Returns the array if every value can be quantized.

    Raises:
        NotHandled: One is NaN or infinite.
    """
    odd = array[~np.isfinite(array)]
    if odd.size:
        found = f"{odd.size} of {array.size} values, the first {odd[0]}"
        raise NotHandled(f"the {name} has values that are NaN or infinite.", found, "train it again, or mend the file")
    return array


def _constant(node: Node, index: int, name: str) -> FloatArray:
    value = input_or_none(node, index)
    array = constant_array(value) if value is not None else None
    if array is None:
        found = "nothing" if value is None else f"{value.name!r}"
        raise NotHandled(f"{name} is not constant.", found, _EXPORT)
    return np.asarray(array, np.float32)
