"""The parts of a tokenizer in one spelling, so that two that do the same compare and hash equal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onepolicy.tokens.gguf_pipeline import GPT2_PATTERN
from onepolicy.tokens.open import as_stored
from onepolicy.tokens.tokenizer import StoredTokenizer

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

VOCABULARY, MERGES, ADDED, SPECIAL = "vocabulary", "merges", "added tokens", "special tokens"
NORMALIZER, PRE_TOKENIZER, MODEL = "normalizer", "pre-tokenizer", "model options"
POST_PROCESSOR, DECODER = "post-processor", "decoder"
TEMPLATE, SETTINGS, VERSIONS = "chat template", "settings", "versions"

INFORMATIVE = (VERSIONS,)
"""parts that say where the files come from; the others change ids or text"""

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
"""of an added token"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Hashes of a tokenizer; equal ones mean that every part is the same, however it is stored."""

    parts: dict[str, str]
    """name of the part -> the first 16 hex digits of a SHA-256"""
    hash: str
    """over all parts that change ids or text"""


def fingerprint(tokenizer: Any) -> Fingerprint:
    """The hashes of a tokenizer: a path or name as `open_tokenizer` takes it, or one that is loaded.

    Raises: TokenizerError if there is none, or if its parts do not fit together.
    """
    stored = as_stored(tokenizer)
    return fingerprint_of(parts_of(stored, stored.tokenizer()))


def fingerprint_of(parts: Mapping[str, Any]) -> Fingerprint:
    """The hashes of what `parts_of` found."""
    hashes = {name: _hash(part) for name, part in parts.items()}
    decisive = {name: digest for name, digest in hashes.items() if name not in INFORMATIVE}
    return Fingerprint(parts=hashes, hash=_hash(decisive))


def parts_of(stored: StoredTokenizer, built: Tokenizer) -> dict[str, Any]:
    """Name -> the part, as values that JSON has; what has no effect on ids or text is left out.

    `built` is `stored.tokenizer()`; its small parts come from there, where the library filled in every default.
    """
    model = stored.pipeline["model"]
    added = [_added(token_id, token) for token_id, token in sorted(built.get_added_tokens_decoder().items())]
    post_processor = _post_processor(_state(built.post_processor))
    return {
        VOCABULARY: _vocabulary(model, {token["content"] for token in added}),
        MERGES: [_merge(merge) for merge in model.get("merges") or []],
        ADDED: added,
        SPECIAL: dict(stored.special),
        NORMALIZER: _flat(_state(built.normalizer), "normalizers"),
        PRE_TOKENIZER: _flat(_state(built.pre_tokenizer), "pretokenizers"),
        MODEL: _model_options(model, kind=type(built.model).__name__),
        POST_PROCESSOR: post_processor,
        DECODER: _flat(_state(built.decoder), "decoders"),
        TEMPLATE: dict(stored.templates),
        SETTINGS: _settings(stored, post_processor, built),
        VERSIONS: dict(stored.versions),
    }


def _state(component: Any) -> Any:
    """A part of a loaded tokenizer as JSON values."""
    return None if component is None else json.loads(component.__getstate__())


def _added(token_id: int, token: AddedToken) -> dict[str, Any]:
    return {"id": token_id, "content": token.content} | {flag: getattr(token, flag) for flag in FLAGS}


def _vocabulary(model: Mapping[str, Any], others: set[str]) -> list[list[Any]]:
    """[id, piece] or, in a unigram model, [id, piece, score]; the others, added tokens, are a part of their own."""
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, dict):
        return sorted([i, piece] for piece, i in vocabulary.items() if piece not in others)
    return [[i, piece, score] for i, (piece, score) in enumerate(vocabulary) if piece not in others]


def _merge(merge: Any) -> list[str]:
    """Older files write a pair as one text."""
    return merge.split(" ", 1) if isinstance(merge, str) else list(merge)


def _model_options(model: Mapping[str, Any], *, kind: str) -> dict[str, Any]:
    options = {name: value for name, value in model.items() if name not in ("vocab", "merges") and _is_on(value)}
    if not options.get("dropout", True):
        del options["dropout"]
    if "unk_token" not in options:
        options.pop("fuse_unk", None)  # nothing to fuse
    return {**options, "type": kind}


def _is_on(value: Any) -> bool:
    """Not 0, which may be an id."""
    return value is not None and value is not False and value != ""


def _flat(component: Any, key: str) -> list[dict[str, Any]]:
    """Steps in order: sequences unpacked, what does nothing dropped, aliases written out."""
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [step for item in component.get(key) or [] for step in _flat(item, key)]
    return [dict(step) for step in (_STEPS[key](component) if key in _STEPS else [component])]


def _pre_tokenizer_steps(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    kind = step.get("type")
    if kind == "Digits":
        return [_split(r"\p{N}" if step.get("individual_digits") else r"\p{N}+")]
    if kind == "Split":
        return [{**step, "invert": bool(step.get("invert"))}]
    if kind != "ByteLevel":
        return [step]
    plain = {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False}  # trim_offsets moves no id
    if not step.get("use_regex", True):
        return [{**plain, "add_prefix_space": bool(step.get("add_prefix_space"))}]
    if step.get("add_prefix_space"):  # the space comes before the pattern, so they cannot be told apart in steps
        return [{**plain, "use_regex": True, "add_prefix_space": True}]
    return [_split(GPT2_PATTERN), plain]


def _decoder_steps(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [{"type": "ByteLevel"}] if step.get("type") == "ByteLevel" else [step]


_STEPS = {"pretokenizers": _pre_tokenizer_steps, "decoders": _decoder_steps}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _post_processor(component: Any) -> list[Any]:
    """What stands around a text: ids, and the text itself as None; empty if nothing is added."""
    steps = [step for item in _unpacked(component) for step in _around(item)]
    return [] if steps == [None] else steps


def _unpacked(component: Any) -> list[Mapping[str, Any]]:
    if component is None or component.get("type") == "ByteLevel":  # it moves offsets, no ids
        return []
    if component.get("type") == "Sequence":
        return [step for item in component.get("processors") or [] for step in _unpacked(item)]
    return [component]


def _around(step: Mapping[str, Any]) -> list[Any]:
    if step["type"] in ("BertProcessing", "RobertaProcessing"):
        return [step["cls"][1], None, step["sep"][1]]
    if step["type"] != "TemplateProcessing":
        return [step]
    known = step["special_tokens"]
    items = (([None] if "Sequence" in item else known[item["SpecialToken"]["id"]]["ids"]) for item in step["single"])
    return [token_id for ids in items for token_id in ids]


def _settings(stored: StoredTokenizer, around: list[Any], built: Tokenizer) -> dict[str, Any]:
    """What is set and does not merely repeat what the pipeline does; absent is off, as in Transformers 5."""
    found = {name: value for name, value in stored.settings.items() if _is_on(value)}
    for name, token, there in (("add_bos_token", "bos_token", around[:1]), ("add_eos_token", "eos_token", around[-1:])):
        stated = stored.settings.get(name)
        added = bool(there) and there[0] is not None and there[0] == built.token_to_id(stored.special.get(token, ""))
        found.pop(name, None)
        if stated is not None and bool(stated) != added:
            found[name] = bool(stated)
    return found


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
