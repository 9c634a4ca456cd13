"""Completion requests that leave the server no default to act on, and the check that it did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onepolicy.engines.contract import SampleInput, Wanted
from onepolicy.engines.obeyed import for_request
from onepolicy.engines.obeyed import one_token as asking_one
from onepolicy.errors import EngineError
from onepolicy.integrations.llamacpp.protocol import write_protocol
from onepolicy.records.protocol import SamplingProtocol

NOT_REPORTED = frozenset(("n_cmpl", "json_schema"))
"""sent, and not in `generation_settings`: a schema is there as the grammar that the server makes of it"""
FORCED = 1e4
"""added to a token's logit so that it is drawn; reported logprobs are of the logits before it"""


def settings_of(item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> dict[str, Any]:
    """Every sampling field of the server, as it will report it back in `generation_settings`.

    Raises: UsageError if llama.cpp cannot say something that changes what is drawn; EngineError without room.
    """
    written = write_protocol(for_request(item, protocol)).content
    assert isinstance(written, dict)
    unconstrained = {} if "json_schema" in written["request"] else {"grammar": ""}
    return {**unconstrained, **written["request"], "n_keep": 0, "n_probs": max(wanted.top, 1)}


def one_token(*, temperature: float = 0.0, top_k: int = 0, top: int = 1, seed: int = 0) -> dict[str, Any]:
    """The settings that ask for the most likely tokens of one position."""
    item, protocol = asking_one(np.empty(0, dtype=np.int32), temperature=temperature, top_k=top_k, seed=seed)
    return settings_of(item, protocol, Wanted(top=top))


def forcing(token: int) -> dict[str, Any]:
    """The setting under which this token is drawn."""
    return {"logit_bias": [[token, FORCED]]}


DELIVERY = frozenset(("prompt", "cache_prompt", "id_slot", "return_tokens", "stream"))
"""fields of a body that are no settings"""


def request_of(
    prompt_ids: Sequence[int], settings: Mapping[str, Any], *, slot: int = -1, cached: bool = False
) -> dict[str, Any]:
    """The body for `/completion`.

    slot: of the server, to go on in; -1 is any. cached: whether what the slot has computed of the prompt may be used.
    """
    delivery = {"cache_prompt": cached, "id_slot": slot, "return_tokens": True, "stream": False}
    return {"prompt": list(prompt_ids), **settings, **delivery}


def refuse_other_settings(*, sent: Mapping[str, Any], used: Mapping[str, Any]) -> None:
    """Raise EngineError unless the server used what was sent."""
    if "json_schema" in sent and not used.get("grammar"):
        raise EngineError(
            "the llama.cpp server was sent a json_schema and says that it used no grammar, so it sampled anything. "
            "Give the constraint as a grammar."
        )
    for name, value in sent.items():
        if name in NOT_REPORTED or (name == "logit_bias" and sent.get("ignore_eos")):
            continue  # ignoring the end tokens is a bias of the server's own
        if name not in used:
            raise EngineError(
                f"the llama.cpp server does not say which {name} it used. Use a version of 2026 or later "
                "(in this process: xllamacpp>=2026.1)."
            )
        if not _same(_as_reported(name, value), used[name]):
            raise EngineError(
                f"the llama.cpp server sampled with {name}={used[name]!r}; {name}={value!r} was sent. Change the "
                "protocol to a value that the server takes."
            )


def _as_reported(name: str, sent: Any) -> Any:
    return [{"bias": bias, "token": token} for token, bias in sent] if name == "logit_bias" else sent


def _same(sent: Any, used: Any) -> bool:
    """Equal, numbers as float32: the server keeps them so."""
    if isinstance(sent, float) and isinstance(used, int | float):
        return bool(np.float32(sent) == np.float32(used))
    return bool(sent == used)
