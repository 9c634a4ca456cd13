"""Does the model give one number for a text?"""

from __future__ import annotations

from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, passed
from onepolicy.signal.reward.subject import Subject

CHECK = "scalar_head"


def scalar_head(subject: Subject) -> Verdict:
    """Fails if there are several outputs and nobody said which one is the reward."""
    outputs, label = subject.raw.shape[1], subject.scorer.info.label
    numbers = {"quantity": "outputs", "value": outputs, "limit": 1}
    if outputs == 1:
        return passed(CHECK, "one score for a text.", **numbers)
    if label is not None:
        return passed(CHECK, f"{outputs} outputs for a text, of which {label} is the reward, as asked.", **numbers)
    return failed(CHECK, unnamed(outputs), **numbers)


def unnamed(outputs: int) -> str:
    """What is said of several outputs of which none is named."""
    return (
        f"{outputs} outputs for a text, and nothing says which is the reward; output 0 is looked at here. A reward "
        "model has num_labels=1: train and load it so, or name the output with ?label=N."
    )
