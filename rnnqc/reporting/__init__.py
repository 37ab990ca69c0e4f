"""The error report of a lowered model: where its errors come from, and which overrides reduce them."""
