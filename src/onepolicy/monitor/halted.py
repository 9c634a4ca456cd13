"""How a monitor ends a training."""

from __future__ import annotations


class TrainingHalted(SystemExit):
    """The two policies are too far apart to train on. If nobody catches it, the process says why and ends with 1."""
