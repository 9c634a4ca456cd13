import numpy as np

from onepolicy.tokens.spell import Speller


def test_a_tokenizer_spells_ids_with_special_tokens_in_sight(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    ids = np.array([tokenizer.token_to_id(piece) for piece in ("the", "a", "<|end|>")], dtype=np.int32)
    assert Speller(path).spell(ids) == "thea<|end|>"
    assert Speller(path).spell(ids[:0]) == ""


def test_without_a_tokenizer_ids_are_shown_as_numbers():
    assert Speller(None).spell(np.array([3, 0], dtype=np.int32)) == "<3> <0>"
    assert Speller(None).spell(np.array([], dtype=np.int32)) == ""
