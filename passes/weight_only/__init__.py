"""Recurrent layers of which only the weights are stored in few bits; their arithmetic stays float.

Enters: normalized LSTM, GRU and RNN nodes. QuantizeWeights stores W and R in 4 to 8 bits or float16, with standard
operators that dequantize them. Leaves: the same nodes. WriteOrtLstm, for form ort, replaces LSTMs by onnxruntime's
operator that multiplies quantized values.
"""
