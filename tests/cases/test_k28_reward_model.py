"""K28: a reward model's score is read, padded or loaded wrongly. Each fault goes through a real model in its folder."""

import numpy as np
import pytest
import reward_functions
from leg_models import one_thread  # noqa: F401 - many threads on small matrices wait for each other
from reward_models import PAD, adapter, gpt2, llama, reconfigured, retokenized, without_head
from safetensors.torch import load_file, save_file

from onepolicy.errors import EngineError
from onepolicy.workflow.reward import RewardRequest, check_reward


def checked(model, **request):
    found = check_reward(RewardRequest(model=str(model), **request))
    return found, {verdict.check: verdict for verdict in found.verdicts}


def failing(found):
    return {one.check for one in found.verdicts if one.status.value == "fail" and one.required}


@pytest.fixture
def through(tmp_path, monkeypatch):
    """A sound model, called by a function of the user's."""
    monkeypatch.setenv("REWARD_FOLDER", str(llama(tmp_path / "sound")))
    return lambda name: f"callable:{reward_functions.__file__}:{name}?dtype=float32"


@pytest.mark.parametrize("make", [llama, lambda folder: llama(folder, kind="TokenClassification")])
def test_control_a_sound_model_passes(tmp_path, make):
    found, verdicts = checked(make(tmp_path / "model"))
    assert (found.exit_status, failing(found)) == (0, set()), found.sentence
    assert verdicts["two_loads"].value == 0
    assert verdicts["padding"].value < 1e-4


def test_control_a_model_with_learned_positions_that_is_padded_on_the_right_passes(tmp_path):
    found, verdicts = checked(gpt2(tmp_path / "model", side="right"))
    assert found.exit_status == 0, found.sentence
    assert "never pad on the left" in verdicts["padding"].message


def test_control_the_last_real_token_passes_through_a_function(through):
    found, _ = checked(through("at_last"))
    assert found.exit_status == 0, found.sentence


def test_b130_a_score_at_the_first_padding_id_does_not_depend_on_the_last_response(through):
    found, verdicts = checked(through("at_first_pad"))
    assert {"response_swap", "reads_end"} <= failing(found)
    assert verdicts["response_swap"].value == found.pairs
    assert "first padding id, which is also the end of a turn" in found.sentence


def test_b130_with_padding_that_is_the_end_token_the_end_token_is_not_read(tmp_path):
    folder = reconfigured(retokenized(llama(tmp_path / "model"), pad="<|end|>"), pad_token_id=0)
    found, verdicts = checked(folder)
    assert failing(found) == {"reads_end"}
    assert verdicts["reads_end"].value == 1
    assert "Its end token is also the padding id" in verdicts["reads_end"].message


def test_b131_five_pads_on_the_left_move_the_score_of_learned_positions(tmp_path):
    found, verdicts = checked(gpt2(tmp_path / "model", side="left"))
    assert failing(found) == {"padding", "neighbours"}
    assert verdicts["padding"].value > 0.1
    assert "Positions count the padding" in verdicts["padding"].message


def test_b131_rotary_positions_stand_left_padding(tmp_path):
    found, verdicts = checked(f"{llama(tmp_path / 'model')}?padding_side=left")
    assert found.exit_status == 0, found.sentence
    assert verdicts["padding"].value < 1e-4


def test_b131_a_padding_id_that_is_not_the_models_is_taken_for_text(tmp_path):
    found, verdicts = checked(reconfigured(llama(tmp_path / "model"), pad_token_id=7))
    assert {"own_tokenizer", "padding", "neighbours"} == failing(found)
    assert "looked for in the wrong place" in verdicts["padding"].message


def test_b131_the_last_column_is_padding_for_all_but_the_longest(through):
    found, _ = checked(through("at_last_column"))
    assert failing(found) == {"neighbours"}


def test_b131_precision_alone_is_jitter_and_no_shift(tmp_path):
    found, verdicts = checked(f"{llama(tmp_path / 'model')}?dtype=bfloat16")
    assert verdicts["precision"].required
    assert 0.001 < verdicts["precision"].value < 0.1
    assert verdicts["padding"].value < 0.1
    assert verdicts["precision"].status.value == "pass"
    assert found.exit_status == 0, found.sentence


def test_a_padding_row_that_is_nan_fails_every_check_that_pads(tmp_path):
    folder = llama(tmp_path / "model")
    for file in folder.glob("*.safetensors"):
        weights = load_file(file)
        weights["model.embed_tokens.weight"][PAD] = np.nan
        save_file(weights, file, metadata={"format": "pt"})
    assert {"two_loads", "padding", "neighbours", "length_slope"} <= failing(checked(folder)[0])


def test_b133_a_head_that_was_not_saved_is_another_one_at_each_load(tmp_path):
    found, verdicts = checked(without_head(llama(tmp_path / "model")))
    assert failing(found) == {"two_loads"}
    assert verdicts["two_loads"].value > 0.1
    assert "score.weight" in found.sentence


def test_b133_a_language_model_that_was_exported_instead_has_no_head_either(tmp_path):
    found, verdicts = checked(llama(tmp_path / "model", kind="CausalLM"))
    assert "two_loads" in failing(found)
    assert "score.weight" in verdicts["two_loads"].message


def test_b133_an_adapter_that_does_not_keep_the_head(tmp_path):
    base = without_head(llama(tmp_path / "base"))
    kept, lost = adapter(base, tmp_path / "kept"), adapter(base, tmp_path / "lost", task=None)
    assert failing(checked(f"{base}?adapter={kept}")[0]) == set()
    assert failing(checked(f"{base}?adapter={lost}")[0]) == {"two_loads"}
    with pytest.raises(EngineError, match=r"score\.weight.*adapter_config\.json says was saved"):
        checked(f"{base}?adapter={without_head(kept)}")


def test_a_head_of_two_outputs_is_no_reward(tmp_path):
    folder = llama(tmp_path / "model", labels=2)
    assert failing(checked(folder)[0]) == {"scalar_head"}
    assert failing(checked(f"{folder}?label=1")[0]) == set()


def test_a_text_that_is_too_long_must_lose_its_beginning(tmp_path):
    folder = retokenized(llama(tmp_path / "model"), cuts="right")
    assert checked(folder)[1]["truncation_side"].status.value == "unknown", "no text is too long: it only informs"
    found, verdicts = checked(f"{folder}?max_length=100")
    assert "truncation_side" in failing(found)
    assert verdicts["truncation_side"].value > 0
    assert "truncation_side" not in failing(checked(f"{folder}?max_length=100&truncation_side=left")[0])


def test_a_served_model_of_other_weights_is_told_from_the_same(tmp_path):
    one, other = llama(tmp_path / "one"), llama(tmp_path / "other", seed=1)
    assert checked(one, served=str(one))[0].exit_status == 0
    found, verdicts = checked(one, served=str(other))
    assert failing(found) == {"served"}
    assert np.isfinite(verdicts["served"].value)
    assert "Compare the weights" in verdicts["served"].message
