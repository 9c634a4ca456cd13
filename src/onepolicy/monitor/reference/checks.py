"""The questions that are asked of a reference. Each answers with what was found and what to do, or with None."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from onepolicy.errors import UsageError
from onepolicy.monitor.reference.model import Reference, adapters_of
from onepolicy.monitor.reference.passes import dropout_in
from onepolicy.records.verdict import Status
from onepolicy.weights.compare import WeightsComparison, compare_digests
from onepolicy.weights.digest import Rounded, WeightsDigest, digest_tensors
from onepolicy.weights.files import weights_in

_BITS: dict[str, int] = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""of a number's precision"""


def rounding_of(reference: Reference) -> float:
    """Mean |d| in nats that the arithmetic explains between two ways to compute the same policy.

    A fresh DoRA adapter is its base up to 0.009 in bfloat16, and exactly in float32 (the tiny model of the tests).
    """
    narrow = any(weights.is_floating_point() and weights.element_size() < 4 for weights in reference.weights().values())
    return 0.1 if narrow else 1e-3


def trained_along(reference: Reference, policy: nn.Module | None, optimizer: Any) -> str | None:
    """Whether memory of the reference's weights is also that of weights that are trained."""
    trained = [] if policy is None else [weights for weights in policy.parameters() if weights.requires_grad]
    trained += [weights for group in getattr(optimizer, "param_groups", ()) for weights in group["params"]]
    places = {_place(weights) for weights in trained} - {0}
    own = reference.weights()
    shared = [name for name, weights in own.items() if _place(weights) in places]
    if not shared:
        return None
    return (
        f"{len(shared)} of the reference's {len(own)} weights are trained ({_some(shared)}): they share memory with "
        "what the optimizer changes, so the reference follows the policy and the KL penalty holds nothing. Give it "
        "weights of its own (copy.deepcopy(model) before training, or load it anew) and keep them out of the optimizer."
    )


def with_dropout(as_it_is: Tensor, at_rest: Tensor, *, tolerance: float, model: nn.Module) -> str | None:
    """Whether the modes that the reference's modules have change its logprobs."""
    off = _largest(as_it_is, at_rest)
    if off <= tolerance:
        return None
    return (
        f"the reference is scored in train mode: its logprobs are up to {off:.3g} nats from those without dropout"
        f"{_where(model)}. Call `.eval()` on it; where it is a part of the policy's model, switch dropout off (TRL: "
        "disable_dropout=True; LoRA: lora_dropout=0)."
    )


def moved(now: Tensor, first: Tensor, *, tolerance: float) -> str | None:
    """Whether the canary's logprobs are still those of the start."""
    off = _largest(now, first)
    if off <= tolerance:
        return None
    return (
        f"the reference's logprobs of {len(first)} fixed tokens are up to {off:.3g} nats from those of the start (two "
        f"passes may differ by {tolerance:.2g}): it is not frozen. Look for what writes into its weights: an "
        "optimizer, a synchronisation with the policy, a checkpoint loaded over it, an adapter merged into its base."
    )


def other_weights(now: WeightsDigest, first: WeightsDigest) -> str | None:
    """Whether the digest is still that of the start."""
    if now.whole == first.whole:
        return None
    found = compare_digests(first, now)
    names = [*(one.name for one in found.differing), *found.only_a, *found.only_b]
    return (
        f"{len(names)} of the reference's {len(first.tensors)} weights are not those of the start ({_some(names)}; "
        f"digest {now.short}, was {first.short}): it is not frozen. Look for what writes into them."
    )


def apart_at_start(gap: float, *, rounding: float, reference: Reference, policy: nn.Module) -> str | None:
    """Whether policy and reference are one policy before the first update."""
    if gap <= rounding:
        return None
    adapters = _adapters(reference, policy)
    return (
        f"before the first update, policy and reference differ by {gap:.3g} nats a token (mean |d| over the canary): "
        f"the KL penalty starts above 0. Either the policy starts from something that the reference lacks{adapters}, "
        "or the reference is of another checkpoint. Give the reference the weights that the policy starts from (a "
        "frozen copy of its adapter, the folder it was loaded from); if they are meant to differ, name the reference's "
        "weights with `expected`."
    )


def not_expected(reference: Reference, expected: str | Path | WeightsDigest) -> str | None:
    """Whether the base weights are those of a folder, a file, or a digest that was taken elsewhere.

    Raises: UsageError, DumpError if they cannot be read.
    """
    found = _comparison(reference, expected)
    if found.status is Status.UNKNOWN:
        raise UsageError(f"the reference and {found.b} have no weight of one name, so `expected` says nothing of it.")
    if found.status is Status.PASS:
        return None
    differs = found.sentence.partition(": ")[2]
    return f"the reference is not {found.b}: {differs} Load it from there, or correct `expected`."


def not_as_before(digest: WeightsDigest, before: str) -> str | None:
    """Whether a training that goes on has the reference that it was begun with, by the digest in its record."""
    if digest.whole == before:
        return None
    return (
        f"the reference is not the one that this training was begun with (digest {digest.short}, was {before[:16]}). "
        "Where a training goes on from a checkpoint, load the policy from there, and the reference from where it came."
    )


def not_its_own(used: Tensor, own: Tensor, *, tolerance: float) -> str | None:
    """Whether the logprobs that the trainer used are the reference's. Shape: [N], [N], of the same tokens."""
    off = _largest(used, own)
    if off <= tolerance:
        return None
    return f"the trainer used logprobs as the reference's that are up to {off:.3g} nats from the reference's own"


def whose(used: Tensor, policys: Tensor, *, tolerance: float) -> str:
    """The rest of that sentence: are they the policy's? Shape: [N], [N]."""
    if _largest(used, policys) <= tolerance:
        return (
            ", and are the policy's: its adapter was on in the reference's pass, so the KL penalty is 0 whatever the "
            "policy does. Score the reference within `disable_adapter()`, and see that no adapter is merged."
        )
    return (
        ", and they are not the policy's either: another model, another temperature or another context was scored. "
        "Score both policies with one function, on the same ids and masks."
    )


def no_logprobs(canary: Tensor) -> str | None:
    """Whether a logprob is missing or impossible."""
    bad = int((~(canary.isfinite() & (canary <= 1e-6))).sum())
    if not bad:
        return None
    return (
        f"{bad} of {len(canary)} logprobs of the reference's canary are no logprobs (NaN, infinite or above 0): its "
        "weights hold NaN, or its forward pass overflows. Load it anew, in a wider dtype."
    )


def unrepeatable(noise: float, *, rounding: float) -> str | None:
    """Whether two passes without dropout differ by more than rounding."""
    if noise <= 10 * rounding:
        return None
    return (
        f"two passes of the reference over the same ids, without dropout, differ by up to {noise:.3g} nats, so nothing "
        "can be held against it. Look for noise that eval mode does not switch off, such as a router's."
    )


def _largest(one: Tensor, other: Tensor) -> float:
    """Largest |d|; infinite where one side is NaN or of another length."""
    if one.shape != other.shape:
        return float("inf")
    return float((one.double() - other.double()).abs().nan_to_num(nan=float("inf")).max())


def _place(weights: Tensor) -> int:
    """Where its memory begins; 0 for a tensor without any."""
    local = weights.to_local() if hasattr(weights, "to_local") else weights
    return 0 if local.is_meta else local.untyped_storage().data_ptr()


def _comparison(reference: Reference, expected: str | Path | WeightsDigest) -> WeightsComparison:
    """Of the base, without the adapters that the reference may hold."""
    base = Reference(model=reference.model, adapters=()) if adapters_of(reference.model) else reference
    if isinstance(expected, WeightsDigest):
        return compare_digests(base.digest(rounded_to=expected.rounded_to), expected, rounded_to=expected.rounded_to)
    tensors = weights_in(Path(expected))
    live = {str(weights.dtype).removeprefix("torch.") for weights in base.weights().values()}
    rounded_to = _narrower(live, {tensor.dtype for tensor in tensors.values()})
    digest = digest_tensors(tensors.values(), source=str(expected), rounded_to=rounded_to)
    return compare_digests(base.digest(rounded_to=rounded_to), digest, rounded_to=rounded_to)


def _narrower(live: Iterable[str], stored: Iterable[str]) -> Rounded | None:
    """What both are rounded to, as a model may be loaded in another dtype than it is stored in."""
    narrowest = [min((d for d in side if d in _BITS), key=_BITS.__getitem__, default="") for side in (live, stored)]
    if narrowest[0] == narrowest[1] or "" in narrowest:
        return None
    least = min(narrowest, key=_BITS.__getitem__)
    return {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}.get(least)  # type: ignore[return-value]


def _where(model: nn.Module) -> str:
    names = dropout_in(model)
    return f" ({_some(names)})" if names else ""


def _adapters(reference: Reference, policy: nn.Module) -> str:
    """Which adapters the two have, where the policy has one."""
    names = adapters_of(policy)
    if not names:
        return ""
    own = adapters_of(reference.model) if reference.adapters is None else reference.adapters
    scored = f"with {', '.join(own)}" if own else "without any"
    return f" (adapters of its model: {', '.join(names)}; the reference is scored {scored})"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more
