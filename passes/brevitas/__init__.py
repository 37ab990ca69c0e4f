"""Reads and writes Brevitas' QuantLSTMCell and QONNX quantizers.

ReadQuantLstmCell turns Brevitas' cells into quantized cells with their own formats, LowerQuantOperators lowers QONNX
quantizers to standard operators, WriteQonnx writes quantized cells as Brevitas exports them. The contract of the
format is `rnnqc.passes.formats.brevitas_contract`.
"""
