"""Checks that need a model's ids, padding and weights, on a model of one line: a sum over the ids that it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from onepolicy.records.verdict import Status
from onepolicy.signal.reward.scorer import OpenScorer, ScorerInfo, TokenIds, TokenizerFacts

PAD, BOS = 256, 257
FACTS = TokenizerFacts(
    has_template=True, rows=258, highest_id=257, pad_id=PAD, model_pad_id=PAD, end_ids=(), bos_id=BOS,
    padding_side="right",
)  # fmt: skip


@dataclass(frozen=True)
class Model:
    """Its state decays from token to token, and its score is the state at the last one."""

    facts: TokenizerFacts = FACTS
    missing: tuple[str, ...] = ()
    dtype: str = "float32"
    uses_mask: bool = True
    positions: bool = False
    """whether the place in the rectangle enters"""
    head: float = 1.0
    head_is_drawn: bool = False
    rounding: float = 1e-9
    cuts: str = "left"
    begins: tuple[int, ...] = (BOS,)
    max_length: int | None = None

    @property
    def info(self) -> ScorerInfo:
        return ScorerInfo(name="model", dtype=self.dtype, max_length=self.max_length)

    def encode(self, conversations, *, limit=None):
        found = []
        for one in conversations:
            text = "\n".join(message["content"] for message in one)
            ids = np.array([*self.begins, *text.encode()], dtype=np.int32)
            if limit and len(ids) > limit:
                ids = ids[-limit:] if self.cuts == "left" else ids[:limit]
            found.append(TokenIds(ids=ids, tokenizer="own"))
        return found

    def text(self, ids):
        return bytes(int(one) for one in ids if one < 256).decode(errors="replace")

    def score(self, conversations):
        return self.score_ids(self.encode(conversations, limit=self.max_length))

    def score_ids(self, texts):
        return np.array([self.score_padded(one, side="right", pads=0) for one in texts])

    def score_padded(self, one, *, side, pads):
        before = pads if side == "left" else 0
        padding = np.full(pads, PAD)
        ids = np.concatenate([padding, one.ids] if before else [one.ids, padding])
        real = np.ones(len(ids), dtype=bool)
        if self.uses_mask:
            real = np.concatenate([[False] * before, [True] * len(one.ids), [False] * (pads - before)]).astype(bool)
        return np.array([self._score(ids[real], np.flatnonzero(real))])

    def score_together(self, texts, *, side):
        width = max(len(one.ids) for one in texts)
        return np.array([self.score_padded(one, side=side, pads=width - len(one.ids)) for one in texts])

    def again(self, *, seed=0, dtype=None):
        drawn = replace(self, head=1.0 + seed) if self.head_is_drawn else self
        return replace(drawn, dtype=dtype or self.dtype, rounding=1e-2 if dtype == "bfloat16" else self.rounding)

    def close(self):
        """Nothing is held."""

    def _score(self, ids, places):
        decay = 0.97 ** np.arange(len(ids))[::-1]
        state = float((decay * np.sin(12.9898 * ids + (0.01 * places if self.positions else 0.0))).sum())
        return self.head * state + self.rounding * np.sin(1e4 * state)


def failing(found):
    return {name for name, one in found.items() if one.status is Status.FAIL and one.required}


def test_a_sound_model_passes_and_everything_is_looked_at(verdicts):
    found = verdicts(Model())
    assert isinstance(Model(), OpenScorer)
    assert failing(found) == set()
    open_ones = {name for name, one in found.items() if one.status is Status.UNKNOWN}
    assert open_ones <= {"served", "length_slope", "response_swap"}, "its sums prefer no answer"
    assert not any(one.required for one in found.values() if one.status is Status.UNKNOWN)


@pytest.mark.parametrize(
    ("model", "checks", "said"),
    [
        (Model(uses_mask=False), {"padding", "neighbours"}, ("padding", "The attention mask is not used")),
        (
            Model(positions=True, facts=replace(FACTS, padding_side="left")),
            {"padding", "neighbours"},
            ("padding", "Positions count the padding"),
        ),
        (Model(head_is_drawn=True, missing=("head",)), {"two_loads"}, ("two_loads", "the files lack head")),
        (Model(head_is_drawn=True), {"two_loads"}, ("two_loads", "Something is drawn at random")),
        (Model(begins=(BOS, BOS)), {"own_tokenizer"}, ("own_tokenizer", "begins with BOS (id 257) twice")),
        (Model(facts=replace(FACTS, highest_id=300)), {"own_tokenizer"}, ("own_tokenizer", "ids up to 300")),
        (Model(facts=replace(FACTS, model_pad_id=3)), {"own_tokenizer"}, ("own_tokenizer", "says pad_token_id 3")),
        (Model(facts=replace(FACTS, model_pad_id=None)), {"own_tokenizer"}, ("own_tokenizer", "names no pad_token_id")),
        (Model(cuts="right", max_length=40), {"truncation_side"}, ("truncation_side", "the answer loses its end")),
        (Model(dtype="bfloat16", rounding=1.0), {"precision"}, ("precision", "moves scores by")),
    ],
)
def test_each_fault_is_named_by_its_check(verdicts, model, checks, said):
    class Exact(type(model)):
        """In float32 the rounding is gone."""

        def again(self, *, seed=0, dtype=None):
            found = super().again(seed=seed, dtype=dtype)
            return replace(found, rounding=0.0) if dtype == "float32" else found

    found = verdicts(Exact(**{name: getattr(model, name) for name in model.__dataclass_fields__}))
    by_the_way = {"response_swap"} if model.cuts == "right" else set()
    assert checks <= failing(found) <= checks | by_the_way
    assert said[1] in found[said[0]].message


def test_positions_are_only_a_warning_where_the_tokenizer_pads_on_the_right(verdicts):
    found = verdicts(Model(positions=True))
    assert failing(found) == set()
    assert "never pad on the left" in found["padding"].message


def test_of_a_float32_model_the_precision_only_informs(verdicts):
    found = verdicts(Model())["precision"]
    assert not found.required
    assert "the model is used in float32" in found.message


def test_padding_never_goes_beyond_the_longest_text(verdicts):
    longest = []

    class Counts(Model):
        def score_padded(self, one, *, side, pads):
            longest.append(len(one.ids) + pads)
            return super().score_padded(one, side=side, pads=pads)

    verdicts(Counts(max_length=90))
    assert max(longest) <= 90


@pytest.mark.parametrize("share", np.linspace(0.05, 0.99, 16))
def test_whichever_call_of_a_model_gives_nan_a_check_that_decides_fails(verdicts, share):
    calls = []

    class Breaks(Model):
        def score_padded(self, one, *, side, pads):
            calls.append(None)
            return super().score_padded(one, side=side, pads=pads) + (np.nan if len(calls) == at else 0.0)

    at = 0
    sound = verdicts(Breaks(dtype="bfloat16"))
    assert failing(sound) == set()
    at = int(share * len(calls))
    calls.clear()
    assert len(failing(verdicts(Breaks(dtype="bfloat16")))) == 1


def test_what_16_bits_would_spoil_only_informs_of_a_float32_model(verdicts):
    class Overflows(Model):
        def again(self, *, seed=0, dtype=None):
            return Overflows(head=np.inf) if dtype == "bfloat16" else self

    found = verdicts(Overflows())["precision"]
    assert (found.status, found.required) == (Status.FAIL, False)
    assert "in bfloat16" in found.message
