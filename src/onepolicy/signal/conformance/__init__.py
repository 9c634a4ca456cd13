"""A framework's own functions on planted batches, beside the references: what `onepolicy conform` runs."""
