"""Time of a diagnosis: of what the data say of 10 million tokens, and of experiments on the packaged model.

    python benchmarks/diagnose.py [millions of tokens]
    python benchmarks/diagnose.py --model [rollouts]

Must hold on two cores: the data-only part of 10 million tokens under 20 s; 200 rollouts of 256 tokens of the packaged
model, where no cause is found and every experiment is run, under 3 minutes. The first is printed beside `judge` on the
same run, which reads all of its tokens. Exit status 1 if it does not hold.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from judge_memory import LENGTH, peak_mb, write_run
from onepolicy.diagnosis.causes.temperature import powers
from onepolicy.diagnosis.causes.truncation import KEPT
from onepolicy.engines.spec import parse_spec
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.tokens import Float32
from onepolicy.workflow.diagnose import DiagnoseRequest, diagnose
from onepolicy.workflow.judge import judge
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

DATA_LIMIT, MODEL_LIMIT = 20.0, 180.0
NOISE = 0.02
"""nats: far above that of float32, and no cause explains it, so that all are tried"""
NODES = 8


def main() -> int:
    if "--model" in sys.argv:
        return _of_model(int(sys.argv[2]) if len(sys.argv) > 2 else 200)
    return _of_data(int(sys.argv[1]) if len(sys.argv) > 1 else 10)


def _of_data(millions: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, rollouts=millions * 1_000_000 // LENGTH, sigma=NOISE, statistics=_statistics)
        tried = _timed("diagnose, data only", lambda: diagnose(run, DiagnoseRequest(experiments=False)).sentence)
        judged = _timed("judge", lambda: judge(run).sentence)
    print(f"{millions} million tokens: {tried / judged:.2f} times as long as judging; limit {DATA_LIMIT:.0f} s")
    print(f"peak {peak_mb():.0f} MB, the run's writing included")
    return 0 if tried < DATA_LIMIT else 1


def _statistics(logprobs: Float32) -> dict[str, Float32]:
    """As a distribution has them whose other tokens share the rest equally; only their presence matters here."""
    p = np.exp(np.nan_to_num(logprobs, nan=-1.0).astype(np.float64))
    rest, others = np.maximum(1 - p, 1e-6), 1000
    nodes = [1.25 - 0.75 * math.cos((2 * k + 1) * math.pi / (2 * NODES)) for k in range(NODES)]
    found = {f"log_sum_power_{k}": np.log(p**b + others * (rest / others) ** b) for k, b in enumerate(nodes)}
    assert powers({name: values.astype(np.float32) for name, values in found.items()}) is not None
    found |= {"log_normaliser": np.full(len(p), 12.0), "rank": np.where(p > 0.5, 0.0, 3.0)}
    found |= {"log_mass_above": np.where(p > 0.5, -np.inf, np.log(0.5 * rest)), "raw_entropy": -np.log(p)}
    found |= {"raw_varentropy": np.ones(len(p)), "logprob_repetition_1_1": np.log(p) - 0.01}
    found |= {name: np.log1p(-0.05 * rest) for name in KEPT}
    return {name: values.astype(np.float32) for name, values in found.items()}


def _of_model(rollouts: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        protocol = SamplingProtocol(max_new_tokens=256, ignore_eos=True, stop=())
        # A rotary base that is not among those that are tried: no cause is found, so that every experiment is run.
        sampler = parse_spec("transformers:smollm2?dtype=bfloat16&batch_size=32&config=rope_theta=30000")
        record(run, RecordRequest(engine=sampler, suite="standard", protocol=protocol, budget=256 * rollouts))
        score(run, ScoreRequest(engine=parse_spec("transformers:smollm2?dtype=float32&batch_size=32")))
        seconds = _timed("diagnose, with every experiment", lambda: diagnose(run).sentence)
        size = Run.open(run).token_count()
    print(f"{size:,} tokens, prompts included; limit {MODEL_LIMIT:.0f} s")
    return 0 if seconds < MODEL_LIMIT else 1


def _timed(what: str, call: Callable[[], str]) -> float:
    start = time.perf_counter()
    said = call()
    seconds = time.perf_counter() - start
    print(f"{what}: {seconds:.1f} s; {said[:200]}", flush=True)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
