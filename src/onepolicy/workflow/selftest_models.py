"""Faults of the model: other weights, or the same ones under another constant."""

from __future__ import annotations

from onepolicy.workflow.selftest_fault import Fault
from onepolicy.workflow.selftest_sampling import HALF


def faults() -> tuple[Fault, ...]:
    """All of them."""
    return (*_weights(), *_constants())


def _weights() -> tuple[Fault, ...]:
    """The rollout side has other weights."""
    older = {"step 0": "transformers:{older}"}
    return (
        Fault(
            name="stale weights",
            right=("stale weights",),
            large=0.05,
            says="weights moved by {value:.2g} of their spread",
            rollout="transformers:{older}",
            weights=older,
        ),
        Fault(
            name="LM head not synced",
            right=("partly synced weights",),
            large=0.05,
            says="head moved by {value:.2g} of its spread",
            rollout="transformers:{llama}?replaced=lm_head={older}",
            weights=older,
            own_head=True,
        ),
        Fault(
            name="adapter missing",
            right=("adapter",),
            large=1.0,
            says="{value:.2g} of an adapter",
            trainer="transformers:{llama}?adapter={adapter}",
        ),
        Fault(
            name="adapter on the rollout side alone",
            right=("adapter",),
            large=1.0,
            says="{value:.2g} of an adapter",
            rollout="transformers:{llama}?adapter={adapter}",
        ),
        Fault(
            name="adapter merged in bfloat16",
            right=("adapter merged in low precision",),
            large=1.0,
            says="attention of strength {value:.2g}",
            rollout="transformers:{weak}?adapter={weak_adapter}&merged=bfloat16",
            trainer="transformers:{weak}?adapter={weak_adapter}",
        ),
        Fault(
            name="vocabulary padding",
            right=("vocabulary padding",),
            large=1.0 / 4.0,
            value=lambda s: max(1.0, float(round(4096 * s))),
            says="{value:.0f} rows without a token",
            rollout=f"transformers:{{llama}}?{HALF}",
            trainer="transformers:{padded}",
        ),
    )


def _constants() -> tuple[Fault, ...]:
    """The rollout side runs the same weights under another constant."""
    return tuple(
        Fault(
            name=name,
            right=(right,),
            large=1.0,
            says=f"{change.replace('%2B', '+')}, {what} of strength {{value:.2g}}",
            rollout=f"transformers:{{{model}}}?attn=eager&config={change}",
            trainer=f"transformers:{{{model}}}?attn=eager",
        )
        for name, right, model, change, what in (
            ("rotary base", "constants of the model", "weak", "rope_theta=500000", "attention"),
            ("rotary scaling", "constants of the model", "weak", "rope_factor=4", "attention"),
            ("sliding window", "constants of the model", "gemma", "sliding_window=%2B1", "attention"),
            ("soft cap", "constants of the model", "gemma", "attn_logit_softcapping=none", "attention"),
            ("expert routing", "expert routing", "experts", "num_experts_per_tok=-1", "experts"),
        )
    )
