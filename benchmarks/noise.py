"""How far a precision alone moves the logprobs of sampled tokens, by confidence: the table of `diagnosis/noise.py`.

    python benchmarks/noise.py [PROMPTS]

The packaged model samples under float32; the same ids are scored in float32 another way (token by token), in float16,
in bfloat16, and by llama.cpp from its quantised file. Printed beside what the table says. Exit status 1 if a mean is
beyond a third or three times of it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from onepolicy.diagnosis.noise import TYPICAL, noise_of_readings
from onepolicy.engines.spec import parse_spec
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.workflow.diagnose_tokens import tokens_of
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

MODEL = "smollm2"
SIDES = {
    "float32": f"transformers:{MODEL}?dtype=float32&cache=steps",
    "float16": f"transformers:{MODEL}?dtype=float16",
    "bfloat16": f"transformers:{MODEL}?dtype=bfloat16",
    "Q4_1": f"llamacpp:{MODEL}",
}
PLAIN = f"transformers:{MODEL}?dtype=float32"
TIMES = 3.0


def main() -> int:
    prompts = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        protocol = SamplingProtocol(max_new_tokens=64)
        record(run, RecordRequest(engine=parse_spec(PLAIN), protocol=protocol, budget=64 * prompts))
        score(run, ScoreRequest(engine=parse_spec(PLAIN), name="plain"))
        good = [_measured(run, name, spec) for name, spec in SIDES.items()]
    return 0 if all(good) else 1


def _measured(run: Path, name: str, spec: str) -> bool:
    score(run, ScoreRequest(engine=parse_spec(spec), name=name.lower()))
    tokens = tokens_of(Run.open(run), "plain", name.lower())
    measured = noise_of_readings(tokens.p, tokens.d, source=name).by_confidence
    typical = np.array(TYPICAL[name])
    print(f"{name}: {len(tokens)} tokens, mean |d| {np.abs(tokens.d).mean():.2e} nats", flush=True)
    print("  measured " + " ".join(f"{value:.1e}" for value in measured))
    print("  table    " + " ".join(f"{value:.1e}" for value in typical))
    return bool(np.all(measured < TIMES * typical) and np.all(measured > typical / TIMES))


if __name__ == "__main__":
    sys.exit(main())
