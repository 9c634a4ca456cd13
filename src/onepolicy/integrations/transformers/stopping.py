"""Stop strings, seen in the text of the completion alone.

Transformers' own criterion also looks at the prompt, whose last characters may begin a stop string.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Decode = Callable[[list[int]], str]
_MORE = 16
"""tokens that are decoded before those that a stop string can span, for what a tokenizer does to a first token"""


class StopTexts:
    """A stopping criterion for `generate` that remembers which string ended which row, and where.

    A string ends a completion with the token in which its end lies, as soon as the least length is reached.
    """

    def __init__(self, stop: tuple[str, ...], decode: Decode, *, prompt_length: int, least: int) -> None:
        self.ended: dict[int, tuple[int, str]] = {}
        """row -> length of the completion, and the string"""
        self._stop = stop
        self._decode = decode
        self._prompt_length = prompt_length
        self._least = least
        self._window = _MORE + max((len(text.encode()) for text in stop), default=0)

    def __call__(self, input_ids: Tensor, scores: object, **kwargs: object) -> Tensor:
        """Which rows are at their end. Shape: [B, T] -> [B] bool."""
        length = input_ids.shape[1] - self._prompt_length
        for row, ids in enumerate(input_ids[:, -min(length, self._window) :].tolist()):
            if row not in self.ended and length >= self._least and (found := self._found(ids)):
                self.ended[row] = (length, found)
        ended = [row in self.ended for row in range(input_ids.shape[0])]
        return torch.tensor(ended, dtype=torch.bool, device=input_ids.device)

    def _found(self, ids: list[int]) -> str | None:
        """The stop string that ends in the last token."""
        text = self._decode(ids)
        before = len(self._decode(ids[:-1]).rstrip("\ufffd"))  # a character that the last token completes is new
        return next((stop for stop in self._stop if (at := text.rfind(stop)) >= 0 and at + len(stop) > before), None)
