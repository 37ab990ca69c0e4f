"""Sources of values: constants, shapes and indices known before a run, elements of sequences, views."""
