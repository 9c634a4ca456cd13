"""`/v1/models` and `/v1/completions`."""

from __future__ import annotations

from dataclasses import dataclass

from onepolicy.integrations.fake import vocabulary
from standin.dialect import BITING, Asked, Dialect, Drawn, Json, Reply, refused
from standin.model import floored, ids_of, rendered, text_of, top_of


@dataclass(kw_only=True)
class OpenAiShaped(Dialect):
    """`/v1/models` and `/v1/completions` as all of them have it."""

    most_logprobs: int = 20

    def reply(self, method: str, path: str, body: Json) -> Reply | None:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [self.card()]}
        if path == "/v1/completions" and method == "POST":
            return self.completion(body)
        return self.other(method, path, body)

    def card(self) -> Json:
        return {"id": self.name(), "object": "model", "created": 0, "owned_by": "stand-in"}

    def other(self, method: str, path: str, body: Json) -> Reply | None:
        return None

    def refusal(self, body: Json) -> str:
        """Why a body is refused; empty if it is not."""
        if body.get("model") != self.name():
            return f"The model `{body.get('model')}` does not exist."
        if (body.get("logprobs") or 0) > self.most_logprobs:
            return f"Requested sample logprobs of {body['logprobs']}, which is greater than max allowed: 20"
        return ""

    def asked(self, body: Json) -> Asked:
        prompt = body["prompt"]
        ids = ids_of(prompt, bos=body.get("add_special_tokens", True)) if isinstance(prompt, str) else list(prompt)
        given = {name: body[name] if body.get(name) is not None else default for name, default in BITING.items()}
        return Asked(
            prompt=[vocabulary.BOS, *ids] if self.faults.wrong_prompt_ids else ids,
            max_tokens=16 if body.get("max_tokens") is None else body["max_tokens"],
            seed=body.get("seed"),
            ignore_eos=body.get("ignore_eos", False),
            min_tokens=body.get("min_tokens") or 0,
            stop=tuple(body.get("stop") or ()),
            stop_token_ids=tuple(body.get("stop_token_ids") or ()),
            **{**given, "top_k": max(int(given["top_k"]), 0)},
        )

    def completion(self, body: Json) -> Reply:
        if refusal := self.refusal(body):
            return refused(refusal)
        asked = self.asked(body)
        if max(asked.prompt, default=0) >= vocabulary.VOCAB_SIZE:
            return refused(f"Token id {max(asked.prompt)} is out of vocabulary")
        if len(asked.prompt) + asked.max_tokens > self.max_length:
            return refused(
                f"This model's maximum context length is {self.max_length} tokens. However, you requested "
                f"{asked.max_tokens} output tokens and your prompt contains {len(asked.prompt)} input tokens."
            )
        drawn = self.draw(asked)
        choice = {
            "index": 0,
            "text": text_of(drawn.ids[:-1] if drawn.finish_reason == "stop" else drawn.ids),
            "finish_reason": drawn.finish_reason,
            "logprobs": self.listed(body, drawn),
        }
        self.complete(choice, body, asked, drawn)
        usage = {
            "prompt_tokens": len(asked.prompt),
            "completion_tokens": len(drawn.ids),
            "total_tokens": len(asked.prompt) + len(drawn.ids),
        }
        self.count(usage)
        answer = {"id": "cmpl-1", "object": "text_completion", "created": 0, "model": self.name(), "choices": [choice]}
        return 200, {**answer, "usage": usage}

    def complete(self, choice: Json, body: Json, asked: Asked, drawn: Drawn) -> None:
        """Add what this server has beside."""

    def count(self, usage: Json) -> None:
        """Add what this server counts beside."""

    def tokenized(self, body: Json) -> Json:
        """`/tokenize`, as vLLM has it and others take it over."""
        if "messages" in body:
            text = rendered(body["messages"], ready=body.get("add_generation_prompt", True))
            ids = ids_of(text, bos=body.get("add_special_tokens", False))
        else:
            ids = ids_of(body["prompt"], bos=body.get("add_special_tokens", True))
        return {"count": len(ids), "max_model_len": self.max_length, "tokens": ids, "token_strs": None}

    def spelled(self, token: int, body: Json) -> str:
        return text_of([token])

    def listed(self, body: Json, drawn: Drawn) -> Json | None:
        """`logprobs` of a choice: top lists keyed by the token as it is spelled, the sampled one first."""
        if body.get("logprobs") is None:
            return None
        tops = []
        for lps, token in zip(drawn.reported, drawn.ids, strict=True):
            order = [token, *(other for other in top_of(lps, body["logprobs"]) if other != token)]
            tops.append({self.spelled(other, body): floored(float(lps[other])) for other in order})
        return {
            "tokens": [self.spelled(token, body) for token in self.shown_ids(drawn.ids)],
            "token_logprobs": self.column(drawn.logprobs, floored),
            "top_logprobs": tops,
            "text_offset": [0] * len(drawn.ids),
        }
