"""Second stage: loops and unrolled steps become LSTM, GRU and RNN nodes again.

Enters: a normalized model. `row_reader` reads nodes as expressions (`rows`, `row_algebra`), `step_matcher` finds the
equations of a step, `step_roles` and `state_flow` follow the data to tell the hidden state from the input,
`step_weights` collects the operands. Passes in order: WidenSteps, RecognizeSteps, RollSteps, RecoverLoops. Leaves:
recurrent nodes where the equations are proven; everything else as it was, with a remark. `rnnqc.lowering.recovery` runs
both models and compares them.
"""
