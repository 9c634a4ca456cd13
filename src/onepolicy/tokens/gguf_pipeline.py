"""The tokenizer that a GGUF file's metadata amounts to, as llama.cpp reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from onepolicy.errors import TokenizerError
from onepolicy.tokens.gguf import read_metadata
from onepolicy.tokens.tokenizer import StoredTokenizer

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""`tokenizer.ggml.token_type` of tokens that are found in a text as a whole; the last are not special"""
SPACE = "▁"
MOST_WORK = 1 << 28
"""sum of the squared lengths of tokens with a score, as the work grows with it; that of Gemma 3 is 2 ** 24"""
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""what the `tokenizers` library means by ByteLevel with `use_regex`"""
_KEY = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Splitting:
    """What llama.cpp does for one name of a pre-tokenizer."""

    patterns: tuple[str, ...]
    """applied one after the other, each to the pieces that the last one left"""
    ignore_merges: bool = False
    add_bos: bool = False
    """unless the file says otherwise"""


_ENGLISH = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _ENGLISH + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

_GPT2 = _Splitting(patterns=(GPT2_PATTERN,))
_EACH_DIGIT = _Splitting(patterns=(r"\p{N}", GPT2_PATTERN))
_LLAMA = _Splitting(patterns=(_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN = _Splitting(patterns=(_QWEN2,))
SPLITTINGS = {
    "default": _Splitting(
        patterns=(r"[\p{P}\$\+<=>\^~\|]+", GPT2_PATTERN, r"\p{N}+", "[0-9][0-9][0-9]"),
    ),
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "exaone4": _GPT2,
    "smollm": _EACH_DIGIT,
    "command-r": _EACH_DIGIT,
    "starcoder": _EACH_DIGIT,
    "refact": _EACH_DIGIT,
    "codeshell": _EACH_DIGIT,
    "exaone": _EACH_DIGIT,
    "minerva-7b": _EACH_DIGIT,
    "falcon": _Splitting(patterns=(r"[\p{P}\$\+<=>\^~\|`]+", GPT2_PATTERN, "[0-9][0-9][0-9]")),
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "dbrx": _Splitting(patterns=(_LLAMA3,)),
    "smaug-bpe": _Splitting(patterns=(_LLAMA3,)),
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "hunyuan": _QWEN,
    "stablelm2": _Splitting(patterns=(_QWEN2,)),
    "deepseek-v3": _Splitting(patterns=_DEEPSEEK3),
    "deepseek-coder": _Splitting(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
}
"""`tokenizer.ggml.pre` -> how llama.cpp cuts a text before it applies merges; without a name it takes the default.

A test compares each with llama.cpp's own ids."""


def read_gguf(path: Path, *, origin: str) -> StoredTokenizer:
    """The tokenizer inside a GGUF file; no tensor is read.

    Raises: TokenizerError if the file is damaged, has no tokenizer, or one of a kind that is not known here.
    """
    metadata = read_metadata(path, keep=("tokenizer.",))
    kind = metadata.get(_KEY + "model")
    if not isinstance(kind, str) or kind not in _BUILDERS:
        found = "no tokenizer" if kind is None else f"a tokenizer of the kind {shortened(kind)}"
        raise TokenizerError(
            f"{path} has {found}; of GGUF files, {' and '.join(_BUILDERS)} are read. Give the folder of the "
            "model that the file was converted from."
        )
    source = _Source(path, metadata)
    return StoredTokenizer(
        origin=origin,
        format="gguf",
        pipeline={"version": "1.0", "truncation": None, "padding": None, **_BUILDERS[kind](source)},
        special=source.special,
        templates=source.templates,
        versions={"format": "gguf"},
    )


class _Source:
    """The metadata, with what is missing or of the wrong type said by name."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self.path, self._metadata = path, metadata
        self.tokens = tuple(text or f"[EMPTY_{i}]" for i, text in enumerate(self.texts("tokens")))
        """an empty one under the name that llama.cpp gives it"""
        self.types = self._column("token_type", int, default=1)
        vocabulary = {token: i for i, token in enumerate(self.tokens)}
        twice = next((token for i, token in enumerate(self.tokens) if vocabulary[token] != i), None)
        if twice is not None:
            self.fail(f"has the token {twice!r} twice")
        self.vocabulary = vocabulary

    def get(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(_KEY + name, default)

    def texts(self, name: str) -> list[str]:
        found = self.get(name)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            self.fail(f"has {'no' if found is None else 'other things than texts in'} {_KEY}{name}")
        assert isinstance(found, list)
        return found

    def scores(self) -> Sequence[float]:
        found = self._column("scores", (int, float), default=0.0)
        wrong = next((score for score in found if not math.isfinite(score)), None)
        if wrong is not None:
            self.fail(f"has {wrong!r} among its {_KEY}scores, by which nothing can be ranked")
        return found

    def flag(self, name: str, default: bool) -> bool:
        found = self.get(name, default)
        if not isinstance(found, bool):
            self.fail(f"has {shortened(found)} as {_KEY}{name}, which is neither true nor false")
        return bool(found)

    def token_of(self, name: str, default: int | None = None) -> str | None:
        """The text of a special token, given the key of its id."""
        found = self.get(f"{name}_token_id", default)
        if found is None:
            return None
        if type(found) is not int or not 0 <= found < len(self.tokens):
            self.fail(f"has {shortened(found)} as {_KEY}{name}_token_id, and ids from 0 to {len(self.tokens) - 1}")
        assert isinstance(found, int)
        return self.tokens[found]

    @property
    def special(self) -> dict[str, str]:
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        found = {name: self.token_of(key) for name, key in names.items()}
        return {name: token for name, token in found.items() if token is not None}

    @property
    def templates(self) -> dict[str, str]:
        found = {key: value for key, value in self._metadata.items() if key.startswith(_TEMPLATE)}
        found.pop(_TEMPLATE + "s", None)  # the names of the others
        if not all(isinstance(value, str) for value in found.values()):
            self.fail("has a chat template that is not a text")
        return {key.removeprefix(_TEMPLATE).removeprefix(".") or "default": value for key, value in found.items()}

    def added_tokens(self) -> list[dict[str, Any]]:
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return [
            {"id": i, "content": token, **plain, "special": kind != USER_DEFINED}
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (UNKNOWN, CONTROL, USER_DEFINED)
        ]

    def fail(self, what: str) -> None:
        raise TokenizerError(f"{self.path} {what}. Convert the model to GGUF again, with its tokenizer.")

    def _column(self, name: str, kind: type | tuple[type, ...], *, default: float) -> list[Any]:
        """One number for each token."""
        found = self.get(name, [default] * len(self.tokens))
        if not isinstance(found, list) or len(found) != len(self.tokens):
            self.fail(f"has {len(self.tokens)} tokens and not as many entries in {_KEY}{name}")
        assert isinstance(found, list)
        wrong = next((one for one in found if isinstance(one, bool) or not isinstance(one, kind)), None)
        if wrong is not None:
            self.fail(f"has {shortened(wrong)} in {_KEY}{name}, which is no number of its kind")
        return found


def _byte_level(source: _Source) -> dict[str, Any]:
    name = source.get("pre", "default")
    if not isinstance(name, str) or name not in SPLITTINGS:
        raise TokenizerError(
            f"{source.path} names the pre-tokenizer {shortened(name)} (tokenizer.ggml.pre), and how it cuts a text is "
            f"not known here; known are {', '.join(SPLITTINGS)}. Give the folder of the model that the file was "
            "converted from."
        )
    how = SPLITTINGS[name]
    merges = [_pair(source, merge) for merge in source.texts("merges")]
    return {
        "added_tokens": source.added_tokens(),
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(how),
        "post_processor": _post_processor(source, add_bos=how.add_bos, bos=11, eos=11),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": _bpe(source.vocabulary, merges, ignore_merges=how.ignore_merges),
    }


def _pair(source: _Source, merge: str) -> list[str]:
    first, separator, second = merge[1:].partition(" ")  # from the second character: the first may be a space itself
    if not separator or not second:
        source.fail(f"has the merge {merge!r}, which is not two pieces with a space between")
    return [merge[:1] + first, second]


def _pre_tokenizer(how: _Splitting) -> dict[str, Any]:
    splits = (
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in how.patterns
    )
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return _sequence("pretokenizers", *splits, last)


def _sentence_piece(source: _Source) -> dict[str, Any]:
    work = sum(len(token) ** 2 for token in source.tokens)
    if work > MOST_WORK:
        longest = max(map(len, source.tokens))
        source.fail(f"has tokens with scores that are too long to be split, the longest of {longest} characters")
    prefix = source.flag("add_space_prefix", default=True)
    return {
        "added_tokens": source.added_tokens(),
        "normalizer": _sequence(
            "normalizers",
            *([{"type": "Prepend", "prepend": SPACE}] if prefix else []),
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        ),
        "pre_tokenizer": None,
        "post_processor": _post_processor(source, add_bos=True, bos=1, eos=2),
        "decoder": _sequence(
            "decoders",
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
        ),
        "model": _bpe(
            source.vocabulary,
            merges_of_scores(source.vocabulary, source.scores()),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=source.token_of("unknown", 0),
        ),
    }


def merges_of_scores(vocabulary: dict[str, int], scores: Sequence[float]) -> list[list[str]]:
    """The pairs that SentencePiece would join, in its order: the best score of what they join to first.

    Where several pairs join to one piece, in the order of their ids, as converters write them.
    """
    ranked: list[tuple[float, int, int, int]] = []
    pieces = list(vocabulary)
    for piece, token_id in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = vocabulary.get(piece[:cut]), vocabulary.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[token_id], token_id, left, right))
    ranked.sort()
    return [[pieces[left], pieces[right]] for _, _, left, right in ranked]


def _sequence(key: str, *items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", key: list(items)}


def _bpe(vocabulary: dict[str, int], merges: list[list[str]], **options: Any) -> dict[str, Any]:
    plain = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {**plain, **options, "vocab": vocabulary, "merges": merges}


def _post_processor(source: _Source, *, add_bos: bool, bos: int, eos: int) -> dict[str, Any] | None:
    """Adds BOS and EOS where the file or llama.cpp's default says so; `bos` and `eos` are its default ids."""
    first = source.token_of("bos", bos) if source.flag("add_bos_token", add_bos) else None
    last = source.token_of("eos", eos) if source.flag("add_eos_token", False) else None
    added = [token for token in (first, last) if token is not None]
    if not added:
        return None
    single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if first is not None:
        single.insert(0, {"SpecialToken": {"id": first, "type_id": 0}})
    if last is not None:
        single.append({"SpecialToken": {"id": last, "type_id": 0}})
    known = {t: {"id": t, "ids": [source.vocabulary[t]], "tokens": [t]} for t in added}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known}


_BUILDERS = {"gpt2": _byte_level, "llama": _sentence_piece}
"""`tokenizer.ggml.model` -> the pipeline"""
