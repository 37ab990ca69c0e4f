"""The output of a lowering: the report, its entries, and warnings."""
