"""Memory and time of judging a run of 100 million tokens.

    python benchmarks/judge_memory.py [millions of tokens]

Must hold: under 600 MB at the peak, and no more for 100 million tokens than for 50 million (within a tenth). The run is
written through the package's own writer (rollouts of 1,000 tokens, parts of a million), then judged in a process of its
own whose peak resident memory is read. Exit status 1 if it does not hold.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from onepolicy.records.manifest import Manifest
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingInfo, ReadingRequest, ReadingRow
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.run import Run
from onepolicy.records.tokens import Float32
from onepolicy.version import VERSION
from onepolicy.workflow.judge import judge

Statistics = Callable[[Float32], dict[str, Float32]]
LENGTH, PROMPT, PER_PART = 1000, 100, 1000
LIMIT_MB = 600.0


def main() -> int:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        peaks = [_measure(Path(folder) / str(size), size) for size in (millions // 2, millions)]
    flat = peaks[1] <= peaks[0] * 1.1
    print(f"limit {LIMIT_MB:.0f} MB; growth from half the run to the whole: {peaks[1] / peaks[0]:.2f} times")
    return 0 if peaks[1] < LIMIT_MB and flat else 1


def _measure(path: Path, millions: int) -> float:
    write_run(path, rollouts=millions * 1_000_000 // LENGTH)
    start = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, "--judge", str(path)], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    seconds = time.perf_counter() - start
    print(f"{millions:4d} million tokens: peak {answer['peak_mb']:.0f} MB, {seconds:.0f} s, {answer['sentence']}")
    return float(answer["peak_mb"])


def write_run(path: Path, *, rollouts: int, sigma: float = 0.005, statistics: Statistics | None = None) -> Run:
    """A run of this many rollouts of `LENGTH` tokens, with two readings that differ by noise.

    statistics: of a rollout's trainer logprobs [T]: name -> [T].
    """
    protocol = SamplingProtocol(max_new_tokens=LENGTH - PROMPT)
    manifest = Manifest(
        tool_version=VERSION,
        status="recording",
        kind="fresh",
        suite="synthetic",
        suite_hash="0",
        protocol=protocol,
        rollout_engine="fake:synthetic",
        planned_rollouts=rollouts,
    )
    run = Run.create(path, manifest)
    for name in ("rollout", "trainer"):
        run.start_reading(_reading(name))
    rng = np.random.default_rng(0)
    for first in range(0, rollouts, PER_PART):
        _write_part(run, rng, range(first, min(first + PER_PART, rollouts)), sigma, statistics)
    run.complete()
    return run


def _reading(name: str) -> ReadingInfo:
    return ReadingInfo(
        name=name,
        request=ReadingRequest(engine=f"fake:{name}"),
        engine=EngineInfo(name="fake", version="0", model=name, dtype="float32"),
        condition=Condition(),
        meaning=ReadingRequest(engine="").meaning,
        environment={},
    )


def _write_part(
    run: Run, rng: np.random.Generator, numbers: range, sigma: float, statistics: Statistics | None
) -> None:
    sampled = np.arange(LENGTH) >= PROMPT
    states = np.where(sampled, 0, 1).astype(np.uint8)
    rollouts: list[Rollout] = []
    rows: list[ReadingRow] = []
    scored: list[ReadingRow] = []
    for number in numbers:
        ids = rng.integers(0, 50_000, LENGTH).astype(np.int32)
        rollout = Rollout(
            rollout_id=f"r{number}",
            prompt_id=f"p{number // 8}",
            trajectory_id=f"r{number}",
            token_ids=ids,
            sampled=sampled,
            loss_mask=sampled,
            tags={"language": "en"},
        )
        p = np.where(sampled, -0.1 - rng.exponential(1.0, LENGTH), np.nan).astype(np.float32)
        q = p + np.float32(sigma) * rng.standard_normal(LENGTH, dtype=np.float32) - np.float32(sigma**2 / 2)
        rollouts.append(rollout)
        kept = {} if statistics is None else statistics(q)
        for out, values, more in ((rows, p, {}), (scored, q, kept)):
            out.append(
                ReadingRow(
                    rollout_id=rollout.rollout_id,
                    digest=rollout.digest,
                    logprobs=values,
                    states=states,
                    statistics=more,
                )
            )
    run.write_reading("rollout", rows)
    run.write_reading("trainer", scored)
    run.write_rollouts(rollouts, [Span(rollout_id=r.rollout_id, start=PROMPT, end=LENGTH) for r in rollouts])


def _judge(path: Path) -> None:
    judgement = judge(path)
    print(json.dumps({"peak_mb": peak_mb(), "sentence": judgement.sentence}))


def peak_mb() -> float:
    """Peak resident memory of this process. `ru_maxrss` would be that of the process that started it, if larger."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--judge"]:
        _judge(Path(sys.argv[2]))
    else:
        sys.exit(main())
