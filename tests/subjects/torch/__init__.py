"""Models of PyTorch, and its exporters."""
