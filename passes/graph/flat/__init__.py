"""A model as one flat graph, whose parts can run alone or be compared without a run."""
