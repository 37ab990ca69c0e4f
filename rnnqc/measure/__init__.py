"""How close a lowered model comes to its float model."""
