"""The guard of a reference policy: frozen, without dropout, the right weights, at the start and every N steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from torch import Tensor, nn

from onepolicy.errors import UsageError
from onepolicy.monitor.arguments import number_of, path_of
from onepolicy.monitor.notices import warn
from onepolicy.monitor.reference import checks
from onepolicy.monitor.reference.ending import from_all_ranks, halt, is_first_rank, many_ranks, sentence
from onepolicy.monitor.reference.model import Reference
from onepolicy.monitor.reference.passes import Passes
from onepolicy.monitor.reference.record import (
    Kind,
    ReferenceAlarm,
    ReferenceRecord,
    write_reference,
)
from onepolicy.monitor.reference.standing import UNSEEN, ReferenceStanding
from onepolicy.monitor.reference.start import NOISE, MustBe, earlier_record, noise_of, other_version, start_of
from onepolicy.monitor.trying import Trying
from onepolicy.records.verdict import Status
from onepolicy.weights.digest import WeightsDigest

Policy = Literal["warn", "halt"]
POLICIES = ("warn", "halt")
EVERY = 50
"""steps between two checks"""
DIGEST_EVERY = 10
"""checks between two digests, which read all weights"""


class ReferenceGuard:
    """Looks at a reference before the training, after the first step, every `every` steps, and at the end.

    `step` once at the end of each step, `close` at the end of the training; or as a context manager. It changes nothing
    of the training: modes, what requires gradients and the random state are put back after each look.
    """

    def __init__(
        self,
        path: str | Path,
        reference: nn.Module | Reference,
        *,
        trained: nn.Module | None = None,
        expected: str | Path | WeightsDigest | None = None,
        policy: Policy = "warn",
        every: int = EVERY,
    ) -> None:
        """Look at the reference, and write `reference.json` into a folder, which may be the monitor's, and no guard's.

        trained: the policy's model, as it starts. expected: folder, file or digest of the reference's base weights.
        Without `expected`, the reference must be the one of the folder's record, and where there is none, what the
        policy starts from. policy: "warn" logs alarms, "halt" ends the training.
        Raises: UsageError, DumpError, RunError; TrainingHalted under the policy "halt" if something is wrong already.
        """
        if policy not in POLICIES:
            raise UsageError(f"there is no policy {policy!r}. Policies: {', '.join(POLICIES)}.")
        if path == "":
            raise UsageError("the path is empty; give a folder for reference.json, such as the monitor's.")
        must_be = MustBe(trained=trained, expected=expected)
        self.path, self.policy, self.every = path_of(path), policy, _interval(every)
        self._reference = reference if isinstance(reference, Reference) else Reference(model=reference)
        self._trained, self._optimizer = trained, None
        self._passes = Passes(self._reference)
        self._standing = ReferenceStanding()
        self._number: int | None = None
        """of the step that has ended last"""
        self._unseen = 0
        """steps that have ended since the last check"""
        self._held = ExitStack()
        try:
            self._begin(must_be)
        except BaseException:
            self._held.close()
            raise

    @property
    def status(self) -> Status:
        """pass: closed, and no check found anything. fail: an alarm. Else unknown."""
        return self._standing.status

    @property
    def why(self) -> str:
        """What the status follows from."""
        return self._standing.why

    @property
    def alarms(self) -> tuple[ReferenceAlarm, ...]:
        """The first of each kind."""
        return tuple(self._standing.alarms.values())

    def watch(self, optimizer: Any) -> None:
        """Say what is trained, once it is known: anything with torch's `param_groups`. Raises: TrainingHalted."""
        self._check_open()
        self._optimizer = optimizer
        with self._trying("look at the optimizer"):
            self._looked("trained", self._standing.last_step, self._trained_along())
        self._together()

    def step(self, number: int) -> None:
        """End a step, and look at the reference if it is time.

        What is no number is a failure of the guard, which training survives. Raises: TrainingHalted under the policy
        "halt": on one rank at once, on several at the next check.
        """
        self._check_open()
        due = False
        with self._trying("take the number of a step"):
            first, self._number = self._number is None, number_of(number)
            self._unseen += 1  # as numbers may begin again, or stand still
            due = first or max(self._unseen, abs(self._number - self._standing.last_step)) >= self.every
        if due:
            self._look(digest=(self._standing.checks + 1) % DIGEST_EVERY == 0)
        if due or not many_ranks():
            self._together()

    def used(self, step: int, logprobs: Tensor, score: Callable[[Any], Tensor]) -> None:
        """Hold what the trainer used as the reference's logprobs against the reference itself, right after its pass.

        score: a model -> the logprobs of the same tokens, as the trainer computes them. It is called for the reference,
        and for the policy if they differ. Shape: any, the same for both; nats.
        """
        self._check_open()
        tolerance = self._start.tolerance
        with self._trying("score what the trainer scored"):
            given, own = logprobs.detach().float().flatten().cpu(), self._passes.at_rest(score)
            if checks.not_its_own(given, own, tolerance=tolerance) is not None:
                # many tokens may repeat less well than the few of the canary
                tolerance = max(tolerance, NOISE * noise_of(own, self._passes.at_rest(score)))
            found = checks.not_its_own(given, own, tolerance=tolerance)
            if found is not None and self._look_for_dropout(step, self._passes.at_rest()):
                return  # what was used is random, and nobody else's for that
            if found is not None and self._trained is not None:
                found += checks.whose(given, self._passes.of_the_policy(self._trained, score), tolerance=tolerance)
            self._looked("pass", step, found)

    def close(self) -> None:
        """Look once more, at all weights too, and write the end. Raises: TrainingHalted as `step` does."""
        if self._standing.closed:
            return
        self._look(digest=True)
        self._together()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._standing.closed:  # other ranks may be gone: nothing is waited for
            self._standing.fail(UNSEEN, f"it ended with {kind.__name__}: {error}")
            self._end()

    def _check_open(self) -> None:
        if self._standing.closed:
            raise UsageError(f"the guard of {self.path} is closed. Make another one to go on with the same folder.")

    def _end(self) -> None:
        self._standing.closed = True
        self._write()
        self._held.close()

    def _begin(self, must_be: MustBe) -> None:
        """The look before the training; what goes wrong in it is an error."""
        earlier = earlier_record(self.path, self._held)
        if earlier is not None and not earlier.checks:
            earlier = None  # that training has not begun
        if earlier is not None:
            self._standing.go_on(earlier)
        self._start = start = start_of(self._reference, self._passes, must_be.trained)
        step = self._standing.last_step
        self._standing.begin(step)
        self._looked("trained", step, self._trained_along())
        unfit = checks.no_logprobs(start.canary) or checks.unrepeatable(start.noise, rounding=start.rounding)
        if not self._looked("invalid", step, unfit):
            self._look_for_dropout(step, start.canary)
            self._looked("version", step, other_version(start, self._reference, must_be, earlier))
        self._together()
        self._write(must=True)

    def _look(self, *, digest: bool) -> None:
        """Ask every question whose answer may have changed."""
        step = self._standing.last_step if self._number is None else self._number
        self._unseen = 0
        with self._trying("look at the reference"):
            self._looked("trained", step, self._trained_along())
            at_rest = self._passes.at_rest()
            if not self._looked("invalid", step, checks.no_logprobs(at_rest)):
                found = checks.moved(at_rest, self._start.canary, tolerance=self._start.tolerance)
                self._looked("moved", step, found)
                self._look_for_dropout(step, at_rest)
            if digest:
                self._looked("weights", step, checks.other_weights(self._reference.digest(), self._start.digest))
            self._standing.checks += 1
            self._standing.last_step = step
        self._write()

    def _look_for_dropout(self, step: int, at_rest: Tensor) -> bool:
        """Whether the modes that the modules have now change the canary."""
        model, tolerance = self._reference.model, self._start.tolerance
        found = checks.with_dropout(self._passes.as_it_is(), at_rest, tolerance=tolerance, model=model)
        return self._looked("dropout", step, found)

    def _trained_along(self) -> str | None:
        return checks.trained_along(self._reference, self._trained, self._optimizer)

    def _looked(self, kind: Kind, step: int, message: str | None) -> bool:
        """Take in an answer, and say it if it is the first of its kind; whether something was found."""
        alarm = self._standing.looked(kind, step, message)
        if alarm is not None:
            warn(f"reference policy, {sentence(alarm)}")
            self._write()
        return message is not None

    def _trying(self, what: str) -> Trying:
        return Trying(what, self._failed)

    def _failed(self, what: str, why: str) -> None:
        if self._standing.fail(what, why):
            warn(
                f"the guard of the reference policy could not {what}: {why}. The training goes on, and it never passes."
            )

    def _write(self, *, must: bool = False) -> None:
        """The first rank's. must: whether not being able to is an error."""
        if not is_first_rank():
            return
        if must:
            write_reference(self.path, self._record())
            return
        with self._trying("write its record"):
            write_reference(self.path, self._record())

    def _record(self) -> ReferenceRecord:
        standing, start = self._standing, self._start
        return ReferenceRecord(
            status=standing.status.value if standing.closed else "running",
            why=standing.why,
            policy=self.policy,
            every=self.every,
            adapters=self._reference.adapters,
            digest=start.digest.whole,
            noise=start.noise,
            start_gap=start.gap,
            canary=tuple(start.canary.tolist()),
            checks=standing.checks,
            last_step=standing.last_step,
            alarms=self.alarms,
            failures=standing.failures,
        )

    def _together(self) -> None:
        """Where every rank comes: what one has found, all have, and all end by it."""
        for alarms, failures in from_all_ranks((self.alarms, self._standing.failures)):
            self._standing.take(alarms, failures)
        if self.policy == "halt" and self.alarms:
            self._end()
            raise halt(self.alarms, self.path)


def _interval(every: object) -> int:
    if not isinstance(every, bool) and isinstance(every, Integral) and int(every) >= 1:
        return int(every)
    raise UsageError(f"`every` is {every!r}; give the steps between two checks, a whole number, 1 or more.")
