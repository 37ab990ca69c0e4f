"""Custom cells: loops with equations of their own, quantized where they are.

Enters: a loop that is no LSTM, GRU or RNN. QuantizeCustomCells quantizes its matmuls and every other value that the
recipe names, in standard operators. Leaves: the same loop.
"""
