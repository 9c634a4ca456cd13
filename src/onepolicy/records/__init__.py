"""Values and the run directory. Everything else in the package reads and writes these."""
