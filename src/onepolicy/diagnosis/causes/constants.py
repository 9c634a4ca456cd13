"""One side reads a constant of the architecture otherwise: rotary base and scaling, window, soft cap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from onepolicy.diagnosis.cause import Cause, Experiment, Situation
from onepolicy.diagnosis.respec import side_named, with_options
from onepolicy.diagnosis.tokens import Tokens

ROPE = (
    "rope_theta=10000",
    "rope_theta=500000",
    "rope_theta=1000000",
    "rope_factor=1",
    "rope_factor=4",
    "rope_factor=8",
)
"""the bases of GPT-NeoX and Llama 2, of Llama 3 and of Qwen 2.5; scaling left out or of the usual sizes"""
WINDOW = ("sliding_window=+1", "sliding_window=-1", "sliding_window=1000000000")
"""W keys or W and the token itself; or one that no sequence fills"""
CAPS = ("attn_logit_softcapping=none", "final_logit_softcapping=none")
"""of Gemma 2, which kernels leave out"""
EXPERTS = ("num_experts_per_tok=+1", "num_experts_per_tok=-1")
FADED = 0.8
"""times the first third of the positions that the last one may fall to, for what does not grow less with distance"""


def fades_with_position(tokens: Tokens) -> bool:
    """Whether the sides come nearer to each other along a sequence; of square roots, so that tails do not tell."""
    size = np.sqrt(np.abs(tokens.d))
    low, high = np.quantile(tokens.position, (1 / 3, 2 / 3))
    early, late = size[tokens.position <= low], size[tokens.position > high]
    return bool(len(early) and len(late) and late.mean() < FADED * early.mean())


def experiments(tokens: Tokens, situation: Situation) -> Iterator[Experiment]:
    """The trainer with each constant; those of positions only where distance does not take the difference away."""
    tried = (() if fades_with_position(tokens) else ROPE + WINDOW) + CAPS
    yield from with_constants(CAUSE.name, tried, situation)


def with_constants(cause: str, changes: Sequence[str], situation: Situation) -> Iterator[Experiment]:
    """The trainer with each change of its config; a side that changes it itself, as it is in its folder."""
    trainer = side_named(situation, "trainer")
    if trainer is None or "config" in trainer.spec.options:
        return
    for change in changes:
        yield Experiment(
            cause=cause,
            label=f"the rollout side runs {_words(change)}",
            engine=with_options(trainer.spec, config=change),
            settles=False,
        )


def _words(change: str) -> str:
    name, _, value = change.partition("=")
    if value in ("none", "1000000000"):
        return f"without {name}"
    counted = {"+1": "one more", "-1": "one less"}
    return f"with {name} {counted.get(value, value)}"


CAUSE = Cause(
    name="constants of the model",
    about="one side runs the same weights with another rotary base or scaling, window or soft cap",
    remedy=lambda situation, value: (
        "compare config.json on both sides and what the server overrides (vLLM: --hf-overrides; "
        "its attention backend, for soft caps and windows); one of the two reads the constant otherwise"
    ),
    experiments=experiments,
    needs="the trainer's engine (transformers), to be run with other constants",
)
EXPERTS_CAUSE = Cause(
    name="expert routing",
    about="tokens are sent to other experts on one side",
    remedy=lambda situation, value: (
        "replay the rollout side's routes in the trainer (verl: actor.router_replay; SGLang: "
        "--enable-return-routed-experts), and compare num_experts_per_tok and the router's precision on both sides"
    ),
    experiments=lambda tokens, situation: with_constants("expert routing", EXPERTS, situation),
    needs="the routes that the rollout side took, forced in the trainer; no engine here can be given them",
)
CAUSES = (CAUSE, EXPERTS_CAUSE)
