"""Causes planted in a real vLLM: logprobs after a temperature, and weights of an earlier step of a real training."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.records.finding import Diagnosis, Finding, Outcome
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.workflow.diagnose import DiagnoseRequest, diagnose
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

pytestmark = [pytest.mark.real, pytest.mark.full]

FLOAT32 = "transformers:smollm2?dtype=float32"
COLD = 0.8
TRAINING = """
import sys
from pathlib import Path
import torch, transformers
source, folder = map(Path, sys.argv[1:])
model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
tokenizer = transformers.AutoTokenizer.from_pretrained(source)
text = "The lighthouse keeper counts the ships that pass at night and writes each name into a long grey book. " * 12
ids = torch.tensor(tokenizer(text).input_ids)[:192].reshape(4, 48)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-6)
for step in range(1, 21):
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (10, 20):
        target = folder / f"step-{step}"
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
"""
"""20 real steps, in a process of its own"""


def recorded(url: str, path: Path, **protocol: float) -> Path:
    sampling = SamplingProtocol.model_validate({"max_new_tokens": 32, **protocol})
    record(path, RecordRequest(engine=parse_spec(f"vllm:{url}"), suite="standard", protocol=sampling, budget=32 * 40))
    return path


def first(found: Diagnosis) -> Finding:
    assert found.causes, found.sentence
    return found.causes[0]


@pytest.fixture(scope="module")
def cold(start_vllm, smollm2_folder, tmp_path_factory) -> Path:
    """Sampled at 0.8 by a server whose logprobs are after it, and scored raw."""
    folder = tmp_path_factory.mktemp("cold")
    with start_vllm(smollm2_folder, folder / "log", "--logprobs-mode=processed_logprobs") as (url, _):
        recorded(url, folder / "run", temperature=COLD)
    score(folder / "run", ScoreRequest(engine=parse_spec(FLOAT32), meaning=Meaning()))
    return folder / "run"


def taken_as_raw(path: Path, copy: Path) -> Path:
    """The same run of a framework that does not know what its server does."""
    shutil.copytree(path, copy)
    file = copy / "readings" / "rollout" / "reading.json"
    reading = json.loads(file.read_text())
    file.write_text(json.dumps(reading | {"meaning": Meaning().model_dump(mode="json")}))
    return copy


@pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "taken as raw"])
def test_logprobs_of_vllm_after_a_temperature_are_named_with_it(cold, tmp_path, is_declared):
    found = diagnose(cold if is_declared else taken_as_raw(cold, tmp_path / "run"))
    cause = first(found)
    assert (cause.cause, cause.outcome) == ("temperature", Outcome.CAUSE), found.sentence
    if is_declared:  # then it is the trainer that does not know of it
        assert cause.label == "temperature 1.00 on the trainer side: 0.8 not applied"
    else:
        assert cause.label == "temperature 0.80 on the rollout side alone, the sampling temperature"
    assert cause.value == pytest.approx(1.0 if is_declared else COLD, abs=0.01)
    assert "score with the temperature 0.80" in cause.remedy
    assert cause.explained is not None
    assert cause.explained > 0.9
    assert "--logprobs-mode" in cause.remedy


@pytest.fixture(scope="module")
def steps(smollm2_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("steps")
    command = [sys.executable, "-W", "ignore", "-c", TRAINING, smollm2_folder, folder]
    subprocess.run([*map(str, command)], check=True, timeout=900, capture_output=True)
    return folder


def test_vllm_that_still_serves_step_0_of_a_training_is_stale_by_that_step(vllm_url, smollm2_folder, steps, tmp_path):
    path = recorded(vllm_url, tmp_path / "run")
    score(path, ScoreRequest(engine=parse_spec(f"transformers:{steps / 'step-20'}?dtype=float32")))
    weights = {
        "step 0": parse_spec(f"transformers:{smollm2_folder}?dtype=float32"),
        "step 10": parse_spec(f"transformers:{steps / 'step-10'}?dtype=float32"),
    }
    found = diagnose(path, DiagnoseRequest(weights=weights))
    cause = first(found)
    assert (cause.cause, cause.outcome) == ("stale weights", Outcome.CAUSE), found.sentence
    assert "step 0" in cause.label
    assert not any(one.cause == "precision" for one in found.causes)
