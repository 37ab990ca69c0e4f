"""What Loop and Scan nodes carry, read and return."""
