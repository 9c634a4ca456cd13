"""What a reference was when its guard began: what later checks are held against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from onepolicy.monitor.reference import checks
from onepolicy.monitor.reference.model import Reference
from onepolicy.monitor.reference.passes import Passes
from onepolicy.monitor.reference.record import ReferenceRecord
from onepolicy.weights.digest import WeightsDigest

NOISE = 4.0
"""times the largest |d| of two passes: what later passes may differ by where kernels do not repeat every bit"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MustBe:
    """What the user says of the reference."""

    trained: nn.Module | None
    """the policy's model, as it starts"""
    expected: str | Path | WeightsDigest | None
    """folder, file or digest of its base weights"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """Before the first update."""

    canary: Tensor
    """[N] logprobs without dropout, nats"""
    noise: float
    """largest |d| of two such passes, nats"""
    rounding: float
    """mean |d| that the arithmetic explains, nats"""
    gap: float | None
    """mean |d| of policy and reference over the canary, nats; None: no policy is known"""
    digest: WeightsDigest

    @property
    def tolerance(self) -> float:
        """Largest |d| of a later pass that says nothing, nats."""
        return NOISE * self.noise


def noise_of(one: Tensor, again: Tensor) -> float:
    """Largest |d| of two passes over the same ids, nats; what is NaN in both is for another question."""
    return float((again - one).abs().nan_to_num(nan=0.0).max())


def start_of(reference: Reference, passes: Passes, trained: nn.Module | None) -> Start:
    """Two passes of the reference, one of the policy, and the digest."""
    canary, again = passes.at_rest(), passes.at_rest()
    policys = None if trained is None else passes.of_the_policy(trained)
    return Start(
        canary=canary,
        noise=noise_of(canary, again),
        rounding=checks.rounding_of(reference),
        gap=None if policys is None else float((policys - canary).abs().mean()),
        digest=reference.digest(),
    )


def other_version(start: Start, reference: Reference, must_be: MustBe, earlier: ReferenceRecord | None) -> str | None:
    """Whether the reference is what the user says, or else that of the record, or else what the policy starts from.

    Raises: UsageError, DumpError if the weights that it must be cannot be read.
    """
    if must_be.expected is not None:
        return checks.not_expected(reference, must_be.expected)
    if earlier is not None and earlier.digest:
        return checks.not_as_before(start.digest, earlier.digest)
    assert start.gap is not None
    assert must_be.trained is not None
    return checks.apart_at_start(start.gap, rounding=start.rounding, reference=reference, policy=must_be.trained)
