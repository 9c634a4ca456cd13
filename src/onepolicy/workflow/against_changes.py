"""What a run was made with, and what of it is not as it was in another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from onepolicy.judgement.limits import Limits
from onepolicy.records.past import Made
from onepolicy.records.rollout import Rollout
from onepolicy.records.run import Run
from onepolicy.records.stored import read_json
from onepolicy.records.tokens import IntArray, digest_of_ids
from onepolicy.records.verdict import Judgement
from onepolicy.workflow.environment import PACKAGES
from onepolicy.workflow.judge import LIMITS, JudgeRequest
from onepolicy.workflow.snapshot import changes, made_of

SIDES = ("rollout", "trainer")
_AREAS = ("versions", "configuration", "tokenizer", "template", "protocol", "suite", "weights", "limits")
"""in the order in which a cause is looked for"""
_MUST_BE_SAID = {"tokenizer": "tokenizer", "weights": "weights"}
"""area -> the name in it that stands for its content"""


def made_with(run: Run, judgement: Judgement) -> Made:
    """Everything about a run that can change a number and is no number: area -> side -> name -> value."""
    infos = {
        "rollout": run.reading_info(judgement.rollout_reading),
        "trainer": run.reading_info(judgement.trainer_reading),
    }
    of_side = {side: made_of(info) for side, info in infos.items()}
    made: Made = {area: {side: of_side[side][area] for side in SIDES} for area in of_side["rollout"]}
    made["suite"] = {"": _suite(run)}
    if run.manifest.kind == "fresh":
        made["protocol"] = {"": {name: str(value) for name, value in run.manifest.protocol.model_dump().items()}}
    made["limits"] = {"": _limits(run)}
    return made


def changes_between(then: Made, now: Made) -> list[str]:
    """`versions: rollout engine version 1 -> 2`, in the order in which a cause is looked for.

    What changed alike on both sides is said once.
    """
    found: list[str] = []
    for area in _AREAS:
        sides = _side_changes(then.get(area, {}), now.get(area, {}))
        alike = [text for text in sides.get("rollout", []) if text in sides.get("trainer", [])]
        found += [f"{area}: both sides' {text}" for text in alike]
        for side, texts in sides.items():
            found += [f"{area}: {side} {text}" if side else f"{area}: {text}" for text in texts if text not in alike]
    return found


def _side_changes(then: Mapping[str, dict[str, str]], now: Mapping[str, dict[str, str]]) -> dict[str, list[str]]:
    return {side: changes(*_both(then.get(side, {}), now.get(side, {}))) for side in {**then, **now}}


def _both(then: Mapping[str, str], now: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Without the packages that only one names: an earlier check in the same process may have loaded them."""
    alone = {name for name in PACKAGES if (name in then) is not (name in now)}
    before, after = ({name: value for name, value in side.items() if name not in alone} for side in (then, now))
    return before, after


def _suite(run: Run) -> dict[str, str]:
    manifest = run.manifest
    return {
        "suite": manifest.suite,
        "content": manifest.suite_hash,
        "planned rollouts": str(manifest.planned_rollouts),
        "completions": "sampled anew" if manifest.kind == "fresh" else "fixed",
    }


def _limits(run: Run) -> dict[str, str]:
    """Those of the run's judgement; none if an earlier version judged it."""
    file = run.path / "judgements" / JudgeRequest().name / LIMITS
    if not file.exists():
        return {}
    limits = read_json(file, Limits).model_dump(mode="json", exclude={"floor"})
    return {name: str(value) for name, value in limits.items()}


def unsaid(then: Made, now: Made) -> tuple[str, ...]:
    """What stands for content that may be another one, and was not said then or now."""
    return tuple(
        f"the {side} side's {area}"
        for area, name in _MUST_BE_SAID.items()
        for side in SIDES
        if not (then.get(area, {}).get(side, {}).get(name) and now.get(area, {}).get(side, {}).get(name))
    )


def of_template(then: Run, now: Run) -> list[str]:
    """Whether prompts of one suite became other ids, which a template does, or a tokenizer."""
    if now.manifest.kind != "fresh" or then.manifest.suite_hash != now.manifest.suite_hash:
        return []
    before, after = (
        {rollout.prompt_id: digest_of_ids(prompt_ids(rollout)) for rollout in run.rollouts()} for run in (then, now)
    )
    both = before.keys() & after.keys()
    other = sorted(prompt for prompt in both if before[prompt] != after[prompt])
    if not other:
        return []
    return [f"template: {len(other)} of {len(both)} prompts became other ids, the first is {other[0]}"]


def prompt_ids(rollout: Rollout) -> IntArray:
    """The ids before the first sampled token. Shape: [P]."""
    sampled = np.flatnonzero(rollout.sampled)
    return rollout.token_ids[: sampled[0] if len(sampled) else None]


def in_order(changed: Sequence[str]) -> tuple[str, ...]:
    """The same, those first that are looked at first."""
    return tuple(sorted(changed, key=lambda text: _AREAS.index(text.partition(":")[0])))
