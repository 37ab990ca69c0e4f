"""Recipes: rules for the number format of each quantization point. `builtin/` has the built-in ones as TOML files."""
