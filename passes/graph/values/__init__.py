"""Where a value comes from: constants, shapes and indices that are known before a run, elements of sequences, views."""
