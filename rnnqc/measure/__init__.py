"""Compares two models: feeds -> runs -> differences -> verdict.

In go two models with the same outputs, the float one first, and data, or none. Out come an `OutputComparison` for each
output and, of generated data, `Measured`: the least SQNR and what there is to say of it.

1. `feeds` generates feeds of several magnitudes where the user gives no data.
2. `runs` makes the calls of the data (`Calls`) and runs each model on them with its own states (`Runner`).
3. `tally` sums up the differences, call by call, over all values and step by step; `time_axes` says which axis is
   time. `differences` holds the results.
4. `compare` does 2 and 3 for two models, for several kinds of feeds, and for one model without and with the library.
5. `verdict` measures a lowered model on generated data and words the result.

`rnnqc.evaluation` below runs models and parts of models in onnxruntime and declares what a pass may change.
"""
