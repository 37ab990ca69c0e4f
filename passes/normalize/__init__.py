"""First stage: the file of any exporter becomes one with clean recurrent nodes.

Enters: any valid model. Leaves: LSTM, GRU and RNN nodes in float32, time-major, with constant weights, without
sorting, squeezing or masking that only the exporter needed. Passes in order: RepairLstmExport,
ReadWeightCodes, Canonicalize, ComputeInFloat32; after recovery SimplifySequences and FoldProductWeights. What a pass
cannot handle stays as it is, with a remark.
"""
