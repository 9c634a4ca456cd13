"""Faults of calls and values: a sound model is called wrongly, reads another context, or its values are misplaced."""

from __future__ import annotations

from onepolicy.records.selftest import Way
from onepolicy.workflow.selftest_fault import ONLY_LARGE, SYSTEM, Fault, inverse

WHOLE_BATCH = "batch_size=8&padding_side=left"
WEAK = "transformers:{weak}"
FLAT = "transformers:{flat}"
BEGUN = "transformers:{begun}"


def faults() -> tuple[Fault, ...]:
    """All of them."""
    return (*_calls(), *_contexts(), *_values())


def _calls() -> tuple[Fault, ...]:
    """One side calls its model otherwise; both read tokens of a sound one."""
    gpt2 = "transformers:{gpt2}"
    return (
        Fault(
            name="no attention mask",
            right=("attention mask",),
            large=1.0,
            says="attention of strength {value:.2g}",
            sampled=WEAK,
            rollout=f"{WEAK}?mask=none&{WHOLE_BATCH}",
            trainer=WEAK,
        ),
        Fault(
            name="no position ids",
            right=("position ids",),
            large=1.0,
            says="positions of strength {value:.2g}",
            sampled=gpt2,
            rollout=f"{gpt2}?positions=none&{WHOLE_BATCH}",
            trainer=gpt2,
        ),
        Fault(
            name="train mode",
            right=("train mode",),
            large=0.1,
            says="dropout {value:.2g}",
            sizes=ONLY_LARGE,
            sampled="transformers:{dropping}",
            rollout="transformers:{dropping}",
            trainer="transformers:{dropping}?mode=train",
        ),
        Fault(
            name="packed without walls",
            right=("packing", "batch"),
            large=1.0,
            says="attention of strength {value:.2g}",
            way=Way.FUNCTION,
            sampled=WEAK,
            rollout=WEAK,
            trainer=WEAK,
            function="packed_without_walls",
        ),
        Fault(
            name="prefix cache of older weights",
            right=(),
            large=0.05,
            says="weights moved by {value:.2g} of their spread",
            way=Way.FUNCTION,
            sampled="transformers:{llama}",
            function="older_cache",
        ),
    )


def _contexts() -> tuple[Fault, ...]:
    """One side reads another beginning."""
    begun = {"sampled": BEGUN, "rollout": BEGUN, "trainer": BEGUN, "has_system": True}
    says = "attention of strength {value:.2g}"
    return tuple(
        Fault(
            name=name,
            right=(right,),
            large=1.0,
            says=says,
            way=Way.FUNCTION,
            function=function,
            argument=argument,
            **begun,  # type: ignore[arg-type]
        )
        for name, right, function, argument in (
            ("second BOS", "special tokens", "second_bos", 0.0),
            ("no BOS", "special tokens", "no_bos", 0.0),
            ("no system turn", "template", "no_system_turn", float(len(SYSTEM) - 1)),
        )
    )


def _values() -> tuple[Fault, ...]:
    """The sides agree and the values are those of other tokens, or of none."""
    flat = {"sampled": FLAT, "rollout": FLAT, "trainer": FLAT, "way": Way.FUNCTION, "large": 1.0}
    says = "logits of strength {value:.2g}"
    return (
        Fault(name="shift by 1", right=("shift",), says=says, function="shifted", argument=1, **flat),  # type: ignore[arg-type]
        Fault(name="shift by a block", right=("shift",), says=says, function="shifted", argument=16, **flat),  # type: ignore[arg-type]
        Fault(name="wrong entry", right=("wrong entry",), says=says, function="most_likely", argument=0, **flat),  # type: ignore[arg-type]
        Fault(
            name="zeros as placeholders",
            right=("placeholders",),
            large=0.5,
            value=inverse,
            says="one value of {value:.0f}",
            sizes=ONLY_LARGE,
            way=Way.FUNCTION,
            sampled="transformers:{llama}",
            function="zeros",
        ),
        Fault(
            name="sentinels",
            right=("placeholders",),
            large=0.5,
            value=inverse,
            says="one value of {value:.0f}",
            sizes=ONLY_LARGE,
            way=Way.FUNCTION,
            sampled="transformers:{llama}",
            function="sentinels",
        ),
        Fault(
            name="rows paired wrongly",
            right=("rows paired wrongly",),
            large=1.0,
            says=says,
            way=Way.COLUMNS,
            rollout=FLAT,
            trainer=FLAT,
        ),
        Fault(
            name="LM head in bfloat16",
            right=("LM head precision",),
            large=1.0,
            says=says,
            sampled=FLAT,
            rollout=f"{FLAT}?head=bfloat16",
            trainer=FLAT,
        ),
    )
