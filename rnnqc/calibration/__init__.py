"""The calibrate analysis: samples, running, reducing, over processes and machines."""
