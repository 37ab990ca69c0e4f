"""Options of onnxruntime's sessions."""

from __future__ import annotations

import onnxruntime as ort


def exact_options() -> ort.SessionOptions:
    """Returns session options with which matmuls of dequantized values are exact on every processor.

    By default onnxruntime turns DequantizeLinear and MatMul into an integer matmul, and on x86 without VNNI it adds
    pairs of products of uint8 and int8 in a saturating int16 (onnxruntime_session_options_config_keys.h; its option
    `session.x64quantprecision` refuses models whose weights share a zero point).
    """
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return options


def quiet_options(*, optimize: bool = True) -> ort.SessionOptions:
    """Returns `exact_options` with a log of fatal errors only.

    Args:
        optimize: Whether onnxruntime may optimize the graph.
    """
    options = exact_options()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options
