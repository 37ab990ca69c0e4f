"""First stage: the file of any exporter becomes one with clean recurrent nodes.

Enters: any valid model. Leaves: LSTM, GRU and RNN nodes in float32, time-major, with constant weights, without
redundant sorting, squeezing or masking of the exporter. Passes in order: ReadOrtLstm, RepairLstmExport,
ReadWeightCodes, Canonicalize, ComputeInFloat32; after recovery SimplifySequences and FoldProductWeights. Sites that a
pass cannot handle stay unchanged, with a remark.
"""
