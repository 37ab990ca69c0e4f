"""Custom cells: loops with equations of their own, quantized where they are."""
