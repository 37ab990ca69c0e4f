"""Reads the states, inputs and results of Loop and Scan nodes."""
