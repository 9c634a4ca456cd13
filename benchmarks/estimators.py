"""Estimators of KL(rollout || trainer) against the exact value, on a real pair.

    python benchmarks/estimators.py [prompts]        (about two minutes on two cores for 16)

Transformers bfloat16 is the rollout policy, float32 the trainer; both full distributions are at hand. Completions are
sampled once; then, at every position, tokens are drawn from the rollout distribution, so that the sampling error is
small and a bias would show. Prints each estimator's mean with its error over prompts, as a share of the exact KL, and
its coefficient of variation per token. Exit status 1 if an unbiased one is off by more than 3 errors, or the bucket
bound exceeds the truth.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from onepolicy.engines.contract import SampleInput, Wanted
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations.transformers.engine import TransformersEngine
from onepolicy.numerics.metrics import kl_exact, kl_hybrid, kl_k1, kl_k2, kl_k3, kl_top_k_bucket
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.suites import load_suite

Array = npt.NDArray[np.floating]
DRAWS, LENGTH, TOP = 32, 48, (20, 100)
UNBIASED = ("k1", "k3", "hybrid-20", "hybrid-100")


def main() -> int:
    prompts = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    rng = np.random.default_rng(0)
    columns: dict[str, list[Array]] = {}
    for p, q in _distributions(prompts):
        for name, values in _estimates(p, q, rng).items():
            columns.setdefault(name, []).append(values)
    exact = np.concatenate([values.ravel() for values in columns["exact"]]).mean()
    broken = False
    print(
        f"exact KL {exact:.4g} nats per token over {prompts} prompts\n\n"
        "estimator     share of exact     error    CV per token"
    )
    for name, rows in columns.items():
        means = np.array([v.mean() for v in rows]) - np.array([v.mean() for v in columns["exact"]])
        share, error = 1 + means.mean() / exact, means.std(ddof=1) / np.sqrt(len(means)) / exact
        every = np.concatenate([v.ravel() for v in rows])
        print(f"{name:12s}  {share:14.3f}  {error:8.3f}  {every.std() / abs(every.mean()):14.1f}")
        broken |= name in UNBIASED and abs(share - 1) > 3 * error
        broken |= name.startswith("bucket") and share > 1
    return 1 if broken else 0


def _distributions(prompts: int) -> Iterator[tuple[Array, Array]]:
    """[T, V] logprobs of both sides, for one sampled completion after the other."""
    rollout, trainer = (
        TransformersEngine.open(parse_spec(f"transformers:smollm2?dtype={dtype}&batch_size=1"))
        for dtype in ("bfloat16", "float32")
    )
    protocol = SamplingProtocol(max_new_tokens=LENGTH)
    for number, prompt in enumerate(load_suite("quick").prompts[:prompts]):
        asked = SampleInput(rollout_id=prompt.id, prompt_ids=rollout.encode_chat(prompt.messages), seed=number)
        (completion,) = rollout.sample([asked], protocol, Wanted())
        ids = torch.from_numpy(np.concatenate([asked.prompt_ids, completion.token_ids]).astype(np.int64))[None]
        positions = slice(len(asked.prompt_ids) - 1, -1)
        yield _logprobs(rollout, ids)[positions], _logprobs(trainer, ids)[positions]


@torch.no_grad()
def _logprobs(engine: TransformersEngine, ids: torch.Tensor) -> Array:
    logits = engine._loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0].double()
    logprobs: Array = logits.log_softmax(-1).numpy()
    return logprobs


def _estimates(p: Array, q: Array, rng: np.random.Generator) -> dict[str, Array]:
    """Each estimator for every position and draw, [T] or [T, DRAWS]."""
    found = {"exact": kl_exact(trainer_distribution=q, rollout_distribution=p)}
    drawn = np.stack([rng.choice(p.shape[1], DRAWS, p=np.exp(row) / np.exp(row).sum()) for row in p])
    at = np.arange(len(p))[:, None]
    sides = {"rollout_logprobs": p[at, drawn], "trainer_logprobs": q[at, drawn]}
    found |= {"k1": kl_k1(**sides), "k2": kl_k2(**sides), "k3": kl_k3(**sides)}
    order = np.argsort(-p, axis=1)
    for k in TOP:
        ids = order[:, :k]
        tops = {"rollout_top": p[at, ids], "trainer_top": q[at, ids]}
        found[f"bucket-{k}"] = kl_top_k_bucket(**tops)
        inside = (drawn[:, :, None] == ids[:, None, :]).any(axis=2)
        columns = [kl_hybrid(**tops, sampled_in_top=inside[:, d], k3=found["k3"][:, d]) for d in range(DRAWS)]
        found[f"hybrid-{k}"] = np.stack(columns, axis=1)
    return found


if __name__ == "__main__":
    sys.exit(main())
