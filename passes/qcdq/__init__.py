"""Fifth stage: the formats are written into the graph.

Enters: a float cell and its formats. InsertQcdq inserts QuantizeLinear, Clip and DequantizeLinear, or the same
arithmetic in other standard operators, at every quantization point. Leaves: form qcdq, which any ONNX runtime can run.
"""
