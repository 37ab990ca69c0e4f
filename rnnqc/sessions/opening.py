"""Opens models in onnxruntime with the native library. Needs neither onnx nor the compiler."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import onnxruntime as ort

from rnnqc import runtime_ops
from rnnqc.errors import CompileError
from rnnqc.evaluation.session_options import exact_options


class Opener:
    """Opens models with the caller's options, and optionally with the library: all of it, or some operators."""

    def __init__(
        self,
        given: ort.SessionOptions | None,
        native: bool,
        arguments: Mapping[str, Any],
        operators: Collection[str] | None,
    ) -> None:
        self.given, self.native = given, native
        self.arguments = {"providers": ["CPUExecutionProvider"], **arguments}
        self.options = given if given is not None else exact_options()
        if native:
            self.options = _copied(given) if given is not None else self.options
            _register(self.options, operators)

    def __call__(self, source: str | bytes) -> ort.InferenceSession:
        """Makes a session of a model's bytes or file; raises onnxruntime's errors."""
        try:
            return ort.InferenceSession(source, self.options, **self.arguments)
        except Exception as error:
            if not self.native or self.given is None or _UNKNOWN not in str(error):
                raise
            try:
                ort.InferenceSession(source, self.given, **self.arguments)
            except Exception:
                raise error from None
            _register(self.given)  # only these options have another library, which the copy lacks
            return ort.InferenceSession(source, self.given, **self.arguments)


_UNKNOWN = "is not a registered function/op"
_FILES: dict[str, Any] = {"enable_profiling": False, "optimized_model_filepath": ""}
"""Options that let a session write a file, with values that prevent it."""
_SMALLEST = (
    b'\x08\x08:9\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x03any'
    b"Z\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01"
    b"B\x04\n\x00\x10\x11"
)
"""The bytes of a model `any (float[1] x) => (float[1] y) { y = Identity (x) }`, of IR version 8 and operator set 17."""


def _register(options: ort.SessionOptions, operators: Collection[str] | None = None) -> None:
    try:
        runtime_ops.register(options, operators)
    except (OSError, RuntimeError) as error:
        raise CompileError(
            f"the native library cannot be used: {str(error).rstrip('.')}.",
            supported="sessions without it (run, evaluate and dump: --stock; Python: native=False); bench needs it",
            action="`rnnqc doctor` says what is there",
        ) from error


def _copied(options: ort.SessionOptions) -> ort.SessionOptions:
    """Copies everything except operator libraries: makes a session and reads its options."""
    held = {name: getattr(options, name) for name in _FILES}
    try:
        for name, nothing in _FILES.items():
            setattr(options, name, nothing)
        probe = ort.InferenceSession(_SMALLEST, options, providers=["CPUExecutionProvider"])
    finally:
        for name, value_held in held.items():
            setattr(options, name, value_held)
    copy: ort.SessionOptions = probe.get_session_options()
    for name, value_held in held.items():
        setattr(copy, name, value_held)
    return copy
