"""What slime writes with --dump-details, --save-debug-train-data and --save-debug-rollout-data.

`train_data/{rollout_id}.pt` (both sides): a dict with `format_version` 2, `rollout_id` and `samples`, one dict for
each training sample. `rollout_data/{rollout_id}.pt` (the rollout side alone): `rollout_id` and `samples`, each the
fields of a `Sample`; miles writes the same, and `metadata` beside it.

Alignment: `tokens` are prompt and response without padding. `log_probs`, `rollout_log_probs`, `loss_mask` and
`advantages` have one entry for each of the last `response_length` tokens; entry i belongs to response token i. Context
parallel slices were gathered and data parallel shards put together when the file was written. A token that no policy
sampled (a tool's answer) has loss mask 0 and `rollout_log_probs` 0.0; a removed sample has loss mask 0 everywhere, or
`remove_sample` in the rollout file. There is no padding and no sentinel of slime's; SGLang's own floor of about
-3.4e38 may come through.

`log_probs` are the trainer's before the update; with --use-rollout-logprobs, or where slime needs no second forward,
they are of the training forward itself, so that in a rollout of several updates those of the later ones come after the
first updates. `rollout_log_probs` are SGLang's after the temperature and, as slime patches it, after top-p; the
trainer does the same to its own. Both are float32. `raw_reward` covers the whole rollout in the order of
`rollout_position`; `rewards` are what it was normalised to. The weight versions stand in the rollout file alone: one
for each call of the engine.

Source: THUDM/slime:slime/observability/train_data_utils.py and rollout_data_utils.py,
docker/patch/latest/sglang-top_p.patch, slime/utils/types.py, slime/ray/rollout.py;
radixark/miles:miles/ray/rollout/debug_data.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onepolicy.dumps.completion_columns import CompletionNames, CompletionRow, entries, recorded, step_of
from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError

TRAIN_NAMES = CompletionNames(
    tokens="tokens",
    loss_mask="loss_masks",
    rollout="rollout_log_probs",
    trainer="log_probs",
    response_length="response_lengths",
    total_length="total_lengths",
)
ROLLOUT_NAMES = CompletionNames(tokens="tokens", loss_mask="loss_mask", rollout="rollout_log_probs", trainer="-")
TOP_P = "Logprobs are after the temperature, and after top-p only if SGLang carries slime's patch for it."
TRAINED_ONLY = "Compared are the tokens with loss mask 1: the file does not say which others were sampled."


def _samples(file: DumpFile) -> dict[str, Any] | None:
    found = file.loaded() if file.kind == "torch" else None
    if isinstance(found, dict) and isinstance(found.get("samples"), list) and "rollout_id" in found:
        return found
    return None


def _is_train(file: DumpFile) -> bool:
    found = _samples(file)
    return found is not None and "format_version" in found


def _is_rollout(file: DumpFile) -> bool:
    found = _samples(file)
    return found is not None and "format_version" not in found


def _train_rows(file: DumpFile) -> Iterator[RecordedRollout | Refusal]:
    found = _samples(file)
    assert found is not None
    if step_of(found["format_version"]) != 2:
        raise DumpError(
            f"{file.name}: format_version {found['format_version']!r}; version 2 is what is read. "
            "Write it again with a slime that saves version 2, or ask for the other version to be added."
        )
    for number, sample in enumerate(found["samples"]):
        where = f"{file.name}, sample {number}"
        if not isinstance(sample, dict):
            yield Refusal(where=where, field="samples", why=f"is a {type(sample).__name__}, where a dict belongs")
            continue
        yield recorded(
            CompletionRow(
                where=where,
                rollout_id=f"{file.label}/{number}",
                fields=sample,
                names=TRAIN_NAMES,
                response_length=sample.get("response_lengths"),
                total_length=sample.get("total_lengths"),
                tags={"source": sample["source_names"]} if isinstance(sample.get("source_names"), str) else {},
                step=found["rollout_id"],
                reward=_reward(sample, found.get("raw_reward")),
            )
        )


def _reward(sample: dict[str, Any], raw: object) -> Any:
    """The raw reward at the sample's place in the rollout; what it was normalised to where there is none."""
    place = sample.get("rollout_position")
    rewards = entries(raw) if raw is not None else None
    if rewards is not None and isinstance(place, int) and rewards.ndim == 1 and 0 <= place < len(rewards):
        return rewards[place]
    return sample.get("rewards")


def _rollout_rows(file: DumpFile) -> Iterator[RecordedRollout | Refusal]:
    found = _samples(file)
    assert found is not None
    for number, sample in enumerate(found["samples"]):
        where = f"{file.name}, sample {number}"
        if not isinstance(sample, dict):
            yield Refusal(where=where, field="samples", why=f"is a {type(sample).__name__}, where a dict belongs")
        elif sample.get("rollout_log_probs") is None:
            yield Refusal(
                where=where,
                field="rollout_log_probs",
                why="is empty: the engine returned no logprobs for this sample (it was aborted, or a custom generate "
                "function does not pass them on). Ask the engine with return_logprob and keep them in the sample",
            )
        else:
            yield recorded(_rollout_row(file, where, number, found["rollout_id"], sample))


def _rollout_row(file: DumpFile, where: str, number: int, step: object, sample: dict[str, Any]) -> CompletionRow:
    group = step_of(sample.get("group_index"))
    return CompletionRow(
        where=where,
        rollout_id=f"{file.label}/{number}",
        fields=sample,
        names=ROLLOUT_NAMES,
        response_length=sample.get("response_length"),
        group=None if group is None else str(group),
        tags={"status": sample["status"]} if isinstance(sample.get("status"), str) else {},
        step=step,
        weight_versions=sample.get("weight_versions"),
        reward=sample.get("reward"),
        trained=sample.get("remove_sample") is not True,
    )


SLIME = Format(
    name="slime",
    title="slime's train_data/{rollout_id}.pt (--dump-details, --save-debug-train-data)",
    recognises=_is_train,
    rows=_train_rows,
    notes=(TOP_P, TRAINED_ONLY),
)
SLIME_ROLLOUT = Format(
    name="slime-rollout",
    title="slime's and miles' rollout_data/{rollout_id}.pt (--dump-details, --save-debug-rollout-data)",
    recognises=_is_rollout,
    rows=_rollout_rows,
    trainer="absent",
    notes=(TOP_P, TRAINED_ONLY),
)
