"""The KL penalty: mean and gradient over all tokens of a small vocabulary, each weighted with its probability."""

from __future__ import annotations

from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, differentiated, tensor
from onepolicy.signal.conformance.planted import normal
from onepolicy.signal.conformance.subject import Call

VOCABULARY = 6


def _near() -> tuple[Tensor, Tensor]:
    """Logits of the policy and of the reference."""
    logits = normal(VOCABULARY, seed=7)
    return logits, logits + normal(VOCABULARY, seed=8, scale=0.3)


def _far() -> tuple[Tensor, Tensor]:
    """One token 14 nats less likely in the reference, one 7 nats more likely."""
    logits, reference = _near()
    reference[0] -= 14.0
    reference[1] += 7.0
    return logits, reference


def _mean(call: Call, pair: tuple[Tensor, Tensor]) -> Observed:
    logprobs, reference = (one.log_softmax(dim=-1) for one in pair)
    return {"mean": (logprobs.exp() * tensor(call(logprobs, reference))).sum().detach()}


def _gradient(call: Call, pair: tuple[Tensor, Tensor]) -> Observed:
    reference = pair[1].log_softmax(dim=-1)

    def mean(logits: Tensor) -> Tensor:
        logprobs = logits.log_softmax(dim=-1)
        return (logprobs.exp().detach() * tensor(call(logprobs, reference))).sum()

    return {"gradient": differentiated(mean, pair[0])["gradient"]}


CASES = (
    Case(
        role="kl",
        name="mean",
        planted="a reference near the policy, tokens of the policy",
        otherwise="With the sign or the direction changed, the penalty pays for leaving the reference, and a logged KL "
        "is another quantity.",
        puts_through=lambda call: _mean(call, _near()),
    ),
    Case(
        role="kl",
        name="same policies",
        planted="a reference that is the policy",
        otherwise="An untrained policy is charged for a distance that it does not have.",
        puts_through=lambda call: _mean(call, (_near()[0], _near()[0])),
    ),
    Case(
        role="kl",
        name="far reference",
        planted="tokens that the reference finds 14 nats less or 7 nats more likely",
        otherwise="A collapse of the policy is reported smaller than it is.",
        puts_through=lambda call: _mean(call, _far()),
    ),
    Case(
        role="kl_loss",
        name="gradient",
        planted="a reference near the policy, tokens of the policy",
        otherwise="The penalty pulls in another direction than KL(policy || reference) does, or not at all.",
        puts_through=lambda call: _gradient(call, _near()),
    ),
    Case(
        role="kl_loss",
        name="gradient, far reference",
        planted="tokens that the reference finds 14 nats less or 7 nats more likely",
        otherwise="The penalty lets go, or pulls without measure, exactly where the policy has left the reference.",
        puts_through=lambda call: _gradient(call, _far()),
    ),
)
