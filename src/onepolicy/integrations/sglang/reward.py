"""A reward model that SGLang serves: `/classify` with ids, which a tokenizer on this machine makes.

The endpoint knows no messages, so conversations are rendered here. Source: docs.sglang.io, native APIs, `/classify`.
"""

from __future__ import annotations

from collections.abc import Sequence

from onepolicy.engines.http import HttpClient
from onepolicy.engines.requests import Json
from onepolicy.engines.scores import ScoringOptions, scores_from
from onepolicy.engines.server import closed_if_unusable
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import UsageError
from onepolicy.records.tokens import Float64
from onepolicy.signal.reward.pairs import Conversation
from onepolicy.signal.reward.scorer import Scorer, ScorerInfo, TokenIds
from onepolicy.tokens.local import LocalTokenizer


class RewardOptions(ScoringOptions):
    """Options of `sglang:http://host:port` as a reward model."""

    tokenizer: str = ""
    """folder of the reward model's tokenizer and chat template"""


def open_reward(spec: EngineSpec, options: RewardOptions) -> Scorer:
    """The server at a spec's URL. Raises: UsageError without a tokenizer, EngineError."""
    if not options.tokenizer:
        raise UsageError(f"{spec}: SGLang scores text without a chat template. Name a folder with ?tokenizer=FOLDER.")
    client = HttpClient(spec.target, options)
    with closed_if_unusable(client):
        return SglangReward(client, str(spec), options)


class SglangReward:
    """One request for each conversation; the server batches them as they come."""

    def __init__(self, client: HttpClient, name: str, options: RewardOptions) -> None:
        self._client = client
        self._tokenizer = LocalTokenizer(options.tokenizer)
        self.info = ScorerInfo(name=name, dtype=options.dtype, label=options.label, max_length=options.max_length)

    def score(self, conversations: Sequence[Conversation]) -> Float64:
        """Rendered and encoded here. Shape: -> [B, L]. Raises: EngineError."""
        return self._asked(
            [self._tokenizer.encode_chat(one, generation_prompt=False).tolist() for one in conversations]
        )

    def score_ids(self, texts: Sequence[TokenIds]) -> Float64:
        """Of ids as they are. Shape: -> [B, L]. Raises: EngineError."""
        return self._asked([one.ids.tolist() for one in texts])

    def close(self) -> None:
        """End the connection; the server stays."""
        self._client.close()

    def _asked(self, ids: Sequence[list[int]]) -> Float64:
        return scores_from(self._client, "/classify", [{"input_ids": one} for one in ids], _outputs)


def _outputs(answer: Json) -> object:
    return answer["embedding"]
