"""Recurrent cells: their gates, states, activations and quantization points."""
