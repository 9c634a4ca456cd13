"""Same tokens: what the two sides read from, and write for, the same ids."""
