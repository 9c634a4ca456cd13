"""The use cases: record, score, judge, check, demo. Resumable, with progress."""
