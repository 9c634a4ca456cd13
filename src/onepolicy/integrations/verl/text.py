"""What verl and msprobe write that cannot be compared: it is recognised, and the message says what to record instead.

`trainer.rollout_data_dir/{step}.jsonl` (and trainer.validation_data_dir): one object for each rollout with `input`,
`output`, `gts`, `score` and `step`; text that was decoded without its special tokens, no ids and no logprobs.
`prob_diff_step_{step}.npy` and `prob_mask_step_{step}.npy` of msprobe: |exp(trainer) - exp(rollout)| [B, R] float32, 0
at padding, and where it is valid.

Source: verl-project/verl:verl/trainer/ppo/ray_trainer.py (_log_rollout_data, _write_generations), msprobe's
documentation of its rollout probability differences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError

JSONL_FIELDS = {"input", "output", "score", "step"}
RECORD = (
    "To compare logprobs, run verl with actor_rollout_ref.rollout.calculate_log_probs=true and save the batch with "
    "DataProto.save_to_disk once it has rollout_log_probs and old_log_probs; `onepolicy import` reads that file."
)


def _is_jsonl(file: DumpFile) -> bool:
    first = file.first()
    return first is not None and first.keys() >= JSONL_FIELDS and not first.keys() & {"token_ids", "completion_ids"}


def _refuse_jsonl(file: DumpFile) -> Iterable[RecordedRollout | Refusal]:
    raise DumpError(
        f"{file.name}: verl's rollout_data_dir holds text alone: no token ids and no logprobs, and the special tokens "
        "are stripped, so there is nothing to compare. Its `output` under the name `text` is good for `onepolicy "
        f"tokens roundtrip`, which says whether text survives the tokenizer. {RECORD}"
    )


def _is_msprobe(file: DumpFile) -> bool:
    return file.kind == "numpy" and re.search(r"prob_(diff|mask)_step_\w+\.npy", file.name) is not None


def _refuse_msprobe(file: DumpFile) -> Iterable[RecordedRollout | Refusal]:
    raise DumpError(
        f"{file.name}: msprobe keeps |p_trainer - p_rollout| without its sign, the token ids or either logprob. No "
        "log-ratio, KL or importance ratio follows from it: 0.001 is nothing at p = 0.9 and a factor of ten at "
        f"p = 0.0001. {RECORD}"
    )


VERL_JSONL = Format(
    name="verl-jsonl",
    title="verl's trainer.rollout_data_dir/{step}.jsonl: text alone, not to be compared",
    recognises=_is_jsonl,
    rows=_refuse_jsonl,
    trainer="absent",
)
VERL_MSPROBE = Format(
    name="verl-msprobe",
    title="msprobe's prob_diff_step_{step}.npy: differences without a sign, not to be compared",
    recognises=_is_msprobe,
    rows=_refuse_msprobe,
    trainer="absent",
)
