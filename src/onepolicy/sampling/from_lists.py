"""What a protocol does to tokens of which the most likely alternatives are recorded.

A list holds the K most likely tokens of a position, of the raw distribution; the rest of the probability is a tail of
unknown tokens, none above the last of the list. Everything follows exactly where the kept set lies inside the list, and
as a range elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import BoolArray, Float64
from onepolicy.sampling.bounds import Range


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListBlock:
    """N sampled tokens with the lists of their positions."""

    logprobs: Float64
    """[N] of the sampled tokens, raw, in nats"""
    lists: Float64
    """[N, K] of the most likely tokens, raw, descending, all of them numbers"""
    vocabulary: int | None = None
    """ids that the model has"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kept:
    count: npt.NDArray[np.intp]
    """[N] entries of the list that are kept"""
    is_open: BoolArray
    """[N] whether tokens behind the list may be kept too"""


def removed(block: ListBlock, protocol: SamplingProtocol) -> Range:
    """1 for a sampled token that the protocol would never draw, 0 for one that it may; a range where it is open."""
    fewest, most = _kept(block, protocol, most=False), _kept(block, protocol, most=True)
    rank = (block.lists > block.logprobs[:, None]).sum(axis=1)
    surely = (rank >= most.count) & ~most.is_open
    return Range(low=surely.astype(np.float64), high=(rank >= fewest.count).astype(np.float64))


def log_kept(block: ListBlock, protocol: SamplingProtocol) -> Range:
    """The logarithm of the probability that is kept, at the protocol's temperature. Unit: nats."""
    beta = 1.0 / protocol.temperature
    fewest, most = _kept(block, protocol, most=False), _kept(block, protocol, most=True)
    weights = np.exp(beta * block.lists)
    least_tail, largest_tail = tail(block, beta)
    place = np.arange(weights.shape[1])
    low = np.where(place < fewest.count[:, None], weights, 0.0).sum(axis=1)
    high = np.where(place < most.count[:, None], weights, 0.0).sum(axis=1)
    rest = weights.sum(axis=1) - high
    with np.errstate(divide="ignore", invalid="ignore"):
        # What is kept over what is kept and what is not; behind an open list all of the tail may be kept.
        left_out = rest + np.where(most.is_open, 0.0, least_tail)
        upper = -np.log1p(left_out / high)
        lower = np.log(low) - np.log(weights.sum(axis=1) + largest_tail)
    only = (protocol.top_k, protocol.min_p) == (0, 0.0) and _is_tempered_first(protocol)
    floor = np.log(protocol.top_p) if only else -np.inf
    return Range(low=np.minimum(np.maximum(lower, floor), upper), high=upper)


def log_normaliser(block: ListBlock, beta: float) -> Range:
    """log sum p^beta over the whole vocabulary: what a temperature of 1/beta takes off each logprob."""
    inside = np.exp(beta * block.lists).sum(axis=1)
    least, largest = tail(block, beta)
    return Range(low=np.log(inside + least), high=np.log(inside + largest))


def tail(block: ListBlock, beta: float) -> tuple[Float64, Float64]:
    """Between what the sum of p^beta behind the list lies: [N], [N].

    With t the probability behind it, q the last of the list and n the tokens behind: above beta = 1 each p^beta is at
    most p q^(beta-1), and the sum is least where they share t alike; below 1 the two change places.
    """
    mass = np.maximum(-np.expm1(_log_sum(block.lists)), 0.0)  # rounding may give a list more than all
    if beta == 1.0:
        return mass, mass
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        by_last = np.where(mass > 0.0, mass * np.exp((beta - 1.0) * block.lists[:, -1]), 0.0)
    behind = None if block.vocabulary is None else max(block.vocabulary - block.lists.shape[1], 1)
    if beta > 1.0:
        return (np.zeros_like(mass) if behind is None else mass**beta * behind ** (1.0 - beta)), by_last
    return by_last, (np.where(mass > 0.0, np.inf, 0.0) if behind is None else mass**beta * behind ** (1.0 - beta))


def _kept(block: ListBlock, protocol: SamplingProtocol, *, most: bool) -> _Kept:
    """What is kept if the tail is as light, or as heavy, as it can be. A heavier one makes top_p keep more."""
    n, k = block.lists.shape
    count, is_open, beta, whole = np.full(n, k), np.ones(n, dtype=np.bool_), 1.0, True
    for name in protocol.processors:
        if name == "temperature":
            beta = 1.0 / protocol.temperature
        elif name == "top_k" and protocol.top_k:
            count, is_open, whole = np.minimum(count, protocol.top_k), is_open & (protocol.top_k > k), False
        elif name == "min_p" and protocol.min_p:
            above = (beta * (block.lists - block.lists[:, :1]) >= np.log(protocol.min_p)).sum(axis=1)
            count, is_open, whole = np.minimum(count, above), is_open & (above == k), False
        elif name == "top_p" and protocol.top_p < 1.0:
            behind = tail(block, beta)[1 if most else 0] if most or whole else np.zeros(n)
            found = _nucleus(np.exp(beta * block.lists), count, np.where(is_open, behind, 0.0), protocol.top_p)
            count, is_open, whole = found.count, is_open & found.is_open, False
    return _Kept(count=np.maximum(count, 1), is_open=is_open)


def _nucleus(weights: Float64, count: npt.NDArray[np.intp], behind: Float64, top_p: float) -> _Kept:
    """The first tokens that have less than top_p in front of them, of the `count` that are left and what is behind."""
    left = np.where(np.arange(weights.shape[1]) < count[:, None], weights, 0.0)
    total = left.sum(axis=1)
    wanted = top_p * (total + behind)
    kept = ((left.cumsum(axis=1) - left) < wanted[:, None]) & (left > 0.0)
    return _Kept(count=kept.sum(axis=1), is_open=(total < wanted) & (behind > 0.0))


def _is_tempered_first(protocol: SamplingProtocol) -> bool:
    """Whether top_p keeps its share at the temperature that is sampled at."""
    order = protocol.processors
    return protocol.temperature == 1.0 or order.index("temperature") < order.index("top_p")


def _log_sum(logprobs: Float64) -> Float64:
    found: Float64 = np.log(np.exp(logprobs).sum(axis=1))
    return found
