"""Third stage: a recurrent node becomes a cell, an explicit Scan over named values.

Enters: an LSTM, GRU or RNN node. DecomposeLstm replaces it by the loop that `loop_driver` writes; its step is
`rnnqc.cells.equations` in `float_arithmetic`. Later forms have the same loop with another arithmetic.
Leaves: the same arithmetic in float32; every quantization point is a named value that calibration can observe
(`observe`).
"""
