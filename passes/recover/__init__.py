"""Second stage: loops and unrolled steps become LSTM, GRU and RNN nodes again.

Enters: a normalized model. `rows/` reads nodes as expressions (`row_reader`); `steps/` matches the equations of a step
(`step_matcher`), follows the data to tell the hidden state from the input (`step_roles`, `state_flow`) and collects the
operands (`step_weights`); `loops/` vectorizes the rest of a loop's body. The passes of this folder, in order:
WidenSteps, RecognizeSteps, RollSteps, RecoverLoops. Leaves: recurrent nodes where the equations are proven; everything
else unchanged, with a remark. `rnnqc.lowering.recovery` runs both models and compares them.
"""
