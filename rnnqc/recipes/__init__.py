"""Recipes: what is quantized how; each is one TOML file here."""
