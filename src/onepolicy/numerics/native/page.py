"""docs/reconcile.md, written from the table."""

from __future__ import annotations

from onepolicy.numerics.native.table import NATIVE, SOURCES

_HEAD = """# Reconcile with a dashboard

<!-- written by onepolicy.numerics.native.reconcile_page; change src/onepolicy/numerics/native/table.py instead -->

The number that a framework's dashboard shows, from the tokens of a judged pair. `d` = trainer - rollout, in nats. A
formula that begins with a name has the same value as that row of [metrics.md](metrics.md). "Token mean" weighs every
token alike, "rollout mean" averages the rollouts' own means.

| framework | dashboard name | ours | caveat |
|---|---|---|---|
"""

_TAIL = """
## Worked example

Two rollouts. The first has two tokens: the rollout policy gave them 0.5 and 0.8, the trainer 0.25 and 0.8, so `d` is
-ln 2 = -0.6931 and 0. The second has one: 0.2 and 0.6, so `d` is ln 3 = 1.0986.

| what | calculation | shown by | value |
|---|---|---|---|
| signed | -(-0.6931 + 0 + 1.0986) / 3 | verl `rollout_corr/kl`, OpenRLHF `vllm_kl` | -0.1352 |
| opposite sign | (-0.6931 + 0 + 1.0986) / 3 | torchtitan `bit_wise/logprob_diff/mean` | 0.1352 |
| token mean | (0.6931 + 0 + 1.0986) / 3 | TRL `sampling/sampling_logp_difference/mean` | 0.5973 |
| rollout mean | ((0.6931 + 0) / 2 + 1.0986) / 2 | slime `train/train_rollout_logprob_abs_diff` | 0.7226 |
| of probabilities | (0.25 + 0 + 0.4) / 3 | verl `training/rollout_probs_diff_mean` | 0.2167 |
| multiplicative | (2 + 1 + 3) / 3 | NeMo-RL `train/token_mult_prob_error` | 2.0000 |

## If the numbers still differ

* **Tokens.** A dashboard averages over its loss mask; we over the tokens that were sampled and have a logprob on both
  sides. Rollouts that the trainer masks out are compared here and not there.
* **Batches.** A number that is a mean of means over ranks or micro-batches is computed here as on one rank with one
  batch.
* **Corrections.** Importance weights after truncation, masks and rejection depend on the trainer's settings; the
  numbers here are before them.
* **Precision.** Frameworks compute in float32, which shows infinity where `d` is above 88; we in float64.
* **Which trainer.** prime-rl and Tinker compare with the policy as it is being trained, others with the one that
  recomputed the logprobs before the update.
* **Gaps.** Where a framework fills in a missing or infinite value, we leave the token out and count it
  (`coverage`, `valid_logprobs`).

## Where the formulas are

"""


def reconcile_page() -> str:
    """docs/reconcile.md, as it should be."""
    rows = [
        f"| {framework} | `{name}` | {_cell(formula)} | {_cell(caveat)} |"
        for framework, metrics in NATIVE.items()
        for name, (formula, caveat, _) in metrics.items()
    ]
    sources = [f"* {framework}: {', '.join(f'`{path}`' for path in paths)}" for framework, paths in SOURCES.items()]
    return _HEAD + "\n".join(rows) + "\n" + _TAIL + "\n".join(sources) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
