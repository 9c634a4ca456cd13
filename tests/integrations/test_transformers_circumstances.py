"""One model called in different ways, against the whole sequence alone in float64."""

import numpy as np
import pytest
import torch
import transformers
from leg_models import END, VOCABULARY, absolute, one_thread, rotary, saved  # noqa: F401

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.engines.legs import CACHED
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import open_engine
from onepolicy.integrations.transformers.circumstances import Circumstances
from onepolicy.integrations.transformers.cuts import cuts_of
from onepolicy.integrations.transformers.parallel import open_rank
from onepolicy.integrations.transformers.score import ScoreSettings
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState

SHAPES = ((31, 9), (12, 3), (25, 20), (40, 11))
"""length of each sequence, and of its prompt"""


@pytest.fixture(scope="module", params=[rotary, absolute], ids=["rotary", "absolute"])
def model(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def rope(tmp_path_factory):
    return rotary(tmp_path_factory.mktemp("rope") / "model")


def opened(target, **options):
    return open_engine(
        EngineSpec(engine="transformers", target=str(target), options={k: str(v) for k, v in options.items()})
    )


def items(shapes=SHAPES):
    generator = np.random.default_rng(0)
    return [
        ScoreInput(
            rollout_id=f"r{n}",
            token_ids=generator.integers(8, VOCABULARY, size=length).astype(np.int32),
            wanted=np.arange(length) >= prompt,
        )
        for n, (length, prompt) in enumerate(shapes)
    ]


def scored(target, batch, **options):
    engine = opened(target, **options)
    try:
        return engine.score(batch, Wanted())
    finally:
        engine.close()


def exact(target, ids):
    """[T] in float64; NaN for the first token."""
    net = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64).eval()
    with torch.no_grad():
        lps = net(torch.tensor([ids.tolist()])).logits[0].log_softmax(-1)
    return np.asarray([np.nan, *(float(lps[at - 1, ids[at]]) for at in range(1, len(ids)))])


SAME = [
    {"rows": "reversed"},
    {"cache": "prefix"},
    {"cache": "turns"},
    {"cache": "steps"},
    {"cache": "blocks"},
    {"chunk": 7},
    {"chunk": 7, "padding_side": "left"},
    {"packed": "true"},
    {"mode": "train"},
    {"head": "float32"},
]


@pytest.mark.parametrize("options", SAME, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_every_sound_way_of_calling_gives_the_models_own_logprobs(model, options, batch_size):
    batch = items()
    for item, row in zip(batch, scored(model, batch, batch_size=batch_size, **options), strict=True):
        assert row.rollout_id == item.rollout_id
        assert (row.states == TokenState.VALUE).tolist() == item.wanted.tolist()
        np.testing.assert_allclose(row.logprobs[item.wanted], exact(model, item.token_ids)[item.wanted], atol=2e-4)


@pytest.mark.parametrize("cache", ["prefix", "turns", "steps", "blocks"])
def test_how_much_came_from_the_cache_is_what_an_earlier_call_had_computed(rope, cache):
    batch = items()
    rows = scored(rope, batch, cache=cache)
    for item, row, (length, prompt) in zip(batch, rows, SHAPES, strict=True):
        counts = row.statistics[CACHED]
        assert np.isnan(counts[~item.wanted]).all()
        given = counts[item.wanted]
        assert given[0] == 0, "the first token is predicted by the call of the prompt"
        if cache == "prefix":
            assert (given[1:] == prompt).all()
        elif cache == "steps":
            assert given[1:].tolist() == list(range(prompt, length - 1))
        else:
            assert (np.diff(given) >= 0).all()
            assert given[-1] < length


def test_turns_are_cut_where_the_tokens_that_are_asked_for_begin_and_end():
    item = items(((20, 4),))[0]
    wanted = np.isin(np.arange(20), [4, 5, 6, 12, 13, 14, 15])
    turns = ScoreInput(rollout_id="r", token_ids=item.token_ids, wanted=wanted)
    settings = ScoreSettings(padding_side="right", pad_id=0, max_length=None)
    assert cuts_of([turns], Circumstances(cache="turns"), settings).columns == (0, 4, 7, 12, 16, 20)
    assert cuts_of([item], Circumstances(cache="turns"), settings).columns == (0, 4, 9, 14, 20)


def test_a_plain_engine_and_a_cache_that_is_not_used_count_nothing(rope):
    assert all(CACHED not in row.statistics for row in scored(rope, items()))
    assert all(CACHED not in row.statistics for row in scored(rope, items(), chunk=8))


def test_dropout_in_train_mode_is_another_policy_and_repeats(tmp_path):
    model = absolute(tmp_path / "model", dropout=0.2)
    plain, one, two = scored(model, items()), scored(model, items(), mode="train"), scored(model, items(), mode="train")
    assert np.nanmax(np.abs(plain[0].logprobs - one[0].logprobs)) > 0.05
    np.testing.assert_array_equal(one[0].logprobs, two[0].logprobs)
    state = torch.random.get_rng_state()
    scored(model, items(), mode="train")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_head_in_float32_is_closer_to_float64_than_the_one_in_bfloat16(rope):
    batch = items()
    half, head = scored(rope, batch, dtype="bfloat16"), scored(rope, batch, dtype="bfloat16", head="float32")
    engine = opened(rope, dtype="bfloat16")
    net = engine._loaded.model
    item = batch[0]
    with torch.no_grad():
        hidden = net.get_decoder()(torch.tensor([item.token_ids.tolist()])).last_hidden_state[0].double()
        lps = (hidden @ net.lm_head.weight.double().T).log_softmax(-1)
    engine.close()
    wanted = np.flatnonzero(item.wanted)
    best = np.asarray([float(lps[at - 1, item.token_ids[at]]) for at in wanted])
    assert np.abs(head[0].logprobs[wanted] - best).mean() < 0.3 * np.abs(half[0].logprobs[wanted] - best).mean()


def test_tokens_beyond_the_models_length_are_truncated_in_packed_rows_too(tmp_path):
    model = rotary(tmp_path / "model", max_position_embeddings=16)
    plain, packed = scored(model, items()), scored(model, items(), packed="true")
    for one, other in zip(plain, packed, strict=True):
        assert one.states.tolist() == other.states.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_a_first_token_that_is_asked_for_is_absent_in_packed_rows(rope):
    batch = [ScoreInput(rollout_id=i.rollout_id, token_ids=i.token_ids, wanted=np.ones_like(i.wanted)) for i in items()]
    for options in ({}, {"packed": "true"}, {"cache": "steps"}):
        assert {int(row.states[0]) for row in scored(rope, batch, **options)} == {int(TokenState.ABSENT)}


def test_packed_rows_report_no_other_tokens(rope):
    item = items()[0]
    report = TopLists(positions=np.asarray([12]), ids=np.asarray([[9]]), logprobs=np.zeros((1, 1), np.float32))
    asked = ScoreInput(rollout_id="r", token_ids=item.token_ids, wanted=item.wanted, report=report)
    with pytest.raises(EngineError, match="packed=true: sequences in one row give logprobs alone"):
        scored(rope, [asked, *items()], packed="true")


def test_a_model_that_cannot_be_called_so_is_an_error_of_the_engine_and_scores_plainly(tmp_path):
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=1, eos_token_id=END
    )
    folder = saved(transformers.MambaForCausalLM, config, tmp_path / "mamba")
    assert len(scored(folder, items(), attn="eager")) == len(items())
    with pytest.raises(EngineError, match="MambaForCausalLM cannot be called so"):
        scored(folder, items(), attn="eager", chunk=4)


def test_full_logits_of_layouts_heed_no_circumstance(rope):
    with pytest.raises(UsageError, match="sets how the model is called when it scores"):
        open_rank(EngineSpec(engine="transformers", target=str(rope), options={"head": "float32"}), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "steps", "chunk": 4}, "cache and chunk cannot be had together"),
        ({"packed": "true", "mask": "none"}, "packed sequences are kept apart by position ids"),
        ({"cache": "nope"}, "option cache='nope'"),
        ({"chunk": 0}, "option chunk='0'"),
    ],
)
def test_what_cannot_be_had_together_is_refused(rope, options, message):
    with pytest.raises(UsageError, match=message):
        opened(rope, **options)


def test_a_plain_reading_is_described_as_before_and_an_altered_one_by_what_is_set(rope):
    engine = opened(rope)
    assert not set(engine.info.options) & set(Circumstances.model_fields)
    assert engine.condition(path="prefill").path == "prefill"
    engine.close()
    engine = opened(rope, cache="steps")
    assert engine.info.options["cache"] == "steps"
    assert engine.condition(path="prefill").path == "decode"
    engine.close()


def test_sampling_is_not_touched_by_a_circumstance(rope):
    from onepolicy.engines.contract import SampleInput  # noqa: PLC0415
    from onepolicy.records.protocol import SamplingProtocol  # noqa: PLC0415

    asked = [SampleInput(rollout_id="r", prompt_ids=np.asarray([20, 21, 22], dtype=np.int32), seed=3)]
    drawn = []
    for options in ({}, {"mode": "train"}, {"cache": "steps"}):
        engine = opened(rope, **options)
        (one,) = engine.sample(asked, SamplingProtocol(max_new_tokens=6), Wanted())
        drawn.append(one.token_ids.tolist())
        engine.close()
    assert drawn[0] == drawn[1] == drawn[2]
    assert END == 0
