"""Number formats: scales, zero points, encoding, packing and the search for them."""
