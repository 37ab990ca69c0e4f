"""Data that users give and data that rnnqc generates: feeds, streams, statistics."""
