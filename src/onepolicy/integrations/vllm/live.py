"""What a running vLLM server samples with for a request that leaves fields out.

It does not say what it takes from a generation config, so that is measured. Its refusal of a `min_tokens` that is too
large names the `max_tokens` of a request, before anything is drawn.
Source: vllm-project/vllm:vllm/sampling_params.py (`_verify_args`), vllm/entrypoints/serve/utils/api_utils.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onepolicy.engines.completions import COMPLETIONS, the_choice
from onepolicy.engines.http import StatusError
from onepolicy.engines.left_out import REFUSED, LeftOutRequests
from onepolicy.engines.spec import EngineSpec
from onepolicy.integrations.vllm.engine import VllmEngine
from onepolicy.integrations.vllm.protocol import effective
from onepolicy.integrations.vllm.protocol_tables import CHAT, ORDER
from onepolicy.sampling.convert import ReadProtocol
from onepolicy.sampling.measured.contexts import END_TOKENS, LENGTH, PER_TEXT, REPEATING, TEXTS
from onepolicy.sampling.measured.effective import Effective, Overlay
from onepolicy.sampling.measured.knobs import OFF, Fields
from onepolicy.sampling.measured.left_out import NEUTRAL, measured_left_out
from onepolicy.sampling.measured.order import measured_order, orders_of

NAMES = {setting.field: setting.theirs for setting in CHAT if setting.field in {*OFF, *NEUTRAL}}
TOO_MANY = 10**6
"""least tokens that no request has room for"""
_FORCED = 100.0
"""bias of a token's logit with which it is drawn"""
_MEANING = "measured: top lists at temperature 1 and 0.5, and with top_k 2"


def live_protocol(
    spec: EngineSpec,
    request: Mapping[str, Any],
    *,
    per_text: int = PER_TEXT,
    done: Callable[[str], None] = lambda _: None,
) -> Effective:
    """What the server uses for a request that has these fields and leaves the others out, and where that is from.

    request: fields of `/v1/completions`, or of `/v1/chat/completions` if it has messages. per_text:
    completions of each text of `TEXTS`; more tell nearer values apart. done: told of each part.
    Raises: UsageError for a value that is none; EngineError.
    """
    engine = VllmEngine.open(spec)
    try:
        return _Live(engine=engine, request=request, per_text=per_text, done=done).effective()
    finally:
        engine.close()


@dataclass(slots=True, kw_only=True)
class _Live:
    """One server and request."""

    engine: VllmEngine
    request: Mapping[str, Any]
    per_text: int
    done: Callable[[str], None]
    overlay: Overlay = field(default_factory=Overlay)
    own_ends: tuple[int, ...] = ()

    @property
    def model(self) -> str:
        """The name to ask for."""
        return self.engine.info.options["served_model_name"]

    def effective(self) -> Effective:
        """Said, refused and measured, each with its source."""
        read = self._said()
        asking = self._asking()
        open_ = [name for name in OFF if self.request.get(NAMES[name]) is None]
        neutral = {name: value for name, value in NEUTRAL.items() if self.request.get(NAMES[name]) is None}
        found = measured_left_out(asking.draw, names=open_, neutral=neutral, done=self.done)
        self.overlay.take(found, neutral=tuple(neutral))
        self._limit()
        if not self.request.get("ignore_eos"):
            self._ends(read, asking.ended)
        self.done("lengths and ends")
        on = self.overlay.over(read).protocol
        looks = _Looks(engine=self.engine, asking=asking)
        contexts = [*asking.prompts, *self._encoded(REPEATING)]
        orders = [measured_order(pair, contexts, looks) for pair in orders_of(on)]
        order = self.overlay.order(orders, like=ORDER)
        self.done("processors")
        return Effective(read=self.overlay.over(read, order=order), measured=found.fields, own_ends=self.own_ends)

    # -- said ---------------------------------------------------------------------------------------------------

    def _said(self) -> ReadProtocol:
        length = self.engine.info.max_length
        flags = {} if length is None else {"max_model_len": length}
        read = effective(request=self.request, flags=flags, generation_config={})
        if length is None:
            self.overlay.unknown("max_total_tokens", "/v1/models says no max_model_len")
        else:
            self.overlay.sources["max_total_tokens"] = "said by /v1/models"
        meaning = self.engine.sampled_logprobs
        if meaning.is_raw or meaning.is_processed:
            self.overlay.put("logprobs", "raw" if meaning.is_raw else "processed", _MEANING)
        else:
            self.overlay.unknown("logprobs", f"top lists leave it open: {meaning}")
        if "n" not in self.request:
            self.overlay.sources["samples_per_prompt"] = "measured: one comes back"
        return read

    # -- refused ------------------------------------------------------------------------------------------------

    def _limit(self) -> None:
        """The longest completion of the request, which a refusal names."""
        messages = self.request.get("messages")
        ids = self.engine.encode(TEXTS[0], add_special_tokens=False) if messages is None else None
        own = {"model": self.model, "min_tokens": TOO_MANY, "stream": False}
        body = {**self.request, **({} if ids is None else {"prompt": ids.tolist()}), **own}
        most = self._refused_at(COMPLETIONS if messages is None else CHAT_COMPLETIONS, body)
        if most is None:
            why = f"the refusal of min_tokens = {TOO_MANY} names no max_tokens"
            self.overlay.unknown("max_new_tokens", why)
            return
        source = f"said by its refusal of min_tokens = {TOO_MANY}"
        length = self.engine.info.max_length
        prompt = self.engine.encode_chat(messages) if messages is not None else ids
        if length is not None and prompt is not None and most == length - len(prompt):
            self.overlay.put("max_new_tokens", length, f"{source}: up to the context")
        else:
            self.overlay.put("max_new_tokens", most, source)

    def _refused_at(self, path: str, body: dict[str, Any]) -> int | None:
        try:
            self.engine.client.post(path, body)
        except StatusError as error:
            if error.status not in REFUSED:
                raise
            named = re.search(r"max_tokens=(\d+)", error.said)
            return int(named[1]) if named else None
        return None

    # -- measured -----------------------------------------------------------------------------------------------

    def _asking(self) -> LeftOutRequests:
        return LeftOutRequests(
            client=self.engine.client,
            model=self.model,
            names=NAMES,
            more={"return_token_ids": True},
            prompts=self._encoded(TEXTS),
            per_prompt=self.per_text,
            length=LENGTH,
        )

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.engine.encode(text, add_special_tokens=False).tolist() for text in texts]

    def _ends(self, read: ReadProtocol, seen: Collection[int]) -> None:
        """The ids that end a completion besides the model's own: each special token, and what ended one, is forced."""
        forced = {token: self._stopped_by(token) for token in sorted({*self._special_tokens(), *seen})}
        if _NOT_FORCED in forced.values():
            self.overlay.unknown("stop_token_ids", f"a bias of {_FORCED:g} forces no token, so none could be tried")
            return
        ended = {token: reason for token, reason in forced.items() if reason != _NO_END}
        if not ended:
            why = f"none of {len(forced)} tokens ends a completion, not even the model's own"
            self.overlay.unknown("stop_token_ids", why)
            return
        besides = {token for token, reason in ended.items() if reason is not None}
        self.own_ends = tuple(sorted(set(ended) - besides))
        own = ", ".join(map(str, self.own_ends)) or "none"
        shown = f"{len(forced)} tokens forced, {own} ends as the model's own"
        ids = tuple(sorted({*read.protocol.stop_token_ids, *besides}))
        self.overlay.put("stop_token_ids", ids, f"measured: {shown}")

    def _stopped_by(self, token: int) -> int | str | None:
        """The server's stop reason: None for the model's own end token; `_NO_END` if the completion goes on."""
        more = {"logit_bias": {str(token): _FORCED}, "return_token_ids": True, "temperature": 0.0, "seed": 0}
        body = {"model": self.model, "prompt": TEXTS[0], "max_tokens": 2, "stream": False, **more}
        choice = the_choice(self.engine.client.post(COMPLETIONS, body), rollout_id="probe", model=self.model)
        ids = choice.get("token_ids")
        if not isinstance(ids, list) or ids[:1] != [token]:
            return _NOT_FORCED
        return choice.get("stop_reason") if choice.get("finish_reason") == "stop" else _NO_END

    def _special_tokens(self) -> set[int]:
        """Of the tokenizer's file where it can be read, and those that models are known to end with."""
        file = self.engine.tokenizer_file()
        added = json.loads(file).get("added_tokens") or [] if file is not None else []
        found = {int(one["id"]) for one in added if one.get("special")}
        for text in END_TOKENS:
            ids = self.engine.encode(text, add_special_tokens=False)
            if len(ids) == 1:
                found.add(int(ids[0]))
        return found


CHAT_COMPLETIONS = "/v1/chat/completions"
_NO_END = "goes on"
_NOT_FORCED = "not forced"


@dataclass(slots=True, kw_only=True)
class _Looks:
    """What an order is measured with."""

    engine: VllmEngine
    asking: LeftOutRequests
    lists: dict[tuple[int, ...], Mapping[int, float]] = field(default_factory=dict)

    def list_after(self, ids: Sequence[int]) -> Mapping[int, float]:
        """Each context is asked for once."""
        key = tuple(ids)
        if key not in self.lists:
            self.lists[key] = self.engine.first_position(np.asarray(ids, dtype=np.int32), 1.0, 0)
        return self.lists[key]

    def drawn_after(self, ids: Sequence[int], fields: Fields, *, length: int, count: int) -> list[list[int]] | None:
        """As the server draws."""
        return self.asking.drawn_after(ids, fields, length=length, count=count)
