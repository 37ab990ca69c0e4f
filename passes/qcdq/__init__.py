"""QuantizeLinear, Clip and DequantizeLinear write the formats into the graph."""
