"""Speed and memory of `onepolicy compare` on recorded files, from the start of the process to the verdict.

    python benchmarks/recorded_files.py [millions of tokens]

Must hold: 100 million tokens of Parquet at 20 million tokens a second or more on two cores with a warm file cache,
under 600 MB; JSONL at 5 times or more the speed of `json.loads` and a loop over the tokens that checks and computes a
part of the same. Each is run three times, interleaved where it is a ratio; the figure is the median. Exit status 1 if
it does not hold.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LENGTH, PROMPT, GROUP = 1000, 100, 8
SPREAD = 0.03
"""standard deviation of d, in nats"""
REPEATS = 3
PARQUET_NEEDED, MEMORY_NEEDED, JSONL_NEEDED = 20.0, 600.0, 5.0
JSONL_TOKENS = 30_000_000
"""a gigabyte; the start of the command and of the processes that read takes as long as five million tokens do, and is
not what is compared"""
NAMES = ("token_ids", "sampled", "rollout_logprobs", "trainer_logprobs")
COMPARE = [sys.executable, "-m", "onepolicy", "compare", "--limits", "bf16"]


def main() -> int:
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        parquet = _of_parquet(Path(folder), millions)
        jsonl = _of_jsonl(Path(folder))
    return 0 if parquet and jsonl else 1


def _of_parquet(folder: Path, millions: int) -> bool:
    path = folder / "tokens.parquet"
    _written_apart("--parquet", path, millions)
    _warm(path)
    runs = [_run([*COMPARE, str(path)]) for _ in range(REPEATS)]
    speed, memory = millions / median(seconds for seconds, _ in runs), max(peak for _, peak in runs)
    size = path.stat().st_size / 1e6
    print(
        f"Parquet, {millions} million tokens ({size:,.0f} MB): {speed:.1f} million tokens/s (at least "
        f"{PARQUET_NEEDED:g} needed), peak {memory:.0f} MB (under {MEMORY_NEEDED:g} needed)"
    )
    return speed >= PARQUET_NEEDED and memory < MEMORY_NEEDED


def _of_jsonl(folder: Path) -> bool:
    path = folder / "tokens.jsonl"
    _written_apart("--jsonl", path, 0)
    _warm(path)
    ours, loops = [], []
    for _ in range(REPEATS):
        ours.append(_run([*COMPARE, str(path)])[0])
        loops.append(_run([sys.executable, __file__, "--loops", str(path)])[0])
    ratio = median(loops) / median(ours)
    print(
        f"JSONL, {JSONL_TOKENS / 1e6:g} million tokens: {JSONL_TOKENS / 1e6 / median(ours):.2f} million tokens/s, json "
        f"and loops {JSONL_TOKENS / 1e6 / median(loops):.2f}; {ratio:.1f} times (at least {JSONL_NEEDED:g} needed)"
    )
    return ratio >= JSONL_NEEDED


def _run(command: list[str]) -> tuple[float, float]:
    """Seconds, and peak MB of the process; its verdict must be a pass."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    assert os.waitstatus_to_exitcode(status) == 0, command
    process.returncode = 0
    return seconds, usage.ru_maxrss / 1e3


def _written_apart(what: str, path: Path, millions: int) -> None:
    """In a process of its own: what a process is started from counts for its peak memory."""
    subprocess.run([sys.executable, __file__, what, str(path), str(millions)], check=True)


def _warm(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def _tokens(rng: np.random.Generator, rollouts: int) -> dict[str, np.ndarray]:
    """Of some rollouts, [rollouts x LENGTH] each: the ratio averages to one, as it does for what was sampled."""
    size = rollouts * LENGTH
    rollout = -rng.exponential(1.0, size).astype(np.float32) - np.float32(0.2)
    d = SPREAD * rng.standard_normal(size, dtype=np.float32) - np.float32(SPREAD**2 / 2)
    sampled = np.arange(size) % LENGTH >= PROMPT
    return {
        "token_ids": rng.integers(0, 50_000, size, dtype=np.int32),
        "sampled": sampled,
        "rollout_logprobs": np.where(sampled, rollout, np.float32(np.nan)),
        "trainer_logprobs": np.where(sampled, rollout + d, np.float32(np.nan)),
    }


def _write_parquet(path: Path, millions: int) -> None:
    rng, writer, rollouts = np.random.default_rng(0), None, 1_000_000 // LENGTH
    offsets = pa.array(np.arange(0, rollouts * LENGTH + 1, LENGTH, dtype=np.int32))
    for part in range(millions):
        lists = {k: pa.ListArray.from_arrays(offsets, pa.array(v)) for k, v in _tokens(rng, rollouts).items()}
        prompts = [f"{part}-{row // GROUP}" for row in range(rollouts)]
        table = pa.table({"prompt_id": prompts, "step": np.full(rollouts, part), **lists})
        writer = writer or pq.ParquetWriter(path, table.schema)  # as pyarrow and pandas write by default
        writer.write_table(table)
    assert writer is not None, "at least a million tokens"
    writer.close()


def _write_jsonl(path: Path) -> None:
    rng = np.random.default_rng(1)
    with path.open("w", encoding="utf-8") as file:
        for row in range(JSONL_TOKENS // LENGTH):
            tokens = {name: values.tolist() for name, values in _tokens(rng, 1).items()}
            for name in ("rollout_logprobs", "trainer_logprobs"):
                tokens[name] = [0.0] * PROMPT + [round(x, 6) for x in tokens[name][PROMPT:]]
            file.write(json.dumps({"prompt_id": f"p{row // GROUP}", **tokens}) + "\n")


def _loops(path: str) -> int:
    """The peer: a row parsed with `json`, then a loop over its tokens that checks and computes a part of the same."""
    sums = dict.fromkeys(("tokens", "d", "abs_d", "k2", "k3", "ratio", "dp"), 0.0)
    largest, worst, prompts = 0.0, 0.0, dict[str, list[float]]()
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            ids, sampled, p_all, q_all = (row[name] for name in NAMES)
            assert len(ids) == len(sampled) == len(p_all) == len(q_all), "one entry for each token"
            total = [0.0, 0.0]
            for token, is_sampled, p, q in zip(ids, sampled, p_all, q_all, strict=True):
                assert 0 <= token < 1 << 31, "a token id"
                if not is_sampled:
                    continue
                assert -1000 < p <= 1e-6, "a logprob"
                assert -1000 < q <= 1e-6, "a logprob"
                d = q - p
                ratio_minus_1 = math.expm1(d)
                k3 = ratio_minus_1 - d
                sums["tokens"] += 1
                sums["d"] += d
                sums["abs_d"] += abs(d)
                sums["k2"] += d * d / 2
                sums["k3"] += k3
                sums["ratio"] += ratio_minus_1 + 1
                sums["dp"] += abs(math.exp(p) * ratio_minus_1)
                largest = max(largest, abs(d))
                total[0] += 1
                total[1] += k3
            worst = max(worst, total[1] / total[0])
            prompts.setdefault(row["prompt_id"], []).append(total[1] / total[0])
    print(sums, largest, worst, len(prompts))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--loops"]:
        sys.exit(_loops(sys.argv[2]))
    elif sys.argv[1:2] == ["--parquet"]:
        _write_parquet(Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1:2] == ["--jsonl"]:
        _write_jsonl(Path(sys.argv[2]))
    else:
        sys.exit(main())
