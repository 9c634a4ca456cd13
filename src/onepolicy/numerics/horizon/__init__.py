"""What a mismatch adds up to over a long rollout: drift, persistent bias, extrapolation, error by position."""
