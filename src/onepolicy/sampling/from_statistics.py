"""What a protocol does to tokens of which statistics of the raw distribution are recorded (`--statistics`).

rank and log_mass_above decide top_k and top_p exactly; the kept mass is exact at the truncations that have a column
of their own and lies between two of them elsewhere; log_sum_power gives the normaliser of a temperature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import BoolArray, Float64
from onepolicy.sampling.bounds import Range

POWERS = tuple(1.25 - 0.75 * math.cos((2 * k + 1) * math.pi / 16) for k in range(8))
"""beta of the columns log_sum_power_i: Chebyshev nodes in [0.5, 2]"""
KEPT_COLUMNS: dict[str, dict[float, str]] = {
    "top_p": {0.9: "log_kept_top_p_0_9", 0.95: "log_kept_top_p_0_95"},
    "top_k": {20: "log_kept_top_k_20", 50: "log_kept_top_k_50"},
    "min_p": {0.05: "log_kept_min_p_0_05"},
}
"""truncation -> its value -> the column that holds the log of the mass that it keeps by itself"""
COLUMNS = (
    "rank",
    "log_mass_above",
    "log_kept_declared",
    *(f"log_sum_power_{i}" for i in range(len(POWERS))),
    *(name for columns in KEPT_COLUMNS.values() for name in columns.values()),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StatisticBlock:
    """N sampled tokens with their statistics."""

    columns: Mapping[str, Float64]
    """name -> [N]; those that the reading has"""
    logprobs: Float64 | None
    """[N] raw, in nats; None if the reading's are processed"""
    is_declared: bool = False
    """whether log_kept_declared is of the protocol that is asked about"""


def removed(block: StatisticBlock, protocol: SamplingProtocol) -> Range:
    """1 for a sampled token that the protocol would never draw, 0 for one that it may; a range where it is open."""
    parts = [_by_top_k(block, protocol), _by_top_p(block, protocol), _by_min_p(block, protocol)]
    low, high = (np.logical_or.reduce([part[end] for part in parts]) for end in (0, 1))
    return Range(low=low.astype(np.float64), high=high.astype(np.float64))


def log_kept(block: StatisticBlock, protocol: SamplingProtocol) -> Range:
    """The logarithm of the probability that is kept, at the protocol's temperature. Unit: nats."""
    if block.is_declared and "log_kept_declared" in block.columns:
        return Range(low=block.columns["log_kept_declared"], high=block.columns["log_kept_declared"])
    on = [(name, float(getattr(protocol, name))) for name in KEPT_COLUMNS if name in protocol.changed]
    n = len(block.columns["rank"])
    if protocol.temperature != 1.0:
        only_top_p = [name for name, _ in on] == ["top_p"] and not _untempered(protocol, "top_p")
        floor = math.log(protocol.top_p) if only_top_p else -math.inf
        return Range(low=np.full(n, floor), high=np.zeros(n))
    single = [_kept_by(block, name, value) for name, value in on]
    high = np.minimum.reduce([one.high for one in single])
    if len(single) == 1:
        return single[0]
    low = np.full(n, -math.inf)
    if {name for name, _ in on} == {"top_k", "top_p"} and _before(protocol, "top_k", "top_p"):
        low = single[[name for name, _ in on].index("top_k")].low + math.log(protocol.top_p)
    return Range(low=low, high=high)


def log_normaliser(block: StatisticBlock, beta: float) -> Range | None:
    """log sum p^beta, interpolated between the powers that are kept to 0.001 nats; None outside of 0.5 to 2.

    Source: barycentric interpolation at Chebyshev nodes of the first kind, Berrut and Trefethen (2004).
    """
    if beta == 1.0:
        nothing = np.zeros(len(block.columns["rank"]))
        return Range(low=nothing, high=nothing)
    names = [f"log_sum_power_{i}" for i in range(len(POWERS))]
    if not 0.5 <= beta <= 2.0 or not set(names) <= set(block.columns):
        return None
    factors = [(-1.0) ** k * math.sin((2 * k + 1) * math.pi / 16) for k in range(len(POWERS))]
    weights = [factor / ((beta - power) or 1e-300) for factor, power in zip(factors, POWERS, strict=True)]
    terms = [weight * block.columns[name] for weight, name in zip(weights, names, strict=True)]
    value: Float64 = np.add.reduce(terms) / math.fsum(weights)
    return Range(low=value, high=value)


def _by_top_k(block: StatisticBlock, protocol: SamplingProtocol) -> tuple[BoolArray, BoolArray]:
    rank = block.columns["rank"]
    gone = rank >= protocol.top_k if protocol.top_k else np.zeros(len(rank), dtype=np.bool_)
    return gone, gone


def _by_top_p(block: StatisticBlock, protocol: SamplingProtocol) -> tuple[BoolArray, BoolArray]:
    """By the mass above the token, of what other processors have left."""
    rank, above = block.columns["rank"], np.exp(block.columns["log_mass_above"])
    if protocol.top_p == 1.0:
        return np.zeros(len(rank), dtype=np.bool_), np.zeros(len(rank), dtype=np.bool_)
    if not _untempered(protocol, "top_p"):
        return np.zeros(len(rank), dtype=np.bool_), rank > 0
    gone = above >= protocol.top_p
    if protocol.min_p and _before(protocol, "min_p", "top_p"):
        return gone, gone | (rank > 0)
    if protocol.top_k and _before(protocol, "top_k", "top_p"):
        left = _kept_by(block, "top_k", float(protocol.top_k))
        return above >= protocol.top_p * np.exp(left.high), (above >= protocol.top_p * np.exp(left.low)) & (rank > 0)
    return gone, gone


def _by_min_p(block: StatisticBlock, protocol: SamplingProtocol) -> tuple[BoolArray, BoolArray]:
    """By the ratio to the most likely token, which has all of the mass above at rank 1, and at least its share below.

    Dividing logits by T raises the ratio to the power 1/T.
    """
    rank, nothing = block.columns["rank"], np.zeros(len(block.columns["rank"]), dtype=np.bool_)
    if protocol.min_p == 0.0:
        return nothing, nothing
    if block.logprobs is None:
        return nothing, rank > 0
    edge = math.log(protocol.min_p) * (1.0 if _untempered(protocol, "min_p") else protocol.temperature)
    most = block.columns["log_mass_above"]
    with np.errstate(invalid="ignore"):
        least = most - np.log(np.maximum(rank, 1.0))
        low = (rank > 0) & (block.logprobs - least < edge)
        high = (rank > 0) & (block.logprobs - most < edge)
    return low, high


def _kept_by(block: StatisticBlock, name: str, value: float) -> Range:
    """Between the columns of a stronger and a weaker truncation of the same kind; what they keep grows with value.

    min_p is the other way round: it keeps less the higher it is.
    """
    n = len(block.columns["rank"])
    columns = {at: column for at, column in KEPT_COLUMNS[name].items() if column in block.columns}
    sign = -1.0 if name == "min_p" else 1.0
    stronger = [at for at in columns if sign * at <= sign * value]
    weaker = [at for at in columns if sign * at >= sign * value]
    floor = math.log(value) if name == "top_p" else -math.inf
    low = block.columns[columns[max(stronger, key=lambda at: sign * at)]] if stronger else np.full(n, floor)
    high = block.columns[columns[min(weaker, key=lambda at: sign * at)]] if weaker else np.zeros(n)
    return Range(low=low, high=high)


def _untempered(protocol: SamplingProtocol, name: str) -> bool:
    """Whether a truncation acts on the raw distribution."""
    return protocol.temperature == 1.0 or _before(protocol, name, "temperature")


def _before(protocol: SamplingProtocol, first: str, second: str) -> bool:
    order: tuple[str, ...] = protocol.processors
    return order.index(first) < order.index(second)
