"""A stand-in for llama.cpp's server: `/completion` as recorded from build 11549, with its oddities.

Logprobs are those of the logits before any bias or sampler. A token after which the text ends inside a character has no
entry. What is computed here shares no code with the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from standin import END, LOWEST, Asked, Dialect, Json, Reply, ids_of, rendered, text_of

from onepolicy.integrations.fake import vocabulary

DEFAULTS: Json = {
    "temperature": 0.8,
    "dynatemp_range": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repeat_last_n": 64,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "min_keep": 0,
    "n_keep": 0,
    "ignore_eos": False,
    "grammar": "",
    "stop": [],
    "post_sampling_probs": False,
    "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
    "seed": 4294967295,
    "n_predict": -1,
    "n_probs": 0,
}


@dataclass(kw_only=True)
class LlamaCpp(Dialect):
    """llama-server."""

    slots: int = 2
    special: bool = True
    """--special: special tokens are spelled out in the text"""
    heeds_bias: bool = True
    overrides: tuple[tuple[str, Any], ...] = ()
    """settings that the server uses whatever was sent"""
    adds_bos: bool = False
    """in front of ids, as no server should"""
    props: tuple[tuple[str, Any], ...] = ()

    def reply(self, method: str, path: str, body: Json) -> Reply | None:
        if path == "/completion":
            return self.completion(body)
        if path == "/tokenize":
            return 200, {"tokens": ids_of(body["content"], bos=body.get("add_special", False))}
        if path == "/detokenize":
            return 200, {"content": text_of(body["tokens"])}
        if path == "/apply-template":
            return 200, {"prompt": rendered(body["messages"], ready=body.get("add_generation_prompt", True))}
        return (200, self.facts()[path]) if path in self.facts() else None

    def facts(self) -> dict[str, Json]:
        props = {
            "default_generation_settings": {"params": {}, "n_ctx": self.max_length},
            "total_slots": self.slots,
            "model_path": f"/models/{self.model}.gguf",
            "model_ftype": "Q4_1",
            "build_info": "b7777-abcdef",
            "chat_template": "",
            **dict(self.props),
        }
        card = {"id": self.name(), "meta": {"n_vocab": vocabulary.VOCAB_SIZE, "n_ctx_train": 8192}}
        return {"/props": props, "/v1/models": {"object": "list", "data": [card]}, "/health": {"status": "ok"}}

    def completion(self, body: Json) -> Reply:
        schema = body.get("json_schema")
        grammar = {"grammar": "root ::= object"} if isinstance(schema, dict) else {}  # a text is dropped in silence
        used = DEFAULTS | {name: body[name] for name in DEFAULTS if name in body} | grammar | dict(self.overrides)
        prompt = [*([vocabulary.BOS] if self.adds_bos else []), *body["prompt"]]
        prompt = self.shown_prompt(prompt)
        if len(prompt) >= self.max_length:
            error = {"code": 400, "message": "the request exceeds the available context size", "type": "exceed"}
            return 400, {"error": error}
        bias = body.get("logit_bias") or []
        asked = Asked(
            prompt=prompt,
            max_tokens=used["n_predict"],
            seed=used["seed"],
            ignore_eos=used["ignore_eos"],
            stop=tuple(used["stop"]),
            forced=[bias[0][0]] * used["n_predict"] if bias and self.heeds_bias else None,
            **{name: used[name] for name in ("temperature", "top_p", "top_k", "min_p")},
        )
        drawn = self.draw(asked)
        given = self.column(drawn.logprobs, floored_low)
        entries = [
            self.entry(token, value, lps, used["n_probs"])
            for token, value, lps in zip(self.shown_ids(drawn.ids), given, drawn.reported, strict=False)
        ]
        kept = [entry for at, entry in enumerate(entries) if self.is_whole(drawn.ids[: at + 1])]
        word = drawn.stopped_by if isinstance(drawn.stopped_by, str) else ""
        if word:  # the server leaves out as many entries as the stop string has tokens by itself
            kept = kept[: len(kept) - min(len(ids_of(word, bos=False)), len(kept))]
        content = text_of(drawn.ids)
        eos = [{"bias": float("-inf"), "token": END}] if used["ignore_eos"] else []
        return 200, {
            "index": 0,
            "content": content[: content.rindex(word)] if word else content,
            "tokens": self.shown_ids(drawn.ids),
            "id_slot": body.get("id_slot", 0),
            "stop": True,
            "model": self.name(),
            "tokens_predicted": len(drawn.ids),
            "tokens_evaluated": len(prompt),
            "generation_settings": used | {"logit_bias": [{"bias": b, "token": t} for t, b in bias] + eos},
            "prompt": text_of(prompt),
            "truncated": False,
            "stop_type": "word" if word else "eos" if drawn.finish_reason == "stop" else "limit",
            "stopping_word": word,
            "tokens_cached": len(prompt),
            "timings": {"cache_n": 0},
            **({"completion_probabilities": kept} if used["n_probs"] else {}),
        }

    def entry(self, token: int, value: Any, lps: np.ndarray, size: int) -> Json:
        order = np.argsort(-lps, kind="stable")[:size].tolist()
        tops = [{**self.piece(other), "logprob": floored_low(float(lps[other]))} for other in order]
        return {**self.piece(token), "logprob": value, "top_logprobs": tops}

    def piece(self, token: int) -> Json:
        content = self.bytes_of(token)
        return {"id": token, "token": content.decode("utf-8", "replace"), "bytes": list(content)}

    def bytes_of(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        return text_of([token]).encode() if self.special else b""

    def is_whole(self, ids: Sequence[int]) -> bool:
        """llama.cpp's `validate_utf8`: a lead byte among the last four that is owed more than follows."""
        text = b"".join(map(self.bytes_of, ids))
        for back in range(1, min(4, len(text)) + 1):
            byte = text[-back]
            owed = 4 if byte >> 3 == 0b11110 else 3 if byte >> 4 == 0b1110 else 2 if byte >> 5 == 0b110 else 1
            if owed > back:
                return False
        return True


def floored_low(value: float) -> float:
    return max(value, LOWEST)
