"""Runs of tiny models in which one side is wrong in a known way; what a diagnosis says of them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from onepolicy.engines.spec import parse_spec
from onepolicy.records.finding import Diagnosis, Outcome
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.workflow.diagnose import DiagnoseRequest, diagnose
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

PROMPTS = 16
NEW = 40
WORDS = "the rain in spain stays mainly in the plain, and the sun does not"
SERVED = "served"


def suite(path: Path, *, before: str = "") -> Path:
    """Prompts of many lengths; `before` begins each of them."""
    texts = [f"{before}{n}: {WORDS[: 3 + 7 * n % 41]}" for n in range(PROMPTS)]
    lines = [
        {"id": f"p{n:02}", "messages": [{"role": "user", "content": text}], "tags": {}} for n, text in enumerate(texts)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def recorded(path: Path, spec: str, *, before: str = "", **protocol: object) -> Path:
    """A run that this engine sampled."""
    values = {"max_new_tokens": NEW, **protocol}
    request = RecordRequest(
        engine=parse_spec(spec),
        suite=str(suite(path.with_suffix(".jsonl"), before=before)),
        protocol=SamplingProtocol.model_validate(values),
    )
    record(path, request)
    return path


def sampled_by(path: Path, rollout: str, trainer: str, *, meaning: Meaning | None = None, **more: object) -> Path:
    """A run whose rollout side is wrong, or right, while it samples."""
    recorded(path, rollout, **more)
    score(path, ScoreRequest(engine=parse_spec(trainer), meaning=meaning))
    return path


def served_by(path: Path, model: str, rollout: str, trainer: str, **more: object) -> Path:
    """A run of a sound model, read again by both sides: the rollout side's reading is `served`."""
    recorded(path, model, **more)
    score(path, ScoreRequest(engine=parse_spec(rollout), name=SERVED))
    score(path, ScoreRequest(engine=parse_spec(trainer)))
    return path


def why(path: Path, *, served: bool = False, weights: dict[str, str] | None = None) -> Diagnosis:
    named = {name: parse_spec(spec) for name, spec in (weights or {}).items()}
    reading = {"rollout": SERVED} if served else {}
    return diagnose(path, DiagnoseRequest(weights=named, **reading))


def names(found: Diagnosis) -> list[tuple[str, str]]:
    """What explains something, the best first: (cause, outcome)."""
    return [(one.cause, one.outcome.value) for one in found.causes]


def outcome_of(found: Diagnosis, cause: str) -> Outcome:
    return next(one.outcome for one in found.findings if one.cause == cause)


def perturbed(folder: Path, into: Path, *, size: float = 0.05, word: str = "", seed: int = 1) -> Path:
    """The model after an update: its weights moved by a share of their own size; only those with a word in the name."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if word in name:
                weights.add_(size * weights.std() * torch.randn(weights.shape, generator=generator))
    into.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():
        (into / file.name).write_bytes(file.read_bytes())
    model.save_pretrained(into)
    return into


def planted(folder: Path, model: Path, fault: str) -> str:
    """The spec of a scoring function of `leg_faults` with this model."""
    file = folder / f"{fault}.py"
    file.write_text(
        f"from leg_faults import {fault}, loaded\n\nMODEL = loaded({str(model)!r})\n\n\n"
        f"def score(token_ids):\n    return {fault}(MODEL, token_ids)\n"
    )
    return f"callable:{file}:score"
