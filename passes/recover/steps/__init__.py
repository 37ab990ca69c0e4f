"""Single steps of LSTM, GRU and RNN layers: found in the expressions of rows, checked, written as nodes."""
