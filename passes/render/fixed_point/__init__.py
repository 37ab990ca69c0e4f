"""The fixed-point arithmetic in standard operators: every value is quantized."""
