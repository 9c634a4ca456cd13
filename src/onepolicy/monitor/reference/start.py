"""What a reference was when its guard began: what later checks are held against."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from onepolicy.errors import RunError, UsageError
from onepolicy.monitor.reference import checks
from onepolicy.monitor.reference.ending import from_all_ranks, is_first_rank
from onepolicy.monitor.reference.model import Reference, check_model
from onepolicy.monitor.reference.passes import Passes
from onepolicy.monitor.reference.record import ReferenceRecord, one_guard, read_reference
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

    def __post_init__(self) -> None:
        """Raises: UsageError if that is nothing, or nothing to compare with."""
        if self.trained is None and self.expected is None:
            raise UsageError(
                "nothing says what the reference must be: give `trained`, the policy's model, which it equals at the "
                "start, or `expected`, the folder of its weights."
            )
        if self.trained is not None:
            check_model(self.trained, "`trained`")
        if self.expected == "" or not isinstance(self.expected, str | os.PathLike | WeightsDigest | None):
            raise UsageError(
                f"`expected` is {str(self.expected)[:80]!r}; give a folder or file of weights, or a WeightsDigest."
            )


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


def earlier_record(folder: Path, held: ExitStack) -> ReferenceRecord | None:
    """What the first rank reads once it alone writes there, which it does until `held` is closed.

    Raises: RunError on every rank if the first may not write there, or its record is damaged.
    """
    found: ReferenceRecord | RunError | None = None
    if is_first_rank():
        try:
            held.enter_context(one_guard(folder))
            found = read_reference(folder)
        except RunError as error:
            found = error
    found = from_all_ranks(found)[0]
    if isinstance(found, RunError):
        raise found
    return found


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
    if earlier is not None:
        return checks.not_as_before(start.digest, earlier.digest)
    assert start.gap is not None
    assert must_be.trained is not None
    return checks.apart_at_start(start.gap, rounding=start.rounding, reference=reference, policy=must_be.trained)
