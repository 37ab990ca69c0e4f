"""Custom cells: recurrences with equations of their own, quantized in place.

Enters: a loop that is not an LSTM, GRU or RNN. QuantizeCustomCells quantizes its matmuls and every other value that the
recipe names, in standard operators. Leaves: the same loop.
"""
