"""Searches overrides: measures how much each number format costs and which alternatives are worth it.

One engine for `rnnqc tune` and `rnnqc report`. It takes a float model, the way to lower it, and data; it returns
measured overrides, never estimates.

1. `overrides` and `candidates` define the possible changes: rules before those of a recipe.
2. `trials` lowers the model with such rules and compares it with the float model on the data: one `Trial` each, with
   its score (`quality`), its bytes and its cost. `Budget` bounds their number.
3. Three ways to choose among trials: `greedy` (for `tune`: the cheapest formats that are good enough), `sensitivity`
   (one point in float at a time) and `repairs` (the overrides that gain most: of few points, of many, together).
4. `findings` and `tuned` hold the results; `relowering` repeats a recorded lowering, `recurrences` lists the points of
   a lowered model.
"""
