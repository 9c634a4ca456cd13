"""Beginnings of texts at which a model's sampling shows: some unsure, some sure, some that repeat themselves."""

from __future__ import annotations

TEXTS = (
    "Once upon a time there was a",
    "The three largest cities of the country are",
    "red blue red blue red blue red blue red blue red",
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
    "The the the the the the the the the the the",
    "def add(a, b):\n    return a + b\n\ndef mul(a, b):\n    return",
    "The report was long. The report was dull. The report was long. The report was",
    "He opened the door and saw",
)
REPEATING = (
    " no no no no no no no no no no",
    "aaaaaaaaaaaaaaaaaaaaaaaa",
    "0 0 0 0 0 0 0 0 0 0 0 0",
    "1 0 1 0 1 0 1 0 1 0 1 0 1 0",
    "ha ha ha ha ha ha ha ha ha",
    "yes, yes, yes, yes, yes, yes, yes,",
    "A B C A B C A B C A B C A B C A",
    "cat cat cat cat cat cat cat cat",
)
"""after which a model is sure of a token that it has just written, so that the order of a penalty shows"""
PER_TEXT = 8
"""completions of each, with a seed of its own"""
LENGTH = 16
"""tokens of each"""
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "</s>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<eos>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|user|>",
    "<|observation|>",
)
"""how models spell tokens that end an answer"""
