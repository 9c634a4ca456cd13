"""What rungs come to: the first that breaks, and never a pass of what was not read."""

import math

import pytest
from pydantic import ValidationError

from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import load_limits
from onepolicy.numerics.legs.ladder import Ladder, NotHere, Rung, verdicts_of
from onepolicy.numerics.legs.rung import Held, rung_of, without_numbers
from onepolicy.records.protocol import Meaning
from onepolicy.records.reading import EngineInfo
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status, Verdict

ENGINE = EngineInfo(name="fake", version="0", model="m", dtype="float32")


def rung(name, status, kind="must hold"):
    return Rung(
        name=name, what=f"what {name} is", kind=kind, status=Status(status), message=f"{name} says so.", mean_abs_d=1e-6
    )


def held(**changes):
    given = {
        "name": "order",
        "what": "another order",
        "kind": "must hold",
        "base": "a",
        "reading": "b",
        "limits": Limits(),
    }
    return Held(**{**given, **changes})


def answer(*rungs, not_here=()):
    verdicts = verdicts_of(tuple(rungs), tuple(not_here))
    return decide(verdicts).value, sentence(verdicts)


def test_the_first_rung_that_breaks_is_in_the_sentence():
    status, said = answer(rung("repeat", "pass"), rung("order", "fail"), rung("decode", "fail"))
    assert status == "fail"
    assert said.startswith("Fail: the leg 'order' breaks (what order is): order says so.")
    assert said.endswith("(1 more below)")


def test_a_pass_names_how_many_hold_and_the_furthest():
    status, said = answer(rung("repeat", "pass"), rung("order", "pass"), rung("no-mask", "fail", "what if"))
    assert (status, said) == ("pass", "Pass: all 2 legs hold; the largest mean |d| is 1e-06 nats (repeat).")


def test_what_is_only_asked_what_if_decides_nothing_and_is_no_pass_alone():
    assert answer(rung("no-mask", "fail", "what if"))[0] == "unknown"
    assert answer()[0] == "unknown"


def test_a_rung_that_is_not_known_is_never_a_pass():
    status, said = answer(rung("repeat", "pass"), rung("warm", "unknown"))
    assert status == "unknown"
    assert "nothing is known of the leg 'warm'" in said


def test_a_leg_that_is_not_possible_decides_only_where_it_was_asked_for():
    there = NotHere(name="packed", what="several in one row", why="this engine has no option for it")
    assert answer(rung("repeat", "pass"), not_here=[there])[0] == "pass"
    asked = there.model_copy(update={"asked": True})
    status, said = answer(rung("repeat", "pass"), not_here=[asked])
    assert status == "unknown"
    assert "was asked for and is not possible here: this engine has no option for it" in said


def test_a_ladder_whose_answer_was_changed_does_not_load():
    rungs = (rung("repeat", "fail"),)
    verdicts = verdicts_of(rungs, ())
    ladder = Ladder(
        engine=ENGINE,
        spec="fake:m",
        run="r",
        plain="legs-plain",
        limits="strict",
        rungs=rungs,
        status=decide(verdicts),
        sentence=sentence(verdicts),
    )
    assert ladder.breaks == "repeat"
    changed = {**ladder.model_dump(mode="json"), "status": "pass", "sentence": "Pass: all is well."}
    with pytest.raises(ValidationError, match="does not follow from its rungs"):
        Ladder.model_validate_json(__import__("json").dumps(changed))


# -- a rung from two readings -----------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_two_columns(rollout, measured):
    rows = [rollout([-1.0, -2.0, -3.0], [-1.0, -2.5, -3.25], name=f"r{n}") for n in range(3)]
    found = rung_of(measured(rows), held(limits=load_limits("quantised")))
    assert (found.prompts, found.tokens, found.tokens_without) == (3, 9, 0)
    assert found.mean_d == pytest.approx(-0.25)
    assert found.mean_abs_d == pytest.approx(0.25)
    assert found.max_abs_d == pytest.approx(0.5)
    assert found.bitwise_share == pytest.approx(1 / 3)


def test_a_bitwise_rung_catches_what_every_other_limit_lets_pass(rollout, measured):
    rows = [rollout([-1.0, -2.0, -3.0], [-0.99999, -1.99999, -2.99999], name=f"r{n}") for n in range(16)]
    other_engine = rung_of(measured(rows), held(one_noise=False))
    assert other_engine.status is Status.PASS
    assert rung_of(measured(rows), held(one_noise=False, limits=load_limits("bitwise"))).status is Status.FAIL
    signed = rung_of(measured(rows), held())
    assert signed.status is Status.FAIL
    assert "the mean of d is +1e-05 nats" in signed.message


def test_no_token_compared_is_unknown(measured):
    found = rung_of(measured([]), held())
    assert (found.status, found.mean_abs_d) == (Status.UNKNOWN, None)


def test_without_proof_of_a_cache_equal_columns_are_unknown(rollout, measured):
    rows = [rollout([-1.0, -2.0], [-1.0, -2.0], name=f"r{n}") for n in range(16)]
    no_proof = Verdict(check="cache_proof", status=Status.UNKNOWN, message="no count of cached tokens came.")
    found = rung_of(measured(rows), held(proof=no_proof))
    assert (found.status, found.message) == (Status.UNKNOWN, "no count of cached tokens came.")
    assert rung_of(measured(rows), held()).status is Status.PASS


def test_what_numbers_rest_on_cannot_be_made_informative(rollout, measured):
    rows = [rollout([-1.0, 0.5], [-1.0, -2.0], name=f"r{n}", p_states=[0, 2]) for n in range(16)]
    limits = Limits(informative=("valid_logprobs", "coverage", "max_abs_d"))
    assert rung_of(measured(rows), held(limits=limits)).status is Status.FAIL


def test_a_leg_that_could_not_be_read_is_unknown_and_says_why():
    found = without_numbers(held(), "the server is gone.")
    assert (found.status, found.message) == (Status.UNKNOWN, "it could not be read: the server is gone.")


def test_a_leg_that_moves_a_token_out_of_the_kept_set_is_not_known(rollout, measured):
    states = {"q_states": [TokenState.EXCLUDED] + [TokenState.VALUE] * 99}
    row = rollout([-1.0] * 100, [math.nan] + [-1.0] * 99, **states)
    nucleus = Meaning(top_p=0.9)
    found = rung_of(measured([row], rollout_meaning=nucleus, trainer_meaning=nucleus), held())
    assert found.status is Status.UNKNOWN
    assert "kept_set" in {verdict.check for verdict in found.verdicts if verdict.status is Status.UNKNOWN}
