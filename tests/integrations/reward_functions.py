"""Ways in which people read a reward model's score, around the sound model that REWARD_FOLDER names."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import transformers


@cache
def _opened(folder: str) -> tuple[Any, Any]:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def _batch(conversations: list[Any]) -> tuple[Any, torch.Tensor, torch.Tensor, int]:
    model, tokenizer = _opened(os.environ["REWARD_FOLDER"])
    rows = [tokenizer.apply_chat_template(one, tokenize=True, return_dict=False) for one in conversations]
    end = tokenizer.eos_token_id
    width = max(map(len, rows))
    ids = torch.tensor([row + [end] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return model, ids, mask, end


def _values(model: Any, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """[B, T] the head on every token."""
    with torch.inference_mode():
        return model.score(model.model(input_ids=ids, attention_mask=mask).last_hidden_state)[..., 0]


def at_first_pad(conversations: list[Any]) -> torch.Tensor:
    """The end is where the first padding id stands, which also ends each turn."""
    model, ids, mask, end = _batch(conversations)
    first = (ids == end).int().argmax(dim=1) - 1
    return _values(model, ids, mask)[torch.arange(len(ids)), first]


def at_last(conversations: list[Any]) -> torch.Tensor:
    """The sound way."""
    model, ids, mask, _ = _batch(conversations)
    return _values(model, ids, mask)[torch.arange(len(ids)), mask.sum(dim=1) - 1]


def at_last_column(conversations: list[Any]) -> torch.Tensor:
    """The last column of the rectangle, padding or not."""
    model, ids, mask, _ = _batch(conversations)
    return _values(model, ids, mask)[:, -1]


def raises(conversations: list[Any]) -> Any:
    raise KeyError("no such reward")


def too_few(conversations: list[Any]) -> list[float]:
    return [0.0]


def texts(conversations: list[Any]) -> list[str]:
    return ["good"] * len(conversations)


def not_counted(conversations: list[Any]) -> Any:
    return None


def by_name(conversations: list[Any]) -> dict[float, float]:
    return dict.fromkeys(map(float, range(len(conversations))), 1.0)


def digits(conversations: list[Any]) -> list[str]:
    return ["1"] * len(conversations)


def bools(conversations: list[Any]) -> list[bool]:
    return [True] * len(conversations)


def endless(conversations: list[Any]) -> list[int]:
    return [10**400] * len(conversations)
