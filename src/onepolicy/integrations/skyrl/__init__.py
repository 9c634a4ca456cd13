"""SkyRL: its recorded training input."""
