"""TRL's `{output_dir}/completions/completions_{step}.parquet` (log_completions): text alone.

Columns `step`, `prompt`, `completion` (strings, or lists of messages), one for each reward function, further ones of
the reward functions, `advantage`. There are no ids and no logprobs: it is recognised, and the message says what to
record instead.

Source: huggingface/trl:trl/trainer/grpo_trainer.py (GRPOTrainer.log, 1.16.0).
"""

from __future__ import annotations

from collections.abc import Iterable

from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.file import DumpFile
from onepolicy.errors import DumpError

FIELDS = {"step", "prompt", "completion", "advantage"}
IDS = {"token_ids", "prompt_ids", "completion_ids"}


def _recognises(file: DumpFile) -> bool:
    schema = file.schema()
    return schema is not None and set(schema.names) >= FIELDS and not IDS & set(schema.names)


def _refuse(file: DumpFile) -> Iterable[RecordedRollout | Refusal]:
    raise DumpError(
        f"{file.name}: TRL's completions hold text alone: no token ids and no logprobs, so there is nothing to "
        "compare. `completion` under the name `text` is good for `onepolicy tokens roundtrip`, which says whether text "
        "survives the tokenizer. To compare logprobs, attach onepolicy's monitor to the trainer: it writes the ids and "
        "both sides."
    )


TRL_COMPLETIONS = Format(
    name="trl-completions",
    title="TRL's completions/completions_{step}.parquet: text alone, not to be compared",
    recognises=_recognises,
    rows=_refuse,
    trainer="absent",
)
