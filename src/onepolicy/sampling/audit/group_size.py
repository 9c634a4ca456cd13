"""Has each prompt as many samples as were asked for?"""

from __future__ import annotations

from collections import Counter

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import KEPT, passed, unknown

CHECK = "samples_per_prompt"


class GroupSize:
    """Fails if a prompt has more or fewer samples than the protocol says."""

    def __init__(self, asked: Asked) -> None:
        self._wanted = asked.samples
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, call: Call) -> None:
        """Take in one call; the first of a rollout counts."""
        if call.begins:
            self._counts[call.prompt_id, call.step] += 1

    def verdicts(self) -> list[Verdict]:
        """One."""
        sizes = Counter(self._counts.values())
        told = ", ".join(f"{prompts} with {size}" for size, prompts in sizes.most_common(4))
        if self._wanted is None:
            message = f"not checked: the run does not say how many were asked for. Prompts: {told or 'none'}."
            return [unknown(CHECK, message)]
        odd = [key for key, count in self._counts.items() if count != self._wanted]
        if not odd:
            return [passed(CHECK, f"each of {len(self._counts)} prompts has {self._wanted} samples.")]
        message = (
            f"{len(odd)} of {len(self._counts)} prompts do not have {self._wanted} samples ({told}); the first is "
            f"{odd[0][0]!r}. Advantages within a group are then of another size: record what is missing, or drop the "
            "group."
        )
        return [
            Verdict(
                check=CHECK,
                status=Status.FAIL,
                quantity="prompts_with_another_number",
                value=len(odd),
                limit=0,
                unit="prompts",
                message=message,
                evidence=tuple(
                    Evidence(rollout_id="", note=f"prompt {key[0]}: {self._counts[key]} samples") for key in odd[:KEPT]
                ),
            )
        ]
