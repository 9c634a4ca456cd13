"""Do the reference's logprobs stand on the right side of the policy's?"""

from __future__ import annotations

import math

import numpy as np

from onepolicy.records.verdict import Status, Verdict
from onepolicy.signal.batch.columns import Columns
from onepolicy.signal.batch.found import not_checked, nothing, passed, unknown

CHECK = "kl_sign"
ALPHA = 1e-3
"""chance of a false alarm in a batch"""
SLACK = 1e-3
"""nats per token that two engines of one policy may be apart"""


def kl_sign(columns: Columns) -> Verdict:
    """Fails if the reference finds the sampled tokens likelier than the policy that is said to have sampled them.

    The ratio reference / policy of all tokens has a mean of 1 under the policy, so by Markov's inequality it exceeds
    1 / ALPHA with a chance below ALPHA. Where it does, the two are exchanged, the difference has the wrong sign, or the
    tokens are of another policy.
    """
    rollout, reference = columns.rollout_logprobs, columns.reference_logprobs
    which = columns.trained
    if rollout is None or reference is None or which is None:
        return not_checked(CHECK, "it takes `rollout_logprobs`, `reference_logprobs`, and `lengths` or a mask")
    if not which.any():
        return nothing(CHECK)
    k1 = np.where(which, rollout - reference, 0.0)[which]
    if not np.isfinite(k1).all():
        wrong = int((~np.isfinite(k1)).sum())
        return unknown(CHECK, f"{wrong} of {len(k1)} sampled tokens have no finite logprob on one side.")
    mean = float(k1.mean())
    if -k1.sum() <= math.log(1 / ALPHA) + SLACK * len(k1):
        told = f"policy minus reference is {mean:.4g} nats a token over {len(k1):,} sampled tokens."
        return passed(CHECK, told, looked_at=len(k1))
    message = (
        f"policy minus reference is {mean:.4g} nats a token over {len(k1):,} sampled tokens: the reference finds them "
        "likelier than the policy that sampled them. k1 of KL(policy || reference) is policy minus reference; look for "
        "the two exchanged, or logprobs of another policy than the one that sampled."
    )
    return Verdict(
        check=CHECK, status=Status.FAIL, quantity="k1", value=mean, limit=0, unit="nats per token", message=message
    )
