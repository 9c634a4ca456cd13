"""Figures on a run, against what was planted in it."""

import numpy as np
import pytest

from onepolicy.records.manifest import Manifest
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingInfo, ReadingRequest, ReadingRow, TopLists
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.run import Run
from onepolicy.records.tokens import TokenState
from onepolicy.sampling.completions import Sides, was_there
from onepolicy.sampling.consequences import consequences
from onepolicy.sampling.diff import differences
from onepolicy.sampling.from_statistics import POWERS

VOCABULARY, PROMPT = 40, 6
LENGTHS = (4, 8, 8, 12, 16, 20, 30, 32, 32, 32)
"""of the completions; the longest three were cut"""
RECORDED = SamplingProtocol(max_new_tokens=32)


@pytest.fixture(scope="module")
def world():
    """For each rollout: [T, V] raw logprobs of its completion, and [T] the ids that were drawn."""
    generator, found = np.random.default_rng(3), []
    for length in LENGTHS:
        logits = generator.normal(size=(length, VOCABULARY)) * generator.uniform(0.5, 3, size=(length, 1))
        raw = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        ids = np.array([generator.choice(VOCABULARY, p=np.exp(row)) for row in raw], dtype=np.int32)
        found.append((raw, ids))
    return found


def statistics(raw, ids):
    p, at = np.exp(raw), np.arange(len(ids))
    above = raw > raw[at, ids][:, None]
    ranked = -np.sort(-p, axis=1)
    before = ranked.cumsum(axis=1) - ranked
    with np.errstate(divide="ignore"):
        found = {
            "rank": above.sum(axis=1),
            "log_mass_above": np.log((p * above).sum(axis=1)),
            "log_kept_top_p_0_9": np.log((ranked * (before < 0.9)).sum(axis=1)),
            **{f"log_sum_power_{i}": np.log((p**beta).sum(axis=1)) for i, beta in enumerate(POWERS)},
        }
    nothing = np.full(PROMPT, np.nan)
    return {name: np.concatenate([nothing, values]).astype(np.float32) for name, values in found.items()}


def row(rollout, raw, ids, *, keeps, k):
    states = np.array([TokenState.MASKED] * PROMPT + [TokenState.VALUE] * len(ids), dtype=np.uint8)
    order = np.argsort(-raw, axis=1)[:, :k]
    top = TopLists(
        positions=np.arange(PROMPT, PROMPT + len(ids), dtype=np.int32),
        ids=order.astype(np.int32),
        logprobs=np.take_along_axis(raw, order, axis=1).astype(np.float32),
    )
    return ReadingRow(
        rollout_id=rollout.rollout_id,
        digest=rollout.digest,
        logprobs=np.concatenate([np.full(PROMPT, np.nan), raw[np.arange(len(ids)), ids]]).astype(np.float32),
        states=states,
        statistics=statistics(raw, ids) if keeps == "statistics" else {},
        top=top if keeps == "lists" else None,
    )


@pytest.fixture
def run(tmp_path, world):
    """A run that keeps statistics, top lists, or nothing per token; text or none; finish reasons or none."""

    def made(*, keeps="statistics", text=True, says=True, k=10, meaning=Meaning()):
        manifest = Manifest(
            tool_version="0",
            status="recording",
            kind="fresh",
            suite="s",
            suite_hash="h",
            protocol=RECORDED,
            rollout_engine="fake:m",
            planned_rollouts=len(world),
        )
        found = Run.create(tmp_path / "run", manifest, resume=False)
        request = ReadingRequest(
            engine="fake:m", meaning=meaning, statistics=keeps == "statistics", top=k if keeps == "lists" else 0
        )
        engine = EngineInfo(name="fake", version="0", model="m", dtype="float64", vocab_size=VOCABULARY)
        found.start_reading(
            ReadingInfo(
                name="rollout", request=request, engine=engine, condition=Condition(), meaning=meaning, environment={}
            )
        )
        rollouts = [rollout(i, ids, text=text) for i, (_, ids) in enumerate(world)]
        rows = [row(one, *each, keeps=keeps, k=k) for one, each in zip(rollouts, world, strict=True)]
        found.write_reading("rollout", rows)
        found.write_rollouts(rollouts, [span(one, says=says) for one in rollouts])
        found.complete()
        return Run.open(tmp_path / "run")

    return made


def rollout(i, ids, *, text):
    whole = np.concatenate([np.arange(PROMPT), ids]).astype(np.int32)
    sampled = np.arange(len(whole)) >= PROMPT
    return Rollout(
        rollout_id=f"p{i}/0",
        prompt_id=f"p{i}",
        trajectory_id=f"p{i}/0",
        token_ids=whole,
        sampled=sampled,
        loss_mask=sampled,
        text=("so\n\nthen" if i in (1, 4) else "so then") if text else None,
    )


def span(one, *, says):
    length = len(one.token_ids) - PROMPT
    reason = "length" if length == 32 else "stop"
    return Span(
        rollout_id=one.rollout_id,
        start=PROMPT,
        end=PROMPT + length,
        finish_reason=reason if says else "",
        stop_reason="",
    )


def figures(run, a=RECORDED, **b):
    """quantity -> consequence, for the run's protocol against another."""
    other = a.model_copy(update=b)
    SamplingProtocol.model_validate(other.model_dump())
    sides = Sides(a=a, b=other, names=("A", "B"), recorded=RECORDED)
    return {one.quantity: one for one in consequences(run, differences(a, other), sides)}


def truth(world, of):
    """The mean over all tokens of what `of` says of a position's raw distribution and the drawn id."""
    return np.mean([of(row, token) for raw, ids in world for row, token in zip(raw, ids, strict=True)])


def is_cut(row, token, top_p):
    return np.exp(row[row > row[token]]).sum() >= top_p


def test_what_does_not_differ_or_does_not_matter_has_no_consequence(run):
    found = run()
    assert figures(found) == {}
    assert figures(found, seed=9) == {}
    assert figures(found, processors=("temperature", "penalties", "top_k", "top_p", "min_p")) == {}


# -- lengths and ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "share"), [(16, 0.5), (12, 0.6), (31, 0.3), (4, 0.9)])
def test_the_share_of_completions_that_would_be_cut_is_counted(run, limit, share):
    found = figures(run(), max_new_tokens=limit)
    assert set(found) == {"share_over_limit"}
    one = found["share_over_limit"]
    assert (one.certainty, one.value, one.of) == ("exact", pytest.approx(share), 10)
    assert f"{share:.1%} of the recorded completions are longer than the {limit} tokens that B allows" in one.sentence


def test_under_a_longer_limit_those_that_were_cut_would_go_on(run):
    found = figures(run(), max_new_tokens=64)
    assert found["share_over_limit"].value == 0.0
    assert found["share_cut_as_recorded"].value == pytest.approx(0.3)


def test_what_only_a_finish_reason_says_is_not_known_without_one(run):
    found = figures(run(says=False), max_new_tokens=64, min_new_tokens=10)
    assert found["share_over_limit"].certainty == "exact"
    assert {found[name].certainty for name in ("share_cut_as_recorded", "share_too_short")} == {"not known"}
    assert found["share_too_short"].value is None


def test_limits_of_the_whole_and_of_the_prompt_are_counted_with_the_prompt(run):
    found = run()
    assert figures(found, max_prompt_tokens=5)["share_over_limit"].value == 1.0
    assert figures(found, max_prompt_tokens=6)["share_over_limit"].value == 0.0
    assert figures(found, max_total_tokens=20)["share_over_limit"].value == pytest.approx(0.6)


def test_completions_that_ended_too_early_are_counted(run):
    assert figures(run(), min_new_tokens=10)["share_too_short"].value == pytest.approx(0.3)


def test_completions_that_hold_a_stop_string_are_counted_in_their_text(run):
    one = figures(run(), stop=("\n\n", "###"))["share_with_stop_string"]
    assert (one.certainty, one.value) == ("exact", pytest.approx(0.2))
    assert "'###' or '\\n\\n'" in one.sentence or "'\\n\\n' or '###'" in one.sentence


def test_without_text_a_stop_string_is_not_known(run):
    assert figures(run(text=False), stop=("###",))["share_with_stop_string"].certainty == "not known"


def test_completions_that_hold_a_stop_id_are_counted(run, world):
    one = figures(run(), stop_token_ids=(3,))["share_with_stop_id"]
    assert one.value == pytest.approx(np.mean([3 in ids for _, ids in world]))


def test_completions_that_would_go_on_after_their_end_are_counted(run):
    assert figures(run(), ignore_eos=True)["share_ended"].value == pytest.approx(0.7)


def test_tokens_that_a_penalty_acts_on_are_counted(run, world):
    found = run()
    own = [token in ids[:i] for _, ids in world for i, token in enumerate(ids)]
    whole = [token in [*range(PROMPT), *ids[:i]] for _, ids in world for i, token in enumerate(ids)]
    assert figures(found, presence_penalty=0.5)["share_repeated"].value == pytest.approx(np.mean(own))
    assert figures(found, repetition_penalty=1.1)["share_repeated"].value == pytest.approx(np.mean(whole))


@pytest.mark.parametrize("window", [None, 1, 2, 5])
def test_an_id_was_there_if_it_is_among_the_ones_before(window):
    ids = np.random.default_rng(0).integers(0, 6, 40)
    before = [ids[max(0, i - window) if window else 0 : i] for i in range(40)]
    assert was_there(ids, window).tolist() == [token in seen for token, seen in zip(ids, before, strict=True)]


# -- tokens --------------------------------------------------------------------------------------------------------


def test_statistics_say_exactly_what_top_p_removes_and_keeps(run, world):
    found = figures(run(), top_p=0.9)
    removed, kept = found["share_removed"], found["mean_log_kept_mass"]
    assert removed.value == pytest.approx(truth(world, lambda row, token: is_cut(row, token, 0.9)))
    assert 0.0 < removed.value < 0.2
    assert removed.of == removed.recorded == sum(LENGTHS)
    assert kept.certainty == "exact"
    assert np.log(0.9) < kept.value < 0.0
    assert "would be removed by top_p 0.9 of B: exact, from the statistics of reading 'rollout'" in removed.sentence


def test_a_truncation_without_a_column_is_bounded(run):
    kept = figures(run(), top_p=0.7)["mean_log_kept_mass"]
    assert (kept.certainty, kept.value) == ("bounded", None)
    assert kept.low < kept.high
    assert "between" in kept.sentence


def test_lists_bound_what_statistics_would_say_and_longer_ones_say_it(run, world):
    true = truth(world, lambda row, token: is_cut(row, token, 0.9))
    removed = figures(run(keeps="lists", k=6), top_p=0.9)["share_removed"]
    assert removed.certainty == "bounded"
    assert removed.low <= true <= removed.high
    assert "from the top lists of reading 'rollout'" in removed.sentence


def test_lists_of_everything_are_exact(run, world):
    removed = figures(run(keeps="lists", k=VOCABULARY), top_p=0.9)["share_removed"]
    assert removed.value == pytest.approx(truth(world, lambda row, token: is_cut(row, token, 0.9)))


@pytest.mark.parametrize("keeps", ["nothing", "processed lists"])
def test_without_raw_columns_nothing_is_known_and_it_says_what_to_record(run, keeps):
    cold = Meaning(temperature=0.7)
    found = figures(run(keeps="nothing") if keeps == "nothing" else run(keeps="lists", meaning=cold), top_p=0.9)
    assert {one.certainty for one in found.values()} == {"not known"}
    assert all("--statistics" in one.sentence for one in found.values())


def test_a_temperature_moves_logprobs_by_as_much_as_the_distributions_say(run, world):
    def shift(row, token):
        cold = row / 0.7
        return cold[token] - np.log(np.exp(cold).sum()) - row[token]

    one = figures(run(), temperature=0.7)["mean_shift"]
    assert one.certainty == "exact"
    assert one.value == pytest.approx(truth(world, shift), abs=1e-3)
    assert "from temperature 1 (A) to 0.7 (B)" in one.sentence


def test_a_temperature_is_bounded_by_lists(run, world):
    one = figures(run(keeps="lists", k=20), temperature=0.7)["mean_shift"]
    assert one.certainty == "bounded"
    exact = truth(world, lambda row, token: row[token] / 0.7 - np.log(np.exp(row / 0.7).sum()) - row[token])
    assert one.low <= exact <= one.high


def test_a_greedy_side_says_how_many_tokens_were_not_the_most_likely(run, world):
    one = figures(run(), temperature=0.0)["share_not_most_likely"]
    assert one.value == pytest.approx(truth(world, lambda row, token: row.argmax() != token))


def test_a_side_with_penalties_has_no_figure_of_its_truncation(run):
    found = figures(run(), top_p=0.9, repetition_penalty=1.1)
    assert found["share_removed"].certainty == "not known"
    assert "without the penalties" in found["share_removed"].sentence
    assert found["share_repeated"].certainty == "exact"


def test_only_the_side_that_the_run_was_not_sampled_under_has_figures(run):
    sides = Sides(a=RECORDED, b=SamplingProtocol(top_p=0.9), names=("A", "B"), recorded=SamplingProtocol(top_p=0.9))
    assert consequences(run(), [d for d in differences(sides.a, sides.b) if d.field == "top_p"], sides) == ()


def test_of_a_run_without_a_rollout_it_is_said_that_nothing_is_recorded(tmp_path):
    manifest = Manifest(
        tool_version="0",
        status="recording",
        kind="fresh",
        suite="s",
        suite_hash="h",
        protocol=RECORDED,
        rollout_engine="fake:m",
        planned_rollouts=1,
    )
    empty = Run.create(tmp_path / "empty", manifest)
    found = figures(empty, top_p=0.9, temperature=0.7, max_new_tokens=4, stop=("e",))
    assert {"share_removed", "mean_shift", "share_over_limit", "share_with_stop_string"} <= set(found)
    for one in found.values():
        assert "nothing is recorded" in one.sentence
        assert "--statistics" not in one.sentence
