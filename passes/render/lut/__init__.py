"""The lut arithmetic in standard operators: activations are look-ups in tables."""
