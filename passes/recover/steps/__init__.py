"""Single steps of LSTM, GRU and RNN layers: matched in the expressions of rows, checked, written as nodes."""
