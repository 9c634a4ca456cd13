"""Has every sample a seed of its own?"""

from __future__ import annotations

from onepolicy.records.verdict import Status, Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import Found, passed, unknown

CHECK = "seeds"


class Seeds:
    """Fails if two samples of one prompt have one seed; informs where different prompts share one.

    The seed is the one that the run names (the tag `seed`), or under "each rollout" the one that follows from its id.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._derives = asked.is_told and asked.protocol.seed_policy == "each rollout"
        self._prompts: dict[str, set[tuple[str, str]]] = {}
        self._calls = 0
        self._same, self._shared = Found(), Found()

    def add(self, call: Call) -> None:
        """Take in one call; the first of a rollout counts."""
        seed = call.seed or (str(self._asked.protocol.seed_for(call.rollout_id)) if self._derives else "")
        if not seed or not call.begins:
            return
        self._calls += 1
        prompts = self._prompts.setdefault(seed, set())
        if call.prompt_key in prompts:
            self._same.add(call, f"seed {seed}, as another sample of the same prompt")
        elif prompts:
            self._shared.add(call, f"seed {seed}, as a sample of another prompt")
        prompts.add(call.prompt_key)

    def verdicts(self) -> list[Verdict]:
        """One."""
        policy = self._asked.protocol.seed_policy
        if self._asked.protocol.is_greedy:
            return [unknown(CHECK, "not checked: nothing is drawn at random.")]
        if not self._calls:
            return [unknown(CHECK, f"not checked: the run names no seeds (seed policy {policy!r}).")]
        if self._same.count and policy != "each request":
            message = (
                f"{self._same.count} of {self._calls} samples have the seed of another sample of the same prompt; "
                f"the first is rollout {self._same.first}. One seed draws one completion: give each sample its own."
            )
            return [self._same.failed(CHECK, message, quantity="samples_with_one_seed")]
        if self._shared.count:
            message = (
                f"{self._shared.count} of {self._calls} samples have the seed of a sample of another prompt: their "
                "random numbers are the same, which prompts alone keep apart."
            )
            verdict = self._shared.failed(CHECK, message, quantity="samples_with_a_shared_seed")
            return [verdict.model_copy(update={"status": Status.UNKNOWN, "required": False})]
        return [passed(CHECK, f"{self._calls} samples have {len(self._prompts)} seeds.")]
