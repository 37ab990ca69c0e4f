"""Loops and steps that an exporter wrote out become LSTM, GRU and RNN nodes again."""
