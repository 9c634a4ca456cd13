import json
import math

import pytest
from pydantic import ValidationError

from onepolicy.records.manifest import Manifest
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.verdict import Judgement, Status, Verdict

VERDICT = Verdict(check="mean_kl", status=Status.FAIL, value=math.inf, limit=1e-4, message="infinite.")
JUDGEMENT = Judgement(
    run="runs/1",
    rollout_reading="rollout",
    trainer_reading="trainer",
    status=Status.FAIL,
    sentence="Fail: infinite.",
    verdicts=(VERDICT,),
    metrics={"k3": math.inf, "k1": -math.inf, "k2": 0.5},
)


def test_a_judgement_with_infinite_numbers_is_valid_json_and_comes_back_as_it_was():
    text = JUDGEMENT.model_dump_json()
    json.loads(text, parse_constant=pytest.fail)
    again = Judgement.model_validate_json(text)
    assert again == JUDGEMENT
    assert (again.verdicts[0].value, again.metrics["k1"]) == (math.inf, -math.inf)


def test_a_number_that_is_not_there_stays_absent():
    text = Verdict(check="meaning", status=Status.PASS, message="raw.").model_dump_json()
    assert json.loads(text)["value"] is None
    assert Verdict.model_validate_json(text).value is None


def test_the_exit_status_is_that_of_the_status():
    assert JUDGEMENT.exit_status == 1


def test_a_manifest_comes_back_as_it_was_and_refuses_what_it_does_not_know():
    manifest = Manifest(
        tool_version="0",
        status="recording",
        kind="fresh",
        suite="quick",
        suite_hash="0",
        protocol=SamplingProtocol(temperature=0.7),
        rollout_engine="fake:tiny",
        planned_rollouts=3,
    )
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
    with pytest.raises(ValidationError, match="colour"):
        Manifest.model_validate({**manifest.model_dump(), "colour": "red"})
    with pytest.raises(ValidationError, match="planned_rollouts"):
        Manifest.model_validate({**manifest.model_dump(), "planned_rollouts": -1})
