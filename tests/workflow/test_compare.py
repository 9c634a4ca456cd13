import numpy as np
import pytest

import onepolicy
from onepolicy import StoredReading
from onepolicy.errors import AlignmentError, ForeignReadingError, NotTheSamePolicyError, UsageError
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status

ROWS, WIDTH = 24, 30


@pytest.fixture
def columns():
    """[B, T] rollout and trainer logprobs that differ by 0.005, and a mask that leaves five entries out of each row."""
    chance = np.random.default_rng(0)
    rollout = chance.uniform(-3, -0.01, (ROWS, WIDTH))
    trainer = np.minimum(rollout + chance.normal(0, 0.005, rollout.shape), -1e-3)
    mask = np.ones((ROWS, WIDTH), dtype=bool)
    mask[:, :5] = False
    return rollout, trainer, mask


def check_of(judgement: Judgement, name: str):
    return next(verdict for verdict in judgement.verdicts if verdict.check == name)


def test_the_three_shapes_of_the_same_columns_give_the_same_numbers(columns):
    rollout, trainer, mask = columns
    p, q = [row[5:] for row in rollout], [row[5:] for row in trainer]
    padded = onepolicy.compare(rollout=rollout, trainer=trainer, mask=mask)
    listed = onepolicy.compare(rollout=p, trainer=q)
    flat = onepolicy.compare(rollout=np.concatenate(p), trainer=np.concatenate(q), lengths=[25] * ROWS)
    assert padded.status is Status.PASS
    assert padded.metrics == listed.metrics == flat.metrics
    assert padded.counts == listed.counts == flat.counts


def test_the_mean_kl_is_the_one_of_the_definition(columns):
    rollout, trainer, mask = columns
    judgement = onepolicy.compare(rollout=rollout, trainer=trainer, mask=mask)
    d = trainer[mask].astype(np.float32).astype(float) - rollout[mask].astype(np.float32)
    assert judgement.metrics["k3"] == pytest.approx(np.mean(np.exp(d) - 1 - d), rel=1e-6)


def test_a_position_in_a_message_is_a_column_of_the_padded_array(columns):
    rollout, trainer, mask = columns
    rollout[3, 17] = -9999.0
    evidence = check_of(onepolicy.compare(rollout=rollout, trainer=trainer, mask=mask), "valid_logprobs").evidence
    assert [(e.rollout_id, e.position) for e in evidence] == [("row 3", 17)]


def test_what_the_mask_leaves_out_is_not_looked_at(columns):
    rollout, trainer, mask = columns
    expected = onepolicy.compare(rollout=rollout, trainer=trainer, mask=mask)
    rollout[~mask], trainer[~mask] = np.nan, 7.0
    assert onepolicy.compare(rollout=rollout, trainer=trainer, mask=mask.astype(int).tolist()) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -9999.0, -3.4e38, -1e300, 1e-3])
def test_a_value_that_is_no_logprob_fails_and_is_never_dropped(value, columns):
    rollout, trainer, mask = columns
    rollout[2, 9] = value
    judgement = onepolicy.compare(rollout=rollout, trainer=trainer, mask=mask)
    assert judgement.status is Status.FAIL
    assert check_of(judgement, "valid_logprobs").evidence[0].rollout_id == "row 2"
    assert judgement.counts["tokens_to_compare"] == judgement.counts["tokens_compared"] + 1


def test_samples_of_one_prompt_are_one_independent_unit(columns):
    rollout, trainer, _ = columns
    by_four = np.arange(ROWS) // 5
    judgement = onepolicy.compare(rollout=list(rollout), trainer=list(trainer), prompt_ids=by_four)
    assert judgement.status is Status.UNKNOWN
    assert judgement.counts["prompt_groups"] == 5


def test_names_of_rollouts_may_be_an_array(columns):
    rollout, trainer, _ = columns
    trainer[7, 0] -= 3
    judgement = onepolicy.compare(rollout=list(rollout), trainer=list(trainer), rollout_ids=np.arange(ROWS) + 100)
    assert check_of(judgement, "max_abs_d").evidence[0].rollout_id == "107"


def test_tokens_that_were_not_sampled_claim_no_kl(columns):
    rollout, trainer, mask = columns
    verdict = check_of(onepolicy.compare(rollout=rollout, trainer=trainer, mask=mask, sampled=False), "mean_kl")
    assert (verdict.kind, verdict.quantity) == ("on these tokens", "k3_on_these_tokens")


def test_tensors_are_compared_like_arrays(columns):
    torch = pytest.importorskip("torch")
    rollout, trainer, mask = columns
    expected = onepolicy.compare(rollout=rollout, trainer=trainer, mask=mask)
    tensors = {"rollout": torch.tensor(rollout), "trainer": torch.tensor(trainer), "mask": torch.tensor(mask)}
    assert onepolicy.compare(**tensors) == expected
    tensors["trainer"].requires_grad_()
    with pytest.raises(UsageError, match=r"trainer logprobs are no array of numbers .*tensor.detach\(\).float\(\).cpu"):
        onepolicy.compare(**tensors)
    with pytest.raises(UsageError, match="BFloat16"):
        onepolicy.compare(rollout=tensors["rollout"].bfloat16(), trainer=trainer, mask=mask)


def wrong_requests():
    p = np.full((ROWS, WIDTH), -1.0)
    rows, flat, mask = list(p), p.ravel(), np.ones(p.shape, dtype=bool)
    q = {"trainer": p}
    return {
        "no mask": ({"rollout": p, **q}, UsageError, "say with `mask`"),
        "three dimensions": ({"rollout": p[None], "trainer": p[None]}, UsageError, r"the shape \(1, 24, 30\)"),
        "mask of other shape": ({"rollout": p, **q, "mask": mask[:, 1:]}, AlignmentError, r"the mask \(24, 29\)"),
        "additive mask": ({"rollout": p, **q, "mask": np.where(p < -2, 0, -np.inf)}, UsageError, "other than 0 and 1"),
        "mask beside a list": ({"rollout": rows, "trainer": rows, "mask": mask}, UsageError, "`mask` goes with"),
        "mask beside [N]": ({"rollout": flat, "trainer": flat, "mask": mask}, UsageError, "`mask` goes with"),
        "lengths beside [B, T]": ({"rollout": p, **q, "mask": mask, "lengths": [30]}, UsageError, "`lengths` goes"),
        "lengths too short": ({"rollout": flat, "trainer": flat, "lengths": [30]}, AlignmentError, "add up to 30"),
        "a negative length": ({"rollout": flat, "trainer": flat, "lengths": [-1, 601]}, AlignmentError, r"\[-1, 601\]"),
        "fewer rollouts": ({"rollout": rows, "trainer": rows[1:]}, AlignmentError, "24 rollouts .* 23 on the trainer"),
        "a shorter rollout": (
            {"rollout": rows, "trainer": [*rows[:-1], rows[-1][1:]]},
            AlignmentError,
            "rollout row 23: 30 rollout logprobs and 29 trainer logprobs",
        ),
        "few prompt ids": ({"rollout": rows, "trainer": rows, "prompt_ids": ["a"]}, AlignmentError, "1 prompt_ids"),
        "text": ({"rollout": "abc", "trainer": "abc"}, UsageError, "no array of numbers"),
        "complex numbers": ({"rollout": rows, "trainer": [row + 0j for row in rows]}, UsageError, "complex128"),
        "a number": ({"rollout": -1.0, "trainer": -1.0}, UsageError, r"the shape \(\)"),
        "mixed dimensions": ({"rollout": [rows[0], p], "trainer": rows}, UsageError, "each must be"),
    }


@pytest.mark.parametrize("case", wrong_requests())
def test_a_shape_that_does_not_fit_is_an_error_that_says_which(case):
    arguments, kind, message = wrong_requests()[case]
    with pytest.raises(kind, match=message):
        onepolicy.compare(**arguments)


@pytest.mark.parametrize("empty", [[], [np.array([])] * 3])
def test_nothing_to_compare_is_unknown_and_never_a_pass(empty):
    assert onepolicy.compare(rollout=empty, trainer=empty).status is Status.UNKNOWN


def test_assert_same_policy_returns_the_judgement_of_a_pass_and_raises_it_otherwise(columns):
    rollout, trainer, mask = columns
    assert onepolicy.assert_same_policy(rollout=rollout, trainer=trainer, mask=mask).status is Status.PASS
    with pytest.raises(NotTheSamePolicyError, match=r"^Fail: ") as failed:
        onepolicy.assert_same_policy(rollout=rollout, trainer=trainer - 1, mask=mask)
    assert failed.value.judgement.status is Status.FAIL
    with pytest.raises(AssertionError, match=r"^Unknown: "):
        onepolicy.assert_same_policy(rollout=rollout[:2], trainer=trainer[:2], mask=mask[:2])


# -- stored readings ------------------------------------------------------------------------------------------------


def test_two_stored_readings_of_one_run_give_the_judgement_of_the_run(finished_runs):
    run = Run.open(finished_runs["noisy"])
    judgement = onepolicy.compare(
        rollout=StoredReading(run=run, name="rollout"), trainer=StoredReading(run=run, name="trainer")
    )
    assert judgement == run.judgement("default")


def test_stored_readings_of_two_runs_with_the_same_tokens_are_compared(run_copy, finished_runs):
    first, second = Run.open(finished_runs["noisy"]), Run.open(run_copy())
    judgement = onepolicy.compare(
        rollout=StoredReading(run=first, name="rollout"), trainer=StoredReading(run=second, name="trainer")
    )
    assert judgement.status is Status.PASS
    assert judgement.metrics == first.judgement("default").metrics


def test_stored_readings_of_two_runs_with_other_tokens_are_refused(finished_runs, another_run):
    first, second = Run.open(finished_runs["noisy"]), Run.open(another_run)
    with pytest.raises(ForeignReadingError, match=r"rollout quick-\d+/0: .* other token ids"):
        onepolicy.compare(
            rollout=StoredReading(run=first, name="rollout"), trainer=StoredReading(run=second, name="trainer")
        )


def test_a_stored_reading_that_lacks_a_part_is_unknown_across_runs_too(run_copy, finished_runs):
    first, second = Run.open(finished_runs["noisy"]), Run.open(run_copy())
    second.reading_parts("trainer")[0].unlink()
    judgement = onepolicy.compare(
        rollout=StoredReading(run=first, name="rollout"), trainer=StoredReading(run=second, name="trainer")
    )
    assert judgement.status is Status.UNKNOWN


def test_a_stored_reading_and_an_array_are_not_compared(finished_runs):
    stored = StoredReading(run=Run.open(finished_runs["noisy"]), name="rollout")
    with pytest.raises(UsageError, match="two arrays or two stored readings"):
        onepolicy.compare(rollout=stored, trainer=[-1.0])


@pytest.mark.parametrize("lengths", [[4.0] * 6, [True] * 24, [[12, 12]]], ids=str)
def test_lengths_that_are_no_whole_numbers_are_an_error(lengths):
    values = np.full(24, -0.5)
    with pytest.raises(UsageError, match="whole numbers"):
        onepolicy.compare(rollout=values, trainer=values, lengths=lengths)
