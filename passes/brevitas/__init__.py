"""Brevitas' QuantLSTMCell and QONNX quantizers, read and written.

ReadQuantLstmCell turns Brevitas' cells into quantized cells with their own formats, LowerQuantOperators writes QONNX
quantizers in standard operators, WriteQonnx writes quantized cells as Brevitas exports them. The contract of the
format is `rnnqc.passes.formats.brevitas_contract`.
"""
