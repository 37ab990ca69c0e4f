"""What a lowered model computes inside its cells: every named tensor of every time step."""
