"""A tokenizer as it is stored: everything that decides which ids a text or a conversation becomes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from onepolicy.errors import TokenizerError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTokenizer:
    """Read from a folder, a `tokenizer.json`, the hub's local cache or a GGUF file; see `onepolicy.tokens.open`."""

    origin: str
    """what was opened, as the user named it"""
    format: Literal["tokenizer.json", "gguf"]
    pipeline: dict[str, Any]
    """the content of `tokenizer.json`; of a GGUF file what its metadata amounts to"""
    special: dict[str, str] = field(default_factory=dict)
    """bos_token, eos_token, pad_token, unk_token -> its text, as the configuration names them"""
    templates: dict[str, str] = field(default_factory=dict)
    """name -> Jinja source of a chat template; the usual one is `default`"""
    settings: dict[str, Any] = field(default_factory=dict)
    """what else the configuration says and changes ids or text: add_bos_token, clean_up_tokenization_spaces ..."""
    versions: dict[str, str] = field(default_factory=dict)
    """library or converter -> version, where the files say it"""

    def tokenizer(self) -> Tokenizer:
        """A new Tokenizer from the pipeline, without truncation and padding.

        Raises: TokenizerError if the parts of the pipeline do not fit together.
        """
        from tokenizers import Tokenizer as Built  # noqa: PLC0415 - only token commands need it

        bare = _without_prefix(self.pipeline["model"])
        if bare is not None:  # the library would end the process
            raise self._unusable(f"the merge with {bare!r} lacks the prefix of pieces inside a word")
        try:
            built = Built.from_str(json.dumps(self.pipeline))
        except BaseException as error:  # the library raises nothing more specific than Exception
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise self._unusable(str(error).strip().partition("\n")[0]) from error
        built.no_truncation()
        built.no_padding()
        if _fails(built):
            raise self._unusable("the library fails when it encodes a text")
        return built

    def _unusable(self, reason: str) -> TokenizerError:
        return TokenizerError(
            f"{self.origin}: its parts do not make a tokenizer ({reason}). Save or convert the tokenizer again."
        )


def _without_prefix(model: dict[str, Any]) -> str | None:
    """The right half of a merge that lacks the prefix which the model says that each has; None if there is none."""
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not prefix or not isinstance(prefix, str) or not isinstance(merges, list):
        return None
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
    rights = (str(pair[-1]) for pair in pairs if isinstance(pair, list) and pair)
    return next((right for right in rights if not right.startswith(prefix)), None)


def is_panic(error: BaseException) -> bool:
    """Whether the Rust code of a library failed; such an error is no Exception, and its class cannot be imported."""
    return type(error).__name__ == "PanicException"


def _fails(tokenizer: Tokenizer) -> bool:
    """Whether the library itself fails on a text, as with a damaged table or a special token without an id."""
    try:
        tokenizer.encode("a b")
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        return is_panic(error)  # an Exception: it refuses this text, as a vocabulary of words may
    return False
