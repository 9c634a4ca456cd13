"""Files that frameworks record: reading them without running them, and what their columns mean."""
