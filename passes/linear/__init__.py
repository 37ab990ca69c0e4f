"""Linear layers with constant weights in integer arithmetic, each as one node backed by a function.

A matmul enters as `MatMul`, `Gemm` or `MatMul` and `Add` and leaves as `ai.rnnqc::QuantLinear` (docs/quant_linear.md).
`quantize_linear.py` is the pass, `linear_function.py` writes the function.
"""
