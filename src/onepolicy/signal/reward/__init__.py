"""Is a reward model a sound signal? Scores in, verdicts out; one file for each check."""
