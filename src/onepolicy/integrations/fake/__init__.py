"""A deterministic engine without a model, for tests and documentation."""
