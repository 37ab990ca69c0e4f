"""Brevitas' QuantLSTMCell and QONNX operators, read and written."""
