"""Token ids as a person can read them."""

from __future__ import annotations

from pathlib import Path

from onepolicy.records.tokens import IntArray


class Speller:
    """Spells ids with a run's tokenizer, or by number if it has none or the text is not to be shown."""

    def __init__(self, tokenizer_file: Path | None) -> None:
        self._tokenizer = None
        if tokenizer_file is not None:
            from tokenizers import Tokenizer  # noqa: PLC0415 - only a run with a tokenizer needs it

            self._tokenizer = Tokenizer.from_file(str(tokenizer_file))

    def spell(self, token_ids: IntArray) -> str:
        """The text of some ids."""
        if self._tokenizer is None:
            return " ".join(f"<{int(i)}>" for i in token_ids)
        return str(self._tokenizer.decode(token_ids.tolist(), skip_special_tokens=False))
