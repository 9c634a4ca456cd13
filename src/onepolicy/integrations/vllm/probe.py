"""What a vLLM server can do beyond the contract, each asked with a request of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepolicy.engines.completions import COMPLETIONS, cached_tokens, probed, top_list
from onepolicy.engines.http import HttpClient, StatusError
from onepolicy.engines.measured import PROMPTS, TopList, measure
from onepolicy.engines.probing import Found, Question, cache_found
from onepolicy.integrations.vllm.request import first_token, scoring_body
from onepolicy.records.tokens import IntArray

TOO_MANY = 1_000_000
"""most likely tokens that no vocabulary has"""
LONG = 600
"""tokens of the prompt that is sent twice: more than a block of any cache"""
TRACE = [7, 8, 9]
WHOLE = 1e-3
"""by which the probabilities of a whole vocabulary in float32 may miss one"""
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmProbe:
    """Questions to one server."""

    client: HttpClient
    model: str
    listed: int
    """most likely tokens to ask for where any number would do"""

    def abilities(self) -> dict[str, Question]:
        """Name -> question; those of the contract's names ask more closely."""
        return {
            "ids in": self._ids_in,
            "ids out": self._ids_out,
            "prompt logprobs": self._prompt_logprobs,
            "top-k limit": self._top_limit,
            "distributions": self._distributions,
            "logprobs of given ids": self._given_ids,
            "cache proof": self._cache_proof,
            "cache flush": self._cache_flush,
            "trace replay": self._trace_replay,
        }

    def prompt_meaning(self) -> Found:
        """Of prompt logprobs, which one server may process otherwise than sampled ones."""
        found = measure(self._last_position)
        return str(found), "prompt logprobs at temperature 1 and 0.5, and with top_k 2"

    # -- ids ----------------------------------------------------------------------------------------------------

    def _ids_in(self) -> Found:
        choice = self._choice(first_token(_ids(), model=self.model))
        same = choice.get("prompt_token_ids") == _ids().tolist()
        return ("yes" if same else "no"), f"says that it worked on {choice.get('prompt_token_ids')}"

    def _ids_out(self) -> Found:
        ids = self._choice(first_token(_ids(), model=self.model)).get("token_ids")
        whole = isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], int)
        return ("yes" if whole else "no"), f"sampled {ids} for one token"

    # -- logprobs -----------------------------------------------------------------------------------------------

    def _prompt_logprobs(self) -> Found:
        listed = self._choice(scoring_body(_ids(), model=self.model, top=0)).get("prompt_logprobs") or []
        own = [str(token) in (entries or {}) for entries, token in zip(listed, _ids().tolist(), strict=False)]
        return ("yes" if sum(own) == len(_ids()) - 1 else "no"), f"{sum(own)} came back for {len(_ids())} tokens"

    def _top_limit(self) -> Found:
        try:
            given = self._top(TOO_MANY)
        except StatusError as error:
            named = [int(number) for number in re.findall(r"\d+", error.said) if int(number) < TOO_MANY]
            for limit in dict.fromkeys(named):
                if self._takes(limit) and not self._takes(limit + 1):
                    return str(limit), f"takes {limit}, refuses {limit + 1}, as its refusal of {TOO_MANY} says"
            limit = self._bisected()
            return str(limit), f"takes {limit}, refuses {limit + 1}"
        return str(given), f"{given} entries came back where {TOO_MANY} were asked for"

    def _bisected(self) -> int:
        low, high = 0, TOO_MANY
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._takes(middle) else (low, middle)
        return low

    def _takes(self, size: int) -> bool:
        try:
            return self._top(size) >= size
        except StatusError as error:
            if error.status >= 500:
                raise
            return False

    def _top(self, size: int) -> int:
        return len(self._listed(first_token(_ids(), model=self.model, top=size)))

    def _distributions(self) -> Found:
        listed = self._choice(scoring_body(_ids()[:2], model=self.model, top=-1)).get("prompt_logprobs") or [None]
        entries = listed[-1] or {}
        mass = math.fsum(math.exp(entry["logprob"]) for entry in entries.values())
        how = f"{len(entries)} entries with {mass:.4f} of the probability came back where all were asked for"
        return ("yes" if abs(1 - mass) < WHOLE else "no"), how

    def _given_ids(self) -> Found:
        wanted = list(range(30, 60))
        listed = self._listed(first_token(_ids(), model=self.model) | {"logprob_token_ids": wanted})
        given = len(set(wanted) & set(listed))
        return ("yes" if given == len(wanted) else "no"), f"{given} of {len(wanted)} ids that nobody chose came back"

    def _last_position(self, ids: IntArray, temperature: float, top_k: int) -> TopList:
        own = int(ids[0])
        body = scoring_body(np.append(ids, own).astype(np.int32), model=self.model, top=self.listed)
        choice = self._choice(body | {"temperature": temperature, "top_k": top_k})
        entries = (choice.get("prompt_logprobs") or [{}])[-1] or {}
        found = {int(token): entry["logprob"] for token, entry in entries.items()}
        if len(found) > self.listed:
            found.pop(own, None)
        return found

    # -- cache --------------------------------------------------------------------------------------------------

    def _cache_proof(self) -> Found:
        counts = [self._cached(), self._cached()]
        if None in counts:
            return "no", "no count of cached tokens came back (--enable-prompt-tokens-details)"
        return cache_found(LONG, counts[1] or 0)

    def _cache_flush(self) -> Found:
        _, before = self._cached(), self._cached()
        self.client.post("/reset_prefix_cache", {})
        left = self._cached()
        if not before or left is None:
            return "unknown", "/reset_prefix_cache answers, and no cached tokens are counted that could go"
        return ("yes" if left == 0 else "no"), f"{left} tokens came from the cache after /reset_prefix_cache"

    def _cached(self) -> int | None:
        ids = np.arange(100, 100 + LONG, dtype=np.int32) % 200
        return cached_tokens(self._answer(first_token(ids, model=self.model)))

    # -- replay -------------------------------------------------------------------------------------------------

    def _trace_replay(self) -> Found:
        params = {"max_tokens": len(TRACE), "temperature": 1.0, "logprobs": 0, "trace_decode_token_ids": TRACE}
        body = {"model": self.model, "token_ids": _ids().tolist(), "sampling_params": params}
        (choice,) = self.client.post("/inference/v1/generate", body)["choices"]
        return ("yes" if choice["token_ids"] == TRACE else "no"), f"decoded {choice['token_ids']} along {TRACE}"

    # -- requests -----------------------------------------------------------------------------------------------

    def _answer(self, body: dict[str, Any]) -> Json:
        return self.client.post(COMPLETIONS, body)

    def _choice(self, body: dict[str, Any]) -> Json:
        return probed(self.client, body, model=self.model)

    def _listed(self, body: dict[str, Any]) -> Mapping[int, Any]:
        tops = (self._choice(body).get("logprobs") or {}).get("top_logprobs") or [{}]
        return top_list(tops[0])


def _ids() -> IntArray:
    return np.asarray(PROMPTS[0] * 3, dtype=np.int32)
