"""The recorded answers of a real vLLM as a run, for `onepolicy score` and `onepolicy judge`.

    python benchmarks/recording.py RUN [prompts]

Reads `benchmarks/data/vllm_bf16_smollm2_top100.parquet`, or the first of its prompts; needs neither vLLM nor torch.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from onepolicy.records.manifest import Manifest
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingInfo, ReadingRequest, ReadingRow, TopLists
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.run import Run
from onepolicy.records.tokens import Float32, IntArray, TokenState, states_of
from onepolicy.version import VERSION

FILE = Path(__file__).parent / "data" / "vllm_bf16_smollm2_top100.parquet"
ENGINE = "vllm:smollm2?dtype=bfloat16"
TOP, LONGEST = 100, 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """One prompt and what the server answered. C completion tokens."""

    rollout_id: str
    prompt_ids: IntArray
    completion_ids: IntArray
    """[C]"""
    logprobs: Float32
    """[C]"""
    top_ids: IntArray
    """[C, 100] most likely first; the same set whatever token was sampled"""
    top_logprobs: Float32
    """[C, 100]"""

    @property
    def token_ids(self) -> IntArray:
        """Prompt and completion."""
        return np.concatenate([self.prompt_ids, self.completion_ids])


def recorded(prompts: int | None = None) -> list[Recorded]:
    """The recording, or its first prompts."""
    return [_recorded(row) for row in pq.read_table(FILE).slice(0, prompts).to_pylist()]


def write_run(path: Path, rows: list[Recorded]) -> Run:
    """The recording as a run: rollouts, spans and the rollout reading."""
    run = Run.create(path, _manifest(len(rows)))
    run.start_reading(_reading())
    rollouts = [_rollout(row) for row in rows]
    run.write_reading("rollout", [_row(rollout, row) for rollout, row in zip(rollouts, rows, strict=True)])
    run.write_rollouts(rollouts, [_span(row) for row in rows])
    run.complete()
    return run


def _recorded(row: dict[str, list[float]]) -> Recorded:
    sampled = np.array(row["completion_ids"], dtype=np.int32)
    ends = np.cumsum(row["top_count"])[:-1]
    ids = np.split(np.array(row["top_ids"], dtype=np.int32), ends)
    logprobs = np.split(np.array(row["top_logprobs"], dtype=np.float32), ends)
    lists = [_in_order(*one) for one in zip(ids, logprobs, sampled, strict=True)]
    return Recorded(
        rollout_id=f"vllm-{row['prompt_id']:03}",
        prompt_ids=np.array(row["prompt_ids"], dtype=np.int32),
        completion_ids=sampled,
        logprobs=np.array(row["rollout_logprobs"], dtype=np.float32),
        top_ids=np.stack([one for one, _ in lists]),
        top_logprobs=np.stack([one for _, one in lists]),
    )


def _in_order(ids: IntArray, logprobs: Float32, sampled: int) -> tuple[IntArray, Float32]:
    """One list, most likely first, ties by id; without the entry that is there only because it was sampled.

    vLLM puts the sampled token first. Left so, the first 20 entries would depend on it, and the hybrid KL over them
    would be too small by a tenth.
    """
    if len(ids) > TOP:
        ids, logprobs = ids[ids != sampled], logprobs[ids != sampled]
    assert len(ids) == TOP, f"a list has {len(ids)} entries, {TOP} were asked for"
    order = np.lexsort((ids, -logprobs))
    return ids[order], logprobs[order]


def _manifest(rollouts: int) -> Manifest:
    return Manifest(
        tool_version=VERSION,
        status="recording",
        kind="fresh",
        suite=FILE.stem,
        suite_hash=hashlib.sha256(FILE.read_bytes()).hexdigest()[:16],
        protocol=SamplingProtocol(max_new_tokens=LONGEST),
        rollout_engine=ENGINE,
        planned_rollouts=rollouts,
        keeps_text=False,
    )


def _reading() -> ReadingInfo:
    return ReadingInfo(
        name="rollout",
        request=ReadingRequest(engine=ENGINE, path="decode", top=TOP),
        engine=EngineInfo(name="vllm", version="0.32", model="smollm2", dtype="bfloat16"),
        condition=Condition(path="decode"),
        meaning=Meaning(),
        environment={},
    )


def _rollout(row: Recorded) -> Rollout:
    sampled = np.arange(len(row.token_ids)) >= len(row.prompt_ids)
    return Rollout(
        rollout_id=row.rollout_id,
        prompt_id=row.rollout_id,
        trajectory_id=row.rollout_id,
        token_ids=row.token_ids,
        sampled=sampled,
        loss_mask=sampled,
    )


def _span(row: Recorded) -> Span:
    return Span(rollout_id=row.rollout_id, start=len(row.prompt_ids), end=len(row.token_ids))


def _row(rollout: Rollout, row: Recorded) -> ReadingRow:
    prompt = len(row.prompt_ids)
    return ReadingRow(
        rollout_id=row.rollout_id,
        digest=rollout.digest,
        logprobs=np.concatenate([np.full(prompt, np.nan, dtype=np.float32), row.logprobs]),
        states=np.concatenate([np.full(prompt, TokenState.MASKED, dtype=np.uint8), states_of(row.logprobs)]),
        top1=np.concatenate([np.full(prompt, -1, dtype=np.int32), row.top_ids[:, 0]]),
        top=TopLists(
            positions=np.arange(prompt, len(row.token_ids), dtype=np.int32), ids=row.top_ids, logprobs=row.top_logprobs
        ),
    )


if __name__ == "__main__":
    write_run(Path(sys.argv[1]), recorded(*(int(number) for number in sys.argv[2:3])))
