"""Searches overrides: which number format costs how much, and which other one is worth it.

One engine for `rnnqc tune` and `rnnqc report`. In go a float model, the way to lower it, and data; out come overrides
that were measured, never estimates.

1. `overrides` and `candidates` say what may be changed: rules before those of a recipe.
2. `trials` lowers the model with such rules and compares it with the float model on the data: one `Trial` each, with
   its score (`quality`), its bytes and its cost. `Budget` bounds how many.
3. Three ways to choose among trials: `greedy` (for `tune`: the cheapest formats that are good enough), `sensitivity`
   (one point in float at a time) and `repairs` (the overrides that gain most: of few points, of many, together).
4. `findings` and `tuned` hold the results; `relowering` lowers a model as it says it was lowered, `recurrences` says
   which points a lowered model has.
"""
