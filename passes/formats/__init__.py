"""Recipe and statistics give every point its format."""
