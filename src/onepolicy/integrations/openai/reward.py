"""A reward model behind a URL of anybody's: `{"input": [conversation, ...]}` in, `{"scores": [...]}` out.

A conversation is a list of messages, the last one is scored. `{"data": [{"score": ...}, ...]}` is read as well, in the
order of "index" where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onepolicy.engines.http import HttpClient
from onepolicy.engines.readable import readable
from onepolicy.engines.requests import Json
from onepolicy.engines.scores import ScoringOptions, numbers_in
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.records.tokens import Float64
from onepolicy.signal.reward.pairs import Conversation
from onepolicy.signal.reward.scorer import Scorer, ScorerInfo


class RewardOptions(ScoringOptions):
    """Options of `json:http://host:port/path`, or of the URL alone."""


def open_reward(spec: EngineSpec, options: RewardOptions) -> Scorer:
    """The endpoint at a spec's URL. Raises: UsageError for what is no URL."""
    return JsonReward(HttpClient(spec.target, options), str(spec), options)


class JsonReward:
    """One request for one call, so that the server batches what is scored together."""

    def __init__(self, client: HttpClient, name: str, options: RewardOptions) -> None:
        self._client = client
        self.info = ScorerInfo(name=name, dtype=options.dtype, label=options.label, max_length=options.max_length)

    def score(self, conversations: Sequence[Conversation]) -> Float64:
        """Shape: -> [B, L]. Raises: EngineError."""
        answer = self._client.post("", {"input": [[dict(message) for message in one] for one in conversations]})
        with readable(self._client.url):
            rows = [numbers_in(one) for one in _scores(answer)]
        if len(rows) != len(conversations) or len({len(row) for row in rows}) != 1:
            raise EngineError(
                f"{self._client.url}: answers with {len(rows)} scores for {len(conversations)} conversations. It must "
                'answer {"scores": [...]} with one number for each of "input". A vLLM is asked with vllm:URL.'
            )
        return np.stack(rows)

    def close(self) -> None:
        """End the connection; the server stays."""
        self._client.close()


def _scores(answer: Json) -> list[object]:
    if "scores" in answer:
        return list(answer["scores"])
    if "data" not in answer:
        raise ValueError(f'it has {sorted(answer)} and neither "scores" nor "data"')
    rows = answer["data"]
    if any("index" in one for one in rows):
        rows = sorted(rows, key=lambda one: one["index"])
        if [one["index"] for one in rows] != list(range(len(rows))):
            raise ValueError("each index from 0 must stand once")
    return [one["score"] for one in rows]
