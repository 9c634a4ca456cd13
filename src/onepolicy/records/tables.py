"""What a report shows beyond the judgement: `judgements/NAME/tables.json`."""

from __future__ import annotations

from typing import Literal

from onepolicy.records.manifest import Manifest
from onepolicy.records.reading import ReadingInfo
from onepolicy.records.strict import Strict
from onepolicy.records.token_breaks import ShownBreak


class Bucket(Strict):
    """The tokens that share something; d = trainer - rollout in nats."""

    name: str
    tokens: int
    mean_d: float
    mean_abs_d: float
    mean_k3: float
    max_abs_d: float


class BucketTable(Strict):
    """Buckets along one axis; those without a token are left out."""

    axis: str
    is_tag: bool = False
    """whether the axis is a tag of the prompts"""
    buckets: tuple[Bucket, ...]


class Bin(Strict):
    """How many tokens have a |d| from `low` to twice `low`."""

    low: float
    trainer_lower: int
    trainer_higher: int


class Points(Strict):
    """A random sample of N tokens."""

    rollout: tuple[float, ...]
    """[N] logprobs"""
    trainer: tuple[float, ...]
    """[N]"""


class ShownRollout(Strict):
    """One of the rollouts that differ most, token by token. T tokens are shown."""

    rollout_id: str
    prompt_id: str
    tokens: int
    """that were compared; more than T if the rollout is cut"""
    mean_abs_d: float
    mean_k3: float
    sum_d: float
    max_abs_d: float
    before: str
    """text just before the first shown token"""
    cut_before: int
    """compared tokens that are left out before the shown ones"""
    cut_after: int
    positions: tuple[int, ...]
    """[T] in the full sequence"""
    token_ids: tuple[int, ...]
    """[T]"""
    pieces: tuple[str, ...]
    """[T] what each token spells; empty if no text is to be shown"""
    rollout_logprobs: tuple[float, ...]
    """[T]"""
    trainer_logprobs: tuple[float, ...]
    """[T]"""


class ReportData(Strict):
    """All that a report needs and a judgement does not carry, so that it is drawn without reading the readings."""

    version: Literal[1] = 1
    manifest: Manifest
    rollout: ReadingInfo
    trainer: ReadingInfo
    commands: tuple[str, ...]
    """what to type to repeat it, the whole first"""
    buckets: tuple[BucketTable, ...]
    histogram: tuple[Bin, ...]
    equal: int
    """tokens with the same number on both sides; they are in no bin"""
    outside_clip: int
    """tokens whose importance ratio lies outside [0.8, 1.2]"""
    points: Points
    worst: tuple[ShownRollout, ...]
    """by the largest |d| of a token, then those by mean k3 that are not among them"""
    token_breaks: tuple[ShownBreak, ...] = ()
    """the first completions whose ids or text do not come back"""
