"""NeMo-RL: its recorded training data."""
