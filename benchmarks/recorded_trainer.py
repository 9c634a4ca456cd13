"""The trainer side of the recorded rollouts of vLLM, stored so that nothing else needs a model.

    python benchmarks/recorded_trainer.py        (about a minute on two cores; writes benchmarks/data/)

For each prompt, lists over its completion: the logprobs that Transformers gives to the recorded tokens in three
settings, and the hybrid KL from vLLM's top 100 against two of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations import open_engine
from onepolicy.numerics.metrics import kl_hybrid, kl_k3
from onepolicy.records.reading import ReadingRow, TopLists
from onepolicy.records.tokens import Float32
from recording import Recorded, recorded

FILE = Path(__file__).parent / "data" / "vllm_bf16_smollm2_trainer.parquet"
SETTINGS = {
    "float32": "dtype=float32&batch_size=1",
    "bfloat16": "dtype=bfloat16&batch_size=1",
    "float32_padded": "dtype=float32&batch_size=8&padding_side=left",
}
HYBRID = ("float32", "bfloat16")

Array = npt.NDArray[np.float64]


def trainer_columns() -> dict[str, list[Float32]]:
    """Setting, or `hybrid_` and setting -> one list for each recorded rollout. Unit: nats."""
    table = pq.read_table(FILE)
    return {
        name: [np.array(values, dtype=np.float32) for values in table[name].to_pylist()]
        for name in table.column_names
        if name != "prompt_id"
    }


def recorded_sums() -> tuple[Array, dict[str, Array]]:
    """[48] tokens of each rollout, and [48] its KL estimates summed over them, by trainer and estimator."""
    rows, columns = recorded(), trainer_columns()
    sums: dict[str, Array] = {}
    for name in HYBRID:
        pairs = zip(rows, columns[name], strict=True)
        k3 = [kl_k3(trainer_logprobs=q, rollout_logprobs=row.logprobs) for row, q in pairs]
        sums[f"{name} k3"] = np.array([values.sum() for values in k3])
        sums[f"{name} hybrid"] = np.array([values.sum(dtype=np.float64) for values in columns[f"hybrid_{name}"]])
    return np.array([len(row.completion_ids) for row in rows], dtype=np.float64), sums


def main() -> int:
    rows = recorded()
    columns: dict[str, list[Float32]] = {}
    for name, options in SETTINGS.items():
        answers = _scored(rows, options)
        pairs = list(zip(rows, answers, strict=True))
        columns[name] = [_completion(row, answer) for row, answer in pairs]
        if name in HYBRID:
            columns[f"hybrid_{name}"] = [_hybrid(row, answer) for row, answer in pairs]
    arrays = {name: pa.array(values, pa.list_(pa.float32())) for name, values in columns.items()}
    pq.write_table(pa.table({"prompt_id": [row.rollout_id for row in rows], **arrays}), FILE, compression="zstd")
    return 0


def _scored(rows: list[Recorded], options: str) -> list[ReadingRow]:
    engine = open_engine(parse_spec(f"transformers:smollm2?{options}"))
    try:
        return engine.score([_input(row) for row in rows], Wanted())
    finally:
        engine.close()


def _input(row: Recorded) -> ScoreInput:
    prompt, whole = len(row.prompt_ids), len(row.token_ids)
    positions = np.arange(prompt, whole, dtype=np.int32)
    return ScoreInput(
        rollout_id=row.rollout_id,
        token_ids=row.token_ids,
        wanted=np.arange(whole) >= prompt,
        report=TopLists(positions=positions, ids=row.top_ids, logprobs=row.top_logprobs),
    )


def _completion(row: Recorded, answer: ReadingRow) -> Float32:
    return answer.logprobs[len(row.prompt_ids) :]


def _hybrid(row: Recorded, answer: ReadingRow) -> Float32:
    assert answer.top is not None
    values = kl_hybrid(
        trainer_top=answer.top.logprobs,
        rollout_top=row.top_logprobs,
        sampled_in_top=(row.top_ids == row.completion_ids[:, None]).any(axis=1),
        k3=kl_k3(trainer_logprobs=_completion(row, answer), rollout_logprobs=row.logprobs),
    )
    return values.astype(np.float32)


if __name__ == "__main__":
    sys.exit(main())
