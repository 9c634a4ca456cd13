"""How far a precision alone moves the logprobs of sampled tokens, by confidence: the table of `diagnosis/noise.py`.

    python benchmarks/noise.py [PROMPTS]

The packaged model samples under float32; the same ids are scored in float32 in two other ways (token by token, and by a
function of somebody's own with torch's log_softmax), in float16, in bfloat16, and by llama.cpp from its quantised file.
Printed beside what the table says, and how far each log_softmax is from that of float64. Exit status 1 if a mean is
beyond a third or three times of the table.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from onepolicy.diagnosis.noise import TYPICAL, noise_of_readings
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations.transformers.load import load
from onepolicy.integrations.transformers.options import TransformersOptions
from onepolicy.integrations.transformers.target import model_folder
from onepolicy.logprobs.normalise import log_softmax
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.workflow.diagnose_tokens import tokens_of
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

MODEL = "smollm2"
PLAIN = f"transformers:{MODEL}?dtype=float32"
SIDES = {
    "float32": (f"{PLAIN}&cache=steps", "callable:{folder}/own.py:score"),
    "float16": (f"transformers:{MODEL}?dtype=float16",),
    "bfloat16": (f"transformers:{MODEL}?dtype=bfloat16",),
    "Q4_1": (f"llamacpp:{MODEL}",),
}
"""precision -> the sides that have it; the table holds the larger of them, confidence by confidence"""
OWN = """
import torch
from onepolicy.integrations.transformers.served import Served

SERVED = Served({spec!r}, "sound", 0.0)


def score(token_ids):
    return SERVED(token_ids)
"""
TIMES = 3.0


def main() -> int:
    prompts = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    _print_log_softmax()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        (Path(folder) / "own.py").write_text(OWN.format(spec=PLAIN), encoding="utf-8")
        protocol = SamplingProtocol(max_new_tokens=64)
        record(run, RecordRequest(engine=parse_spec(PLAIN), protocol=protocol, budget=64 * prompts))
        score(run, ScoreRequest(engine=parse_spec(PLAIN), name="plain"))
        good = [_measured(run, name, [spec.format(folder=folder) for spec in specs]) for name, specs in SIDES.items()]
    return 0 if all(good) else 1


def _print_log_softmax() -> None:
    """Mean |error| of a logprob, of the rows of logits that the packaged model gives for a text."""
    model = load(model_folder(MODEL), TransformersOptions(dtype="float32")).model
    with torch.no_grad():
        logits = model(torch.arange(256)[None]).logits[0]
    exact = logits.double().log_softmax(dim=1)
    for name, found in (("torch's", logits.log_softmax(dim=1)), ("ours", log_softmax(logits))):
        error = (found - exact).abs().mean()
        print(f"log_softmax, {name}: {error:.1e} nats from that of float64, {logits.shape[1]:,} entries")


def _measured(run: Path, name: str, specs: list[str]) -> bool:
    largest = np.zeros(len(TYPICAL[name]))
    for number, spec in enumerate(specs):
        reading = f"{name.lower()}-{number}"
        score(run, ScoreRequest(engine=parse_spec(spec), name=reading))
        tokens = tokens_of(Run.open(run), "plain", reading)
        print(f"{name}, {spec.rpartition('/')[2]}: {len(tokens)} tokens, mean |d| {np.abs(tokens.d).mean():.2e} nats")
        largest = np.maximum(largest, noise_of_readings(tokens.p, tokens.d, source=name).by_confidence)
    typical = np.array(TYPICAL[name])
    print("  measured " + " ".join(f"{value:.1e}" for value in largest))
    print("  table    " + " ".join(f"{value:.1e}" for value in typical), flush=True)
    return bool(np.all(largest < TIMES * typical) and np.all(largest > typical / TIMES))


if __name__ == "__main__":
    sys.exit(main())
