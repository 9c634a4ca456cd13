"""miles: its recorded training data."""
