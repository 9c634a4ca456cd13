"""Why two engines differ: each cause is a correction, and must remove the difference on tokens it was not fitted on."""
