"""What a recurrent cell is: gates, states, activations, quantization points."""
