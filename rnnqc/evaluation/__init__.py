"""Run a model and compare outputs."""
