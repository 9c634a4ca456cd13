"""Every cause that is tried. To add one: its file here, and one line below.

The order is that of the answer where several are proven: structural causes first, as numbers say nothing beside them.
Experiments are run in it too: the weights that somebody named before values that are usual.
"""

from __future__ import annotations

from onepolicy.diagnosis.cause import Cause
from onepolicy.diagnosis.causes import (
    calls,
    constants,
    mispaired,
    penalty,
    placeholders,
    precision,
    same_wrong_sampling,
    shift,
    special_tokens,
    temperature,
    template,
    truncation,
    vocabulary_padding,
    weights,
    wrong_entry,
)

CAUSES: dict[str, Cause] = {
    cause.name: cause
    for cause in (
        placeholders.CAUSE,
        wrong_entry.CAUSE,
        mispaired.CAUSE,
        shift.CAUSE,
        special_tokens.CAUSE,
        template.CAUSE,
        *calls.CAUSES,
        *weights.CAUSES,
        penalty.CAUSE,
        temperature.CAUSE,
        truncation.CAUSE,
        vocabulary_padding.CAUSE,
        *constants.CAUSES,
        *precision.CAUSES,
        same_wrong_sampling.CAUSE,
    )
}
"""name -> cause"""
