"""K15, K16: an end that was forced onto unfinished rows (B73), and a prompt that one side alone cuts (B77).

No cause is made for either, so the honest answer is that none was found. B72, B75, B76, B78 and B80 are no difference
between logprobs: they are audits of ends, limits and losses.
"""

from dataclasses import replace

import numpy as np
from cases.case_runs import function, named, of, of_tokens, sampled, trained, why
from causes.planted import situation, tokens_of

from onepolicy.records.finding import Outcome

LIMIT = 70


def test_b73_an_end_that_the_model_did_not_choose_is_no_other_cause():
    """The trainer scores the end that it put in place of the last token of every row."""
    tokens = tokens_of(kept=("trainer",))
    last = tokens.position == tokens.position.max()
    assert np.abs(tokens.d[~last]).mean() < 0.02
    forced = replace(tokens, q=np.where(last, tokens.q - 12.0, tokens.q))
    findings, sentence = of_tokens(forced, situation())
    assert not named(findings), sentence
    assert sentence.startswith("No cause found")


def test_b77_a_prompt_that_the_trainer_alone_cuts_is_no_other_cause(tmp_path, rope):
    cut = f"""
cut = [one[8:] if len(one) > {LIMIT} else one for one in token_ids]
found = right_way(MODEL, cut)
return [([0.0] * len(one) + row)[-len(one):] for one, row in zip(token_ids, found)]
"""
    path = sampled(tmp_path / "run", f"transformers:{rope}", before="the words that are cut away ")
    found = why(trained(path, function(tmp_path, rope, cut)))
    assert found.differs
    assert not named(found), found.sentence
    assert of(found, "special tokens").outcome is Outcome.UNTESTED
