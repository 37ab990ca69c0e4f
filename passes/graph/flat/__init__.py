"""A model as one flat graph, whose parts run alone or are compared without a run."""
