"""TRL: the monitor in its trainer, and its files."""
