"""Recipes: what is quantized how. Those that come with rnnqc are the TOML files in `builtin/`."""
