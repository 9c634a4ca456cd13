"""What the mismatch of a run's two readings does to training on it, and what each correction would do."""

from __future__ import annotations

from pydantic import Field

from onepolicy.records.strict import Strict


class Mean(Strict):
    """A mean per token or per rollout with its 95 % interval over prompt groups."""

    value: float
    low: float | None = None
    """None for fewer than two prompt groups"""
    high: float | None = None


class ShiftedClip(Strict):
    """What the clip does to a token that an update has moved to `true_ratio`, because the loss sees d beside it."""

    true_ratio: float
    """current trainer over trainer before the update; 1 is no update yet"""
    is_above: bool
    """the upper bound, which acts on positive advantages; else the lower one, on negative ones"""
    is_let_through: bool
    """the true ratio is beyond the bound and what the loss sees is not; else the reverse: clipped wrongly"""
    share: Mean
    """of the tokens of that side, each moved by so much"""


class Clipping(Strict):
    """Tokens whose ratio is beyond the clip range before any update, where it should be 1.

    Of a loss that divides by the recorded rollout logprobs. One that divides by the trainer's own logprobs before the
    update starts at a ratio of 1 and clips none; the mismatch reaches it through its weights only.
    """

    epsilon_low: float
    epsilon_high: float
    above: Mean
    """share of all tokens above 1 + epsilon_high: without gradient where the advantage is positive"""
    below: Mean
    """share of all tokens below 1 - epsilon_low: without gradient where the advantage is negative"""
    lost: Mean | None = None
    """share of the tokens with an advantage other than 0 that lose their gradient; None without rewards"""
    tokens_by_advantage: dict[str, int] = Field(default_factory=dict)
    """positive, negative, zero, no_reward; empty without rewards"""
    shifted: tuple[ShiftedClip, ...] = ()
    """over tokens of the advantage's sign where there are rewards, else over all"""


class UpdatedSide(Strict):
    """One bound of the clip under a policy that was really updated; shares of the side's tokens."""

    is_above: bool
    clipped: Mean
    """by the true ratio, updated trainer over trainer"""
    wrongly_clipped: Mean
    """by what the loss sees, updated trainer over rollout, and not by the true ratio"""
    wrongly_let_through: Mean
    """by the true ratio, and not by what the loss sees"""


class Updated(Strict):
    """The clip under a recorded reading of the updated policy."""

    reading: str
    tokens: int
    """that have a logprob in all three readings"""
    sides: tuple[UpdatedSide, ...]


class Weights(Strict):
    """Importance weights as they are, without any bound."""

    count: int
    effective_share: float | None
    """Kish's (sum w)^2 / (n sum w^2)"""
    largest_share: float | None
    """of the sum of all weights that the largest one has"""


class Sequences(Strict):
    """Sequence ratios: the product of a rollout's importance ratios, and its geometric mean."""

    product: dict[str, float]
    """quantile -> ratio, p01 to p99"""
    geometric: dict[str, float]
    product_band: tuple[float, float]
    geometric_band: tuple[float, float]
    product_outside: Mean
    """share of rollouts"""
    geometric_outside: Mean


class Replayed(Strict):
    """One correction on the recorded tokens. w is the factor on a token's loss; it is 0 where the token is masked."""

    name: str
    label: str
    verl: str
    """under algorithm.rollout_correction; empty if verl has no such choice"""
    trl: str
    """of GRPOConfig; empty if TRL has no such choice"""
    kept: Mean
    """share of tokens with w > 0"""
    cut: float
    """share of tokens whose weight was cut to a bound"""
    rollouts_kept: float
    """share of rollouts with at least one token kept"""
    rollouts_whole: float
    """share of rollouts with all tokens kept"""
    effective_share: float | None
    """(sum w)^2 / (n sum w^2) over all compared tokens; None if nothing is kept"""
    mean_weight: Mean
    """over all compared tokens; the unbounded weights have the expectation 1"""
    variance: float
    """of w over all compared tokens"""
    token_distance: float
    """mean |w - r|, r the token's importance ratio: bounds the bias of the mean of anything between -1 and 1"""
    sequence_distance: float
    """the same with the product of the rollout's ratios for r"""
    correct_lost: int | None = None
    """rollouts with a reward above 0 of which no token is kept; None without rewards"""
    correct_tokens_lost: float | None = None
    """share of the tokens of rollouts with a reward above 0 that are masked"""


class Impact(Strict):
    """What a mismatch does to training, measured on the tokens of a run before any update."""

    run: str
    rollout_reading: str
    trainer_reading: str
    tokens: int
    """compared: with a logprob on both sides"""
    tokens_missing: int
    """that have none on one side, and are in no number here"""
    rollouts: int
    prompts: int
    """groups; identical rollouts share one"""
    is_sampled: bool
    """the rollout side's logprobs are of what the tokens were sampled from, so that its means are expectations"""
    correct: int | None
    """rollouts with a reward above 0; None without rewards"""
    mean_ratio: Mean
    kl_k1: Mean
    """what a KL term between the two sides shows where it should show 0, nats per token"""
    kl_k2: Mean
    kl_k3: Mean
    token_weights: Weights
    sequence_weights: Weights
    clipping: Clipping
    updated: Updated | None = None
    sequences: Sequences
    corrections: tuple[Replayed, ...]
    notes: tuple[str, ...] = ()
