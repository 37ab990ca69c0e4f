"""Builds recurrent layers from models of one step: a step becomes a Scan over a sequence, and layers form a stack."""
