"""A reward model that vLLM serves for classification: `/classify` with messages, or with ids.

Source: vllm/entrypoints/pooling/classify/protocol.py. Without `use_activation` the server applies what the model's
configuration asks for, by default a sigmoid to one output and a softmax to several.
"""

from __future__ import annotations

from collections.abc import Sequence

from onepolicy.engines.http import HttpClient
from onepolicy.engines.requests import Json
from onepolicy.engines.scores import ScoringOptions, scores_from
from onepolicy.engines.server import closed_if_unusable
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.records.tokens import Float64
from onepolicy.signal.reward.pairs import Conversation
from onepolicy.signal.reward.scorer import Scorer, ScorerInfo, TokenIds


class RewardOptions(ScoringOptions):
    """Options of `vllm:http://host:port` as a reward model."""

    model: str = ""
    """name of the model; needed only if the server has several"""
    activation: bool | None = None
    """sent as `use_activation`: false asks for raw scores; if not given, nothing is sent and the server decides"""


def open_reward(spec: EngineSpec, options: RewardOptions) -> Scorer:
    """Ask the server which model it has. Raises: UsageError, EngineError if nothing usable answers."""
    client = HttpClient(spec.target, options)
    with closed_if_unusable(client):
        return VllmReward(client, str(spec), options)


class VllmReward:
    """One request for each conversation; the server batches them as they come."""

    def __init__(self, client: HttpClient, name: str, options: RewardOptions) -> None:
        self._client = client
        model = _model(client.get("/v1/models")["data"], options.model, url=client.url)
        self._sent: Json = {"model": model["id"]}
        if options.activation is not None:
            self._sent["use_activation"] = options.activation
        longest = options.max_length or model.get("max_model_len")
        self.info = ScorerInfo(name=name, dtype=options.dtype, label=options.label, max_length=longest)

    def score(self, conversations: Sequence[Conversation]) -> Float64:
        """In the server's chat template. Shape: -> [B, L]. Raises: EngineError."""
        return self._asked([{"messages": [dict(message) for message in one]} for one in conversations])

    def score_ids(self, texts: Sequence[TokenIds]) -> Float64:
        """Of ids as they are. Shape: -> [B, L]. Raises: EngineError."""
        return self._asked([{"input": one.ids.tolist(), "add_special_tokens": False} for one in texts])

    def close(self) -> None:
        """End the connection; the server stays."""
        self._client.close()

    def _asked(self, bodies: Sequence[Json]) -> Float64:
        return scores_from(self._client, "/classify", [self._sent | body for body in bodies], _outputs)


def _model(models: list[Json], wanted: str, *, url: str) -> Json:
    names = [model["id"] for model in models]
    if wanted and wanted not in names:
        raise EngineError(f"{url}: has no model {wanted!r}; it has {', '.join(names)}.")
    if not wanted and len(models) != 1:
        raise EngineError(f"{url}: has {len(models)} models ({', '.join(names)}). Name one with ?model=.")
    return models[names.index(wanted)] if wanted else models[0]


def _outputs(answer: Json) -> object:
    return answer["data"][0]["probs"]
