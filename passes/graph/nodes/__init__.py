"""Reads single nodes: LSTM, GRU and RNN with attributes, shapes and constants; operators of Brevitas and QONNX."""
