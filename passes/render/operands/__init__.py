"""Integer inputs, states and weights in standard operators, for both arithmetics."""
