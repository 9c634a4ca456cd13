"""Every framework-native number: its name on the dashboard, what it is, what to beware of. docs/reconcile.md shows it.

`d` = trainer - rollout. A formula that begins with a name in backticks is that reduction of `numerics/table.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from onepolicy.numerics.native.sums import NativeSums

Native: TypeAlias = "tuple[str, str, Callable[[NativeSums], float]]"
"""formula, caveat, function"""

_VERL: dict[str, Native] = {
    "rollout_corr/kl": (
        "`k1`: token mean of -d",
        "opposite sign of AReaL and torchtitan; can be negative",
        lambda s: -s.tokens["d"].mean,
    ),
    "rollout_corr/k3_kl": ("`k3`: token mean of exp(d) - 1 - d", "not clamped", lambda s: s.tokens["k3"].mean),
    "rollout_corr/log_ppl_diff": (
        "rollout mean of -(mean d)",
        "opposite sign of d, and of verl's documentation",
        lambda s: -s.rollouts["d"].mean,
    ),
    "rollout_corr/log_ppl_abs_diff": (
        "rollout mean of |mean d|",
        "absolute value of a rollout's mean, not of its tokens",
        lambda s: s.rollouts["abs_mean_d"].mean,
    ),
    "rollout_corr/log_ppl_diff_max": (
        "largest -(mean d) of a rollout",
        "opposite sign of d",
        lambda s: -s.rollouts["d"].smallest,
    ),
    "rollout_corr/log_ppl_diff_min": (
        "smallest -(mean d) of a rollout",
        "opposite sign of d",
        lambda s: -s.rollouts["d"].largest,
    ),
    "rollout_corr/ppl_ratio": (
        "rollout mean of exp(-(mean d))",
        "inverse of the geometric importance ratio; documented as exp of the mean",
        lambda s: s.rollouts["inverse_geometric_ratio"].mean,
    ),
    "rollout_corr/chi2_token": (
        "token mean of exp(2 d), minus 1",
        "d clamped to 20 nats",
        lambda s: s.tokens["clamped_ratio_squared"].mean - 1,
    ),
    "rollout_corr/chi2_seq": (
        "rollout mean of exp(2 sum of d), minus 1",
        "sum clamped to 20 nats; product ratio (ms-swift shows the geometric one under this name)",
        lambda s: s.rollouts["clamped_ratio_squared"].mean - 1,
    ),
    "rollout_corr/training_ppl": (
        "rollout mean of exp(-(mean trainer logprob))",
        "one side only",
        lambda s: s.rollouts["trainer_ppl"].mean,
    ),
    "rollout_corr/training_log_ppl": (
        "rollout mean of -(mean trainer logprob)",
        "one side only",
        lambda s: s.rollouts["trainer_log_ppl"].mean,
    ),
    "rollout_corr/rollout_ppl": (
        "rollout mean of exp(-(mean rollout logprob))",
        "one side only",
        lambda s: s.rollouts["rollout_ppl"].mean,
    ),
    "rollout_corr/rollout_log_ppl": (
        "rollout mean of -(mean rollout logprob)",
        "one side only",
        lambda s: s.rollouts["rollout_log_ppl"].mean,
    ),
    "training/rollout_probs_diff_mean": (
        "`mean_probability_difference`: token mean of |exp(trainer) - exp(rollout)|",
        "probability, not logprob (its docstring says logprob)",
        lambda s: s.tokens["probability_difference"].mean,
    ),
    "training/rollout_probs_diff_max": (
        "`max_probability_difference`: largest |exp(trainer) - exp(rollout)|",
        "probability, not logprob",
        lambda s: s.tokens["probability_difference"].largest,
    ),
    "training/rollout_probs_diff_std": (
        "standard deviation over tokens of |exp(trainer) - exp(rollout)|",
        "probability, not logprob; N - 1 below",
        lambda s: s.moments.deviation("probability_difference"),
    ),
    "training/rollout_actor_probs_pearson_corr": (
        "Pearson correlation of exp(trainer) and exp(rollout)",
        "of probabilities (our `correlation` is of logprobs)",
        lambda s: s.moments.correlation("rollout_probability", "trainer_probability"),
    ),
}

_TRL: dict[str, Native] = {
    "sampling/sampling_logp_difference/mean": (
        "`mean_abs_d`: token mean of |d|",
        "per rank, then mean of the ranks without weights (here: one rank); leaves out NaN",
        lambda s: s.tokens["abs_d"].mean,
    ),
    "sampling/sampling_logp_difference/max": (
        "`max_abs_d`: largest |d|",
        "leaves out NaN",
        lambda s: s.tokens["abs_d"].largest,
    ),
}

_NEMO: dict[str, Native] = {
    "train/token_mult_prob_error": (
        "token mean of exp(|d|)",
        "at least 1; the tail dominates",
        lambda s: s.tokens["exp_abs_d"].mean,
    ),
    "train/gen_kl_error": (
        "`k3`: token mean of exp(d) - 1 - d",
        "another estimator if reference_policy_kl_type is not k3",
        lambda s: s.tokens["k3"].mean,
    ),
    "train/policy_kl_error": (
        "token mean of exp(-d) - 1 + d",
        "roles swapped on rollout samples: no KL(trainer || rollout); same option as gen_kl_error",
        lambda s: s.tokens["k3_swapped"].mean,
    ),
    "train/js_divergence_error": (
        "token mean of ln cosh(d / 2)",
        "sampled token only: no Jensen-Shannon divergence",
        lambda s: s.tokens["log_cosh"].mean,
    ),
    "train/sampling_importance_ratio": (
        "`mean_importance_ratio`: token mean of exp(d)",
        "after truncation, if that is on (here: without); NaN and infinite count as 0",
        lambda s: s.tokens["ratio"].mean,
    ),
}

_SLIME: dict[str, Native] = {
    "train/train_rollout_logprob_abs_diff": (
        "rollout mean of mean |d|",
        "sequence mean: a short rollout weighs as much as a long one; token mean with --calculate-per-token-loss",
        lambda s: s.rollouts["abs_d"].mean,
    ),
}

_MILES: dict[str, Native] = {
    "train/train_rollout_logprob_abs_diff": (
        "rollout mean of mean |d|",
        "sequence mean; hides NaN and infinite as 0",
        lambda s: s.rollouts["abs_d"].mean,
    ),
    "train/train_rollout_kl": (
        "rollout mean of mean k3",
        "sequence mean; k3 of a token clamped to 10; hides NaN as 0",
        lambda s: s.rollouts["clamped_k3"].mean,
    ),
}

_PRIME: dict[str, Native] = {
    "mismatch_kl/all/mean": (
        "`k3`: token mean of exp(d) - 1 - d",
        "its trainer side is the current policy: includes staleness; older versions: mean of sequence means",
        lambda s: s.tokens["k3"].mean,
    ),
    "mismatch_kl/all/std": (
        "standard deviation over tokens of k3",
        "likewise; N - 1 below",
        lambda s: s.moments.deviation("k3"),
    ),
    "mismatch_kl/all/max": ("largest k3 of a token", "likewise", lambda s: s.tokens["k3"].largest),
}

_AREAL: dict[str, Native] = {
    "behave_approx_kl": (
        "`mean_d`: token mean of d",
        "opposite sign of verl; over the tokens left after rejection (here: all)",
        lambda s: s.tokens["d"].mean,
    ),
    "behave_imp_weight": (
        "`mean_importance_ratio`: token mean of exp(d)",
        "after clamp and rejection (here: without); hides NaN as weight 1",
        lambda s: s.tokens["ratio"].mean,
    ),
}

_OPENRLHF: dict[str, Native] = {
    "vllm_kl": (
        "`k1`: token mean of -d",
        "per micro-batch, then their mean (here: one); shown only with correction on",
        lambda s: -s.tokens["d"].mean,
    ),
}

_TORCHTITAN: dict[str, Native] = {
    "bit_wise/logprob_diff/mean": (
        "`mean_d`: token mean of d",
        "signed: cancels; opposite sign of verl; NaN counts as 0",
        lambda s: s.tokens["d"].mean,
    ),
    "bit_wise/logprob_diff/max": (
        "`max_abs_d`: largest |d|",
        "absolute, though its mean is signed",
        lambda s: s.tokens["abs_d"].largest,
    ),
    "bit_wise/ratio_tokens_different/mean": (
        "share of tokens with |d| above 1e-6",
        "not bitwise, despite its name; older versions count any difference",
        lambda s: s.tokens["different"].mean,
    ),
}

_TINKER: dict[str, Native] = {
    "optim/kl_sample_train_v1": (
        "`k1`: token mean of -d",
        "opposite sign of d; can be negative",
        lambda s: -s.tokens["d"].mean,
    ),
    "optim/kl_sample_train_v2": ("`k2`: token mean of d squared over two", "biased", lambda s: s.tokens["k2"].mean),
}

NATIVE: dict[str, dict[str, Native]] = {
    "verl": _VERL,
    "TRL": _TRL,
    "NeMo-RL": _NEMO,
    "slime": _SLIME,
    "miles": _MILES,
    "prime-rl": _PRIME,
    "AReaL": _AREAL,
    "OpenRLHF": _OPENRLHF,
    "torchtitan": _TORCHTITAN,
    "Tinker": _TINKER,
}
"""framework -> name on its dashboard -> (formula, caveat, function)"""

SOURCES: dict[str, tuple[str, ...]] = {
    "verl": (
        "verl-project/verl:verl/trainer/ppo/rollout_corr_helper.py",
        "verl-project/verl:verl/utils/debug/metrics.py",
    ),
    "TRL": ("huggingface/trl:trl/trainer/grpo_trainer.py",),
    "NeMo-RL": ("NVIDIA-NeMo/RL:nemo_rl/algorithms/loss/loss_functions.py",),
    "slime": ("THUDM/slime:slime/backends/megatron_utils/loss.py",),
    "miles": (
        "radixark/miles:miles/backends/training_utils/loss_hub/losses.py",
        "radixark/miles:miles/utils/ppo_utils.py",
    ),
    "prime-rl": (
        "PrimeIntellect-ai/prime-rl:src/prime_rl/trainer/rl/loss.py",
        "PrimeIntellect-ai/prime-rl:src/prime_rl/trainer/utils.py",
    ),
    "AReaL": ("inclusionAI/AReaL:areal/utils/functional/functional.py",),
    "OpenRLHF": ("OpenRLHF/OpenRLHF:openrlhf/models/loss.py",),
    "torchtitan": ("pytorch/torchtitan:torchtitan/experiments/rl",),
    "Tinker": ("thinking-machines-lab/tinker-cookbook:tinker_cookbook/rl/metrics.py",),
}
"""framework -> where its formulas are, owner/name:path"""
