"""Formats: the integers that represent the real values of a tensor, and the search for their scales.

`format` is the one type of a format, with quantize, dequantize, limits and the parameters of ONNX operators; `rounding`
is the one definition of rounding. `point_format` says how a cell uses a format at a quantization point.
`format_request` holds the format that a recipe requests before a range is known; `weight_scales`, `fix_position` and
`shift_limits` find scales, `scales` computes with them. `weights`, `compensation` and `packing` quantize and store
weight matrices. `qonnx` has the Quant nodes of QONNX and Brevitas, which add the zero point before rounding.
`histogram` and `percentile` count values.
"""
