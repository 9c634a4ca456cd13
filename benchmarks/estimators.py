"""Estimators of KL(rollout || trainer) against the exact value, and on what a real vLLM recorded.

    python benchmarks/estimators.py [prompts]        (about a minute on two cores for all 48)

The contexts are those of `benchmarks/data/`. In the first table Transformers bfloat16 is the rollout policy and float32
the trainer; both full distributions are at hand. At every position tokens are drawn from the rollout distribution, so
that the sampling error is small and a bias would show. In the second table vLLM is the rollout policy, with the tokens
and the top lists that it returned; the exact KL is unknown, and the unbiased estimators must agree with each other.

Each row: mean per token, share of the reference (the exact KL, or hybrid-100), error of that share over prompts, z of
its difference from 1, coefficient of variation per token. Exit status 1 if an unbiased one is off by more than 3
errors, or a bucket bound is not below the reference by 3.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onepolicy.engines.spec import parse_spec
from onepolicy.integrations.transformers.engine import TransformersEngine
from onepolicy.numerics.metrics import kl_exact, kl_hybrid, kl_k1, kl_k2, kl_k3, kl_top_k_bucket
from recording import Recorded, recorded

Array = npt.NDArray[np.floating]
DRAWS, TOP = 32, (20, 100)
UNBIASED = ("k1", "k3", "hybrid-20", "hybrid-100")
FAR = 3.0
"""errors"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """One recorded prompt with the full distributions of Transformers at its C completion tokens."""

    row: Recorded
    bfloat16: Array
    """[C, V] logprobs"""
    float32: Array
    """[C, V] logprobs"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One estimator held against a reference."""

    mean: float
    """nats per token"""
    share: float
    """of the reference"""
    error: float
    """of the share, over prompts"""
    variation: float
    """coefficient of variation per token"""

    @property
    def z(self) -> float:
        """How many errors the share is from 1."""
        return (self.share - 1) / self.error if self.error else 0.0


def main() -> int:
    prompts = int(sys.argv[1]) if len(sys.argv) > 1 else None
    drawn, served = tables(scored(prompts))
    print("Transformers bfloat16 against float32; the reference is the exact KL")
    _print(drawn)
    print("\nvLLM bfloat16, its own tokens and top lists, against Transformers float32; the reference is hybrid-100")
    _print(served)
    return 0 if holds(drawn) and holds(served) else 1


def scored(prompts: int | None = None) -> Iterator[Scored]:
    """The recorded prompts, one at a time: two distributions of one take 100 MB."""
    engines = [
        TransformersEngine.open(parse_spec(f"transformers:smollm2?dtype={dtype}&batch_size=1"))
        for dtype in ("bfloat16", "float32")
    ]
    for row in recorded(prompts):
        bfloat16, float32 = (_logprobs(engine, row) for engine in engines)
        yield Scored(row=row, bfloat16=bfloat16, float32=float32)


def tables(prompts: Iterable[Scored]) -> tuple[dict[str, Row], dict[str, Row]]:
    """Estimator -> its row: with drawn tokens against the exact KL, with vLLM's against hybrid-100."""
    rng = np.random.default_rng(0)
    drawn, served = list[dict[str, Array]](), list[dict[str, Array]]()
    for prompt in prompts:
        drawn.append(_of_drawn_tokens(prompt, rng))
        served.append(_of_recorded_tokens(prompt))
    return _held_against("exact", drawn), _held_against("hybrid-100", served)


def holds(table: dict[str, Row]) -> bool:
    """Whether each unbiased estimator is where it must be, and each bucket bound below."""
    unbiased = all(abs(table[name].z) <= FAR for name in UNBIASED)
    return unbiased and all(row.z < -FAR for name, row in table.items() if name.startswith("bucket"))


def _logprobs(engine: TransformersEngine, row: Recorded) -> Array:
    import torch  # noqa: PLC0415 - after the engine, which sees to it that waiting threads sleep

    ids = torch.from_numpy(row.token_ids.astype(np.int64))[None]
    with torch.no_grad():
        logits = engine._loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    logprobs: Array = logits[len(row.prompt_ids) - 1 : -1].double().log_softmax(-1).numpy()
    return logprobs


def _of_drawn_tokens(prompt: Scored, rng: np.random.Generator) -> dict[str, Array]:
    """Each estimator for every position and draw, [C, DRAWS]."""
    p, q = prompt.bfloat16, prompt.float32
    at, drawn = np.arange(len(p))[:, None], _draw(p, rng)
    found = _of_tokens(p[at, drawn], q[at, drawn])
    order = _most_likely(p, max(TOP))
    found |= _of_lists(order, p[at, order], q[at, order], drawn, found["k3"])
    exact = kl_exact(trainer_distribution=q, rollout_distribution=p)
    return {"exact": np.repeat(exact[:, None], DRAWS, axis=1), **found}


def _of_recorded_tokens(prompt: Scored) -> dict[str, Array]:
    """The same for the token that vLLM sampled, [C, 1]."""
    row, q = prompt.row, prompt.float32
    at, sampled = np.arange(len(q))[:, None], row.completion_ids[:, None]
    found = _of_tokens(row.logprobs[:, None], q[at, sampled].astype(np.float32))
    trainer_top = q[at, row.top_ids].astype(np.float32)
    return found | _of_lists(row.top_ids, row.top_logprobs, trainer_top, sampled, found["k3"])


def _draw(p: Array, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    """[C, V] -> [C, DRAWS] tokens drawn from each distribution."""
    running = np.exp(p).cumsum(axis=1)
    points = rng.random((len(p), DRAWS)) * running[:, -1:]
    return np.stack([np.searchsorted(*one, side="right") for one in zip(running, points, strict=True)])


def _most_likely(p: Array, k: int) -> npt.NDArray[np.intp]:
    """[C, V] -> [C, k] tokens, most likely first."""
    found = np.argpartition(p, -k, axis=1)[:, -k:]
    return np.take_along_axis(found, np.argsort(-np.take_along_axis(p, found, axis=1), axis=1), axis=1)


def _of_tokens(p: Array, q: Array) -> dict[str, Array]:
    sides = {"rollout_logprobs": p, "trainer_logprobs": q}
    return {"k1": kl_k1(**sides), "k2": kl_k2(**sides), "k3": kl_k3(**sides)}


def _of_lists(
    ids: npt.NDArray[np.integer], p: Array, q: Array, tokens: npt.NDArray[np.integer], k3: Array
) -> dict[str, Array]:
    """Of lists in order, [C, 100], and tokens [C, D] -> [C, D]."""
    found = {}
    for k in TOP:
        tops = {"rollout_top": p[:, :k], "trainer_top": q[:, :k]}
        inside = (tokens[:, :, None] == ids[:, None, :k]).any(axis=2)
        hybrid = [kl_hybrid(**tops, sampled_in_top=inside[:, d], k3=k3[:, d]) for d in range(tokens.shape[1])]
        found[f"hybrid-{k}"] = np.stack(hybrid, axis=1)
        found[f"bucket-{k}"] = np.repeat(kl_top_k_bucket(**tops)[:, None], tokens.shape[1], axis=1)
    return found


def _held_against(reference: str, prompts: list[dict[str, Array]]) -> dict[str, Row]:
    lengths = np.array([len(columns[reference]) for columns in prompts], dtype=np.float64)
    sums = {name: np.array([columns[name].mean(axis=1).sum() for columns in prompts]) for name in prompts[0]}
    total = float(sums[reference].sum())
    rows = {}
    for name, values in sums.items():
        every = np.concatenate([columns[name].ravel() for columns in prompts])
        rows[name] = Row(
            mean=float(values.sum() / lengths.sum()),
            share=float(values.sum()) / total,
            error=_error(values - sums[reference], lengths) * float(lengths.sum()) / total,
            variation=float(every.std() / abs(every.mean())),
        )
    return rows


def _error(sums: Array, lengths: Array) -> float:
    """Of sum(sums) / sum(lengths), over prompts."""
    residual = sums - lengths * sums.sum() / lengths.sum()
    m = len(sums)
    return float(np.sqrt(m / (m - 1) * (residual**2).sum()) / lengths.sum())


def _print(table: dict[str, Row]) -> None:
    print("estimator     nats per token   share   error      z    CV per token")
    for name, row in table.items():
        print(f"{name:12s}  {row.mean:14.3e}  {row.share:6.3f}  {row.error:6.3f}  {row.z:+5.1f}  {row.variation:14.1f}")


if __name__ == "__main__":
    sys.exit(main())
