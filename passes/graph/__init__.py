"""Questions about graphs that several passes ask: operands, constants, layouts, sequences, states of loops."""
