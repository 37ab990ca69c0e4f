"""What a lowering says of its result: the report, its entries, and warnings."""
