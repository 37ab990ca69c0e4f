"""The names of onnx's own node cases of LSTM, GRU and RNN."""

BACKEND_CASES = (
    "lstm_defaults", "lstm_with_initial_bias", "lstm_with_peepholes", "lstm_reverse", "lstm_bidirectional",
    "lstm_batchwise",
    "gru_defaults", "gru_with_initial_bias", "gru_seq_length", "gru_reverse", "gru_bidirectional", "gru_batchwise",
    "simple_rnn_defaults", "simple_rnn_with_initial_bias", "rnn_seq_length", "simple_rnn_reverse",
    "simple_rnn_bidirectional", "simple_rnn_batchwise",
)  # fmt: skip
