"""The mismatch of one training step after the other: summaries, series, jumps."""
