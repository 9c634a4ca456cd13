"""From which size on a difference matters."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from onepolicy.behaviour.metrics import Kind
from onepolicy.records.strict import Number, Strict


class BehaviourLimits(Strict):
    """A difference alarms if it is beyond chance and larger than this. Smaller ones are shown, and are no alarm."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    length_change: Number = Field(default=0.10, gt=0, lt=1)
    """Change of the mean length, as a share."""
    rate_change: Number = Field(default=0.10, gt=0, lt=1)
    """Difference of a rate: blank, keyword, format, finish reason."""
    repetition_change: Number = Field(default=0.05, gt=0, lt=1)
    """Difference of the repetition rate."""
    similarity_change: Number = Field(default=0.03, gt=0, lt=1)
    """Difference of the self-similarity of a prompt's samples (ROUGE-L)."""
    content_change: Number = Field(default=0.02, gt=0, lt=1)
    """By how much samples of one side are more alike than those across (ROUGE-L)."""
    reward_margin: Number = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Difference of the mean reward within which both are equivalent."""

    def of(self, kind: Kind) -> float:
        """The limit of a kind of metric."""
        return float(getattr(self, f"{kind}_change"))
