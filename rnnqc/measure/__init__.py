"""Compares two models: feeds -> runs -> differences -> verdict.

It takes two models with the same outputs, the float one first, and optional data. It returns an `OutputComparison` for
each output.

1. `feeds` generates feeds of several magnitudes where the user gives no data.
2. `runs` makes the calls of the data (`Calls`) and runs each model on them with its own states (`Runner`).
3. `tally` sums up the differences, call by call, over all values and step by step; `time_axes` finds the axis that is
   time. `differences` holds the results.
4. `compare` does 2 and 3 for two models, for several kinds of feeds, and for one model without and with the library.
5. The caller decides what is good enough: `rnnqc verify` sets thresholds, `lower` warns
   (`rnnqc.lowering.reports.warnings`), and `rnnqc.search` ranks overrides. `verdict` has the words for it.
"""
