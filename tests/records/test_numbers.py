"""A judgement's numbers for trackers."""

from onepolicy.records.verdict import Judgement, Status, Verdict


def judgement(**kl: float) -> Judgement:
    verdict = Verdict(check="mean_kl", status=Status.FAIL, message="x", **kl)
    return Judgement(
        run="r",
        rollout_reading="rollout",
        trainer_reading="trainer",
        status=Status.FAIL,
        sentence="Fail: x",
        verdicts=(verdict,),
        metrics={"k3": 0.5},
        counts={"tokens_compared": 7},
    )


def test_they_are_flat_with_one_prefix_and_what_has_no_value_is_left_out():
    assert judgement(value=0.5, limit=1e-4).numbers() == {
        "onepolicy/k3": 0.5,
        "onepolicy/kl": 0.5,
        "onepolicy/kl_limit": 1e-4,
        "onepolicy/tokens_compared": 7.0,
        "onepolicy/exit_status": 1.0,
    }
    assert "onepolicy/kl_low" in judgement(value=0.5, low=0.1, high=0.9).numbers()


def test_a_check_without_a_number_has_none():
    assert "onepolicy/kl" not in judgement().numbers()
