"""A recurrent node becomes a cell: an explicit Scan over named values, float."""
