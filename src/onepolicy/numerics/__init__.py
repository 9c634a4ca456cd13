"""Same probabilities: per-token metrics, their mergeable summary, and the checks on them."""
