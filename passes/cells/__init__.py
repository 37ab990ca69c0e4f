"""Third stage: a recurrent node becomes a cell, an explicit Scan over values with names.

Enters: an LSTM, GRU or RNN node. DecomposeLstm replaces it by the loop that `loop_driver` writes; the step are the
equations of `rnnqc.cells.equations` in `float_arithmetic`. Later forms have the same loop with another arithmetic.
Leaves: the same arithmetic in float32; every quantization point is a named value that calibration can observe
(`observe`).
"""
