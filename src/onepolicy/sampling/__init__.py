"""Same sampling: one protocol, its file and lock, where two differ, and what that does to a run."""
