"""Any exporter's file becomes one with clean recurrent nodes: types, functions, weights, sequences and batches."""
