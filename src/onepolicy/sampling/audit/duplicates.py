"""Are samples of one prompt drawn independently?"""

from __future__ import annotations

import math

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.coincidences import ALPHA, Coincidences
from onepolicy.sampling.audit.found import Found, passed, unknown

CHECK = "duplicate_samples"


class Duplicates:
    """Fails if samples of one prompt coincide more often than their own probabilities allow.

    A prompt is its ids: under two names, as on two ranks that were given the same data, it is one. The count is exact;
    so is the bound on its chance, where the logprobs are of the distribution that the tokens were drawn from.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._coincidences = Coincidences()
        self._several = 0
        self._names: dict[object, str] = {}
        self._crossing = 0
        self._without = 0
        self._found = Found()

    def add(self, call: Call) -> None:
        """Take in one call. Later calls of a conversation follow from its first."""
        if not call.begins:
            return
        key, logprob = call.prompt_key, call.logprob
        name = self._names.setdefault(key, call.prompt_id)
        self._without += math.isnan(logprob)
        content = call.digest.encode()
        # without a logprob every coincidence counts as expected, which accuses nobody
        if self._coincidences.add(key, content, logprob=0.0 if math.isnan(logprob) else logprob):
            self._crossing += name != call.prompt_id
            shown = "" if math.isnan(logprob) else f", logprob {logprob:.4g}"
            self._found.add(call, f"equals an earlier sample of the same prompt{shown}")

    def verdicts(self) -> list[Verdict]:
        """One."""
        seen = self._coincidences
        if seen.draws == len(self._names):
            return [unknown(CHECK, "not checked: no prompt has two samples.")]
        if not self._found.count:
            return [passed(CHECK, f"no two of {seen.draws} samples of {len(self._names)} prompts coincide.")]
        count = f"{seen.hits} of {seen.draws} samples equal an earlier one of the same prompt"
        if self._asked.protocol.is_greedy:
            return [passed(CHECK, f"{count}, as greedy ones do.", required=False)]
        if not self._asked.is_exact or self._without:
            why = (
                f"{self._without} samples have no logprob"
                if self._without
                else "the logprobs are not of the distribution that was drawn from"
            )
            message = (
                f"{count}, the first is rollout {self._found.first}; whether that is by chance cannot be said: {why}. "
                "Record with processed logprobs, or at temperature 1 without truncation."
            )
            return [unknown(CHECK, message, required=True)]
        numbers = f"{count}; {seen.expected:.3g} were to be expected from their probabilities"
        if seen.chance > ALPHA:
            return [passed(CHECK, f"{numbers}.")]
        ranks = (
            f" {self._crossing} of them stand under another prompt's name: two ranks were given the same data."
            if self._crossing
            else ""
        )
        message = (
            f"{numbers} (chance below {seen.chance:.1g}); the first is rollout {self._found.first}.{ranks} Give every "
            "sample a seed of its own, and every rank other prompts."
        )
        return [self._found.failed(CHECK, message, quantity="coinciding_samples")]
