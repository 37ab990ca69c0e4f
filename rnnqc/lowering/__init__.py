"""`rnnqc.lower` and what it reports; layers and stacks as models of their own."""
