"""Fourth stage, first part: every quantization point gets its number format.

Enters: a recipe, the weights, statistics of a calibration, overrides. Leaves: for each point of a cell a scale, zero
point, limits and rounding (`point_format`), and for W, R and B their quantized values (`quantized_parameters`). Formats
that depend on others come last (`derived_formats`). This stage changes no graph.
"""
