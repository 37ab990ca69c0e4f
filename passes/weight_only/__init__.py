"""Recurrent layers whose weights alone are stored in few bits; their arithmetic stays float.

Enters: normalized LSTM, GRU and RNN nodes. QuantizeWeights stores W and R in 4 to 8 bits or float16, with standard
operators that make floats of them. Leaves: the same nodes. WriteOrtLstm, for form ort, makes of LSTMs the operator of
onnxruntime that multiplies the quantized values.
"""
