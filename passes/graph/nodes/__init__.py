"""Reading single nodes: LSTM, GRU and RNN as attributes, shapes and constants; the operators of Brevitas and QONNX."""
