"""K30 to K33: padded vocabularies, fillers, wrong entries, rows, packs (B141, B142, B144, B145, B147, B148, B150)."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from cases.case_runs import columns, first, function, known, named, of, of_tokens, sampled, served, trained, why
from causes.planted import draw, log_softmax, situation, tokens_of, with_p
from tiny_transformer import Tiny, sequences

from onepolicy.records.finding import Outcome
from onepolicy.records.run import Run
from onepolicy.workflow.diagnose_tokens import tokens_of as tokens_of_run

REAL = 257
"""ids of the tokenizer of these models; their heads have 300 rows"""
MASKED = f"""
ids, mask = left(token_ids)
logits = MODEL(input_ids=ids, attention_mask=mask, position_ids=positions_of(mask)).logits.detach()
logits[:, :, {REAL}:] = -torch.inf
return taken(logits, token_ids)
"""


@pytest.fixture(scope="module")
def padded(rope, tmp_path_factory):
    """The model with rows of zeros behind its last token, as a head that was made wider has them."""
    folder = tmp_path_factory.mktemp("padded") / "model"
    folder.mkdir()
    for file in rope.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    model = transformers.AutoModelForCausalLM.from_pretrained(rope, dtype=torch.float32)
    model.lm_head.weight.data[REAL:] = 0.0
    model.save_pretrained(folder)
    return folder


def masked_in_the_sampler(path, folder, *, statistics):
    trained(sampled(path, f"transformers:{folder}"), f"transformers:{folder}", statistics=statistics)
    return served(path, function(path.parent, folder, MASKED))


def test_b141_padded_rows_on_both_sides_are_no_difference(tmp_path, padded):
    """Their ids are an audit's business; both sides agree on what they are worth."""
    path = sampled(tmp_path / "run", f"transformers:{padded}", temperature=1.5)
    assert not why(trained(path, f"transformers:{padded}")).causes


def test_b142_rows_that_are_masked_in_the_sampler_alone_are_counted(tmp_path, padded):
    found = why(masked_in_the_sampler(tmp_path / "run", padded, statistics=True), of="served")
    assert named(found) == [("vocabulary padding", "cause")], found.sentence
    assert "left out on the rollout side alone" in first(found).label
    assert f"without its {300 - REAL} rows" in first(found).label


def test_b142_without_statistics_the_engine_is_asked_for_them(tmp_path, padded):
    found = why(masked_in_the_sampler(tmp_path / "run", padded, statistics=False), of="served")
    assert named(found) == [("vocabulary padding", "cause")], found.sentence


def test_b142_rows_whose_mass_moves_with_the_context_are_the_cause_by_a_reading_without_them(tmp_path, rope):
    finding = first(why(masked_in_the_sampler(tmp_path / "run", rope, statistics=True), of="served"))
    assert (finding.cause, finding.outcome) == ("vocabulary padding", Outcome.CAUSE)


def test_b144_the_first_entry_of_a_dictionary_is_the_likeliest_tokens():
    findings, sentence = of_tokens(with_p(tokens_of(), log_softmax(draw()[1]).max(axis=1)), situation())
    assert named(findings) == [("wrong entry", "cause")], sentence
    assert "look the logprob up by the sampled id" in first(findings).remedy


@pytest.mark.parametrize("accepted", [0.4, 1.0], ids=["accepted positions", "all"])
def test_b145_zeros_of_accepted_drafts_are_placeholders(accepted):
    tokens = tokens_of(kept=())
    places = np.random.default_rng(1).random(len(tokens)) < accepted
    findings, sentence = of_tokens(with_p(tokens, np.where(places, 0.0, tokens.p)), situation())
    assert named(findings) == [("placeholders", "cause")], sentence
    assert "exactly 0.0 on the rollout side" in first(findings).label
    assert "speculative decoding" in first(findings).remedy or "scoring pass" in first(findings).remedy


def test_b145_a_token_that_is_nearly_certain_is_genuine():
    tokens = tokens_of(kept=())
    p, q = tokens.p.copy(), tokens.q.copy()
    p[::3], q[::3] = -1e-6, -1.1e-6
    assert not named(of_tokens(replace(tokens, p=p, q=q), situation())[0])


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "exactly 0.0"), (-9999.0, "sentinel"), (-100.0, "sentinel"), (1.0, "above 0"), (-6.907755, "one constant")],
)
def test_b147_fillers_are_named_with_their_value_count_and_place(value, said):
    tokens = tokens_of(kept=())
    findings, sentence = of_tokens(with_p(tokens, np.where(tokens.position > 55, value, tokens.p)), situation())
    assert named(findings) == [("placeholders", "cause")], sentence
    assert said in first(findings).label
    assert f"at position 56: rollout {value:g}" in first(findings).seen
    assert "60 rollouts" in first(findings).seen


@pytest.fixture(scope="module")
def batch():
    """16 rows: the prompts are their first 16 ids; rows 3 and 11 have each other's completions."""
    model, ids = Tiny(), sequences(count=16, length=80)
    sampled_rows = [model.logprobs(one) for one in ids]
    swapped = [one.copy() for one in ids]
    swapped[3], swapped[11] = ids[3][:16] + ids[11][16:], ids[11][:16] + ids[3][16:]
    return model, ids, sampled_rows, swapped


def test_b148_values_of_two_rows_that_changed_places_are_paired_again(batch):
    _, ids, exact, _ = batch
    trainer = list(exact)
    trainer[3], trainer[11] = exact[11], exact[3]
    findings, sentence = of_tokens(columns(ids, exact, trainer, start=16), known())
    assert named(findings) == [("rows paired wrongly", "cause")], sentence
    assert first(findings).label == "2 of 16 rollouts have the trainer logprobs of another one"
    assert "belong to rollout r11 stand at rollout r3;" in first(findings).seen


def rows_under_foreign_prompts(batch):
    """Completions with their own rollout logprobs, scored under another row's prompt."""
    model, _, exact, swapped = batch
    rollout = list(exact)
    rollout[3], rollout[11] = exact[11], exact[3]
    scored = [model.logprobs(one) for one in swapped]
    return columns(swapped, rollout, scored, start=16)


def test_b148_completions_that_were_scored_under_another_prompt_are_no_other_cause(batch):
    findings, sentence = of_tokens(rows_under_foreign_prompts(batch), known())
    assert not named(findings), sentence


def test_b148_completions_under_another_prompt_of_an_engine_are_no_other_cause_and_what_to_compare_is_said(
    tmp_path, rope
):
    path = trained(sampled(tmp_path / "run", f"transformers:{rope}"), f"transformers:{rope}")
    (tmp_path / "foreign.json").write_text(json.dumps(under_foreign_prompts(path)))
    code = f"""
import json
from pathlib import Path
FOREIGN = json.loads(Path({str(tmp_path / "foreign.json")!r}).read_text())
found = right_way(MODEL, [FOREIGN.get(str(one), one) for one in token_ids])
return [([0.0] * len(one) + row)[-len(one):] for one, row in zip(token_ids, found)]
"""
    found = why(served(path, function(tmp_path, rope, code)), of="served")
    assert found.differs
    assert not named(found), found.sentence
    assert "compare the hash of each prompt's ids" in of(found, "rows paired wrongly").seen


def under_foreign_prompts(path):
    """The ids of eight rows, as text -> the same completion under the prompt of the next of them."""
    tokens = tokens_of_run(Run.open(path), "rollout", "trainer")
    rows = [(tokens.sequences[row].tolist(), int(tokens.position[part][0])) for row, part in tokens.parts()[:8]]
    prompts = [ids[:start] for ids, start in rows]
    return {str(ids): other + ids[start:] for (ids, start), other in zip(rows, prompts[1:] + prompts[:1], strict=True)}


@pytest.mark.parametrize("model", ["rope", "gpt2"])
def test_b150_packed_samples_that_see_each_other_are_exact_one_at_a_time(tmp_path, request, model):
    folder = request.getfixturevalue(model)
    path = trained(sampled(tmp_path / "run", f"transformers:{folder}"), f"transformers:{folder}")
    code = "return packed_without_a_wall(MODEL, token_ids)"
    whole = shutil.copytree(path, tmp_path / "copy")
    found = why(served(whole, f"{function(tmp_path, folder, code)}?batch_size=4"), of="served")
    assert named(found) == [("batch", "cause")], found.sentence
    assert first(found).label == "the rollout side with one sequence at a time"
    assert "walls between packed sequences" in first(found).remedy


def test_b150_packed_samples_that_are_kept_apart_are_silent(tmp_path, rope):
    path = trained(sampled(tmp_path / "run", f"transformers:{rope}"), f"transformers:{rope}")
    code = "return [row for one in token_ids for row in packed_without_a_wall(MODEL, [one])]"
    assert not why(served(path, function(tmp_path, rope, code)), of="served").causes
