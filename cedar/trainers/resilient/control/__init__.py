"""Track which workers are alive, the current generation, and which steps count. Starts no torch threads."""
