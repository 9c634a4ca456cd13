"""`onepolicy check --legs`."""

from onepolicy.cli.show_legs import WithLegs
from onepolicy.records.verdict import Judgement

SAME = "fake:m?batch_size=4"
BOTH = ("--budget", 1600, "--legs")


def test_a_pair_that_is_one_policy_on_every_leg_passes(cli, tmp_path):
    ended = cli("check", "--rollout", SAME, "--trainer", SAME, *BOTH, "--run", tmp_path / "run")
    assert ended.status == 0
    assert "Pass: all 5 legs hold" in ended.out  # repeat, order, batch, sampled, trainer
    kept = {path.parent.name for path in (tmp_path / "run").glob("judgements/*/legs.json")}
    assert kept == {"legs-rollout", "legs-trainer"}


def test_a_comparison_that_fails_names_the_leg(cli, tmp_path):
    other = f"{SAME}&temperature=1.2"
    ended = cli("check", "--rollout", SAME, "--trainer", other, *BOTH, "--run", tmp_path / "run", "--json")
    assert ended.status == 1
    said = WithLegs.model_validate_json(ended.out)
    assert said.judgement.status.value == "fail"
    assert [ladder.breaks for ladder in said.ladders] == ["trainer", ""]


def test_a_leg_that_breaks_ends_a_check_that_passes_with_1(cli, tmp_path):
    sides = ("--rollout", SAME, "--trainer", f"{SAME}&batch_noise=1e-3", "--run", tmp_path / "run")
    plain = Judgement.model_validate_json(cli("check", *sides, "--budget", 1600, "--json").out)
    high = next(verdict.high for verdict in plain.verdicts if verdict.check == "mean_kl")
    # the trainer twice has twice the variance of the trainer against a side without noise
    ended = cli("check", *sides, *BOTH, "--resume", "--mean-kl", 1.05 * high, "--json")
    said = WithLegs.model_validate_json(ended.out)
    assert (said.judgement.status.value, said.ladders[-1].breaks, ended.status) == ("pass", "order", 1)
