"""slime: its recorded rollouts and training data."""
