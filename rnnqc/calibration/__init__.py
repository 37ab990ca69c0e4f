"""The parts of the calibrate analysis: samples, running, reducing, over processes and machines."""
