"""The search for overrides of a recipe."""
