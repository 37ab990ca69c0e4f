"""Models as PyTorch's exporters write them; without PyTorch, tests that need one are skipped with a message."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence
from typing import Any

import onnx
import pytest


def needed(what: str, dynamo: bool = False) -> Any:
    """The module torch; skips the test, saying that `what` is not tested, without torch or its exporter."""
    torch = pytest.importorskip("torch", reason=f"needs torch: {what} NOT tested")
    if dynamo:
        pytest.importorskip("onnxscript", reason=f"needs onnxscript: {what} NOT tested")
    return torch


def exported(module: Any, arguments: Sequence[Any], dynamo: bool, **options: Any) -> onnx.ModelProto:
    """The result of `torch.onnx.export` for a module; the exporters' messages are hidden."""
    import torch

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            torch.onnx.export(module.eval(), tuple(arguments), buffer, dynamo=dynamo, verbose=False, **options)
        finally:
            logging.disable(logging.NOTSET)
    return onnx.load_from_string(buffer.getvalue())
