"""The one line for pipelines."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

import onepolicy
from onepolicy.errors import TokenizerError, UsageError
from onepolicy.records.rollout import Rollout

LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def built(normalizer=None):
    model = models.BPE(vocab={piece: i for i, piece in enumerate([*LETTERS, "th"])}, merges=[("t", "h")])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


TOKENIZER = built()
SPLIT = [TOKENIZER.token_to_id(piece) for piece in ("a", "t", "h")]
WHOLE = [TOKENIZER.token_to_id(piece) for piece in ("a", "th")]


class FastTokenizer:
    """As Transformers' fast tokenizers hold theirs."""

    backend_tokenizer = TOKENIZER


def rollout_of(ids, *, text=None):
    sampled = np.arange(2 + len(ids)) >= 2
    return Rollout(
        rollout_id="r-9",
        prompt_id="p",
        trajectory_id="t",
        token_ids=np.array([0, 0, *ids], dtype=np.int32),
        sampled=sampled,
        loss_mask=sampled,
        text=text,
    )


@pytest.mark.parametrize("tokenizer", [TOKENIZER, FastTokenizer()])
@pytest.mark.parametrize("ids", [WHOLE, np.array(WHOLE), tuple(WHOLE)])
def test_ids_that_come_back_pass_in_silence(ids, tokenizer):
    assert onepolicy.assert_round_trip(ids, tokenizer) is None


def test_a_path_is_a_tokenizer_too(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(TOKENIZER.to_str())
    onepolicy.assert_round_trip(WHOLE, str(path))
    with pytest.raises(onepolicy.NotTheSameTokensError):
        onepolicy.assert_round_trip(SPLIT, str(path))


def test_ids_that_do_not_come_back_raise_an_assertion_error_whose_message_is_the_finding():
    with pytest.raises(AssertionError) as raised:
        onepolicy.assert_round_trip(SPLIT, TOKENIZER)
    assert str(raised.value) == (
        "token 1: another valid segmentation: 'th' is 2 tokens sampled and 1 encoded. sampled t | h, encoded th. "
        "Train on the sampled ids; do not encode their text again."
    )
    assert raised.value.found.shifted == pytest.approx(2 / 3)


def test_a_rollout_is_named_and_its_position_is_that_in_the_full_sequence():
    with pytest.raises(onepolicy.NotTheSameTokensError, match="rollout r-9, token 3: another valid segmentation"):
        onepolicy.assert_round_trip(rollout_of(SPLIT, text="ath"), TOKENIZER)
    onepolicy.assert_round_trip(rollout_of(WHOLE), TOKENIZER)


def test_the_text_of_the_engine_counts_if_it_is_given():
    with pytest.raises(onepolicy.NotTheSameTokensError, match="EOS missing"):
        onepolicy.assert_round_trip([*WHOLE, TOKENIZER.token_to_id("</s>")], TOKENIZER, text="ath")
    with pytest.raises(onepolicy.NotTheSameTokensError, match="whitespace"):
        onepolicy.assert_round_trip(rollout_of(WHOLE, text="ath"), TOKENIZER, text="a th")


def test_the_scoring_side_may_have_another_tokenizer():
    ids = TOKENIZER.encode("A").ids
    onepolicy.assert_round_trip(ids, TOKENIZER)
    with pytest.raises(onepolicy.NotTheSameTokensError, match="normalisation: equal after lower case"):
        onepolicy.assert_round_trip(ids, TOKENIZER, scoring=built(normalizers.Lowercase()))


def test_nothing_to_check_is_an_error_and_no_pass():
    with pytest.raises(onepolicy.UsageError, match="neither a token nor a text"):
        onepolicy.assert_round_trip([], TOKENIZER)


@pytest.mark.parametrize("other", [object(), 5, None])
def test_what_is_no_tokenizer_is_refused(other):
    with pytest.raises(TokenizerError, match="no tokenizer that can be read"):
        onepolicy.assert_round_trip(WHOLE, other)


def test_the_tokenizer_is_left_as_it_was():
    tokenizer = built()
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(length=9)
    before = json.loads(tokenizer.to_str())
    onepolicy.assert_round_trip(WHOLE, tokenizer)
    assert json.loads(tokenizer.to_str()) == before


@pytest.mark.parametrize(
    "odd",
    [[97.9], np.array([97.5]), [True], "12", ["97"], {97}, [[1, 2]], np.ones((2, 2), dtype=int), None, [float("nan")]],
    ids=str,
)
def test_what_is_no_list_of_ids_is_an_error_and_never_comes_back(odd):
    with pytest.raises(UsageError, match="flat list of whole numbers"):
        onepolicy.assert_round_trip(odd, TOKENIZER)
