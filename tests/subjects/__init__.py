"""Models for tests: exporters' variants, Brevitas' cells, functions, loops."""
