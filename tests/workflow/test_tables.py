"""A long rollout is cut around its worst token, and the page stays small whatever its tokens spell."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from onepolicy.numerics.evidence import RolloutDetail
from onepolicy.tokens.pieces import Pieces
from onepolicy.workflow.tables import MOST_CHARACTERS, MOST_TOKENS, shown_rollout


def detail(compared, worst):
    p = np.full(compared, -1.0, dtype=np.float32)
    q = p.copy()
    q[worst] = -3.0
    return RolloutDetail(
        rollout_id="r",
        prompt_id="p",
        token_ids=np.zeros(compared + 10, dtype=np.int32),
        positions=np.arange(10, compared + 10, dtype=np.int32),
        rollout_logprobs=p,
        trainer_logprobs=q,
        mean_abs_d=0.0,
        mean_k3=0.0,
        sum_d=-2.0,
        max_abs_d=2.0,
    )


@pytest.mark.parametrize("compared", [1, MOST_TOKENS, MOST_TOKENS + 1, 5000])
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_what_is_shown_holds_the_worst_token_and_counts_the_rest(compared, where):
    worst = round((compared - 1) * where)
    shown = shown_rollout(detail(compared, worst), None)
    assert len(shown.positions) == min(compared, MOST_TOKENS)
    assert shown.cut_before + len(shown.positions) + shown.cut_after == compared
    assert shown.positions[0] == 10 + shown.cut_before
    assert shown.trainer_logprobs[worst - shown.cut_before] == -3.0
    assert (shown.pieces, shown.before) == ((), "")


def test_a_token_of_a_thousand_characters_is_cut():
    pieces = Pieces(Tokenizer(models.WordLevel(vocab={"<" * 1000: 0}, unk_token="a")))
    shown = shown_rollout(detail(20, 3), pieces)
    assert set(shown.pieces) == {"<" * MOST_CHARACTERS + "…"}
    assert len(shown.before) <= 400
