"""Time and memory of the round trip of a million tokens and of 100,000 rollouts.

    python benchmarks/round_trip.py

Must hold: a million tokens in under 5 seconds on 2 cores, in at most twice the time of a plain loop over Transformers'
`decode` and `encode` with the same tokenizer in the same run (interleaved, medians), although the loop neither loads
the tokenizer nor reads a file nor says why; and the peak memory of 100,000 rollouts is that of 50,000 (within a tenth).
The tokenizer is the packaged model's, the text that of the suite `fixed-standard`; one completion in ten is split in
another valid way, and some end inside a character, as at a limit of tokens. Exit status 1 if it does not hold.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from judge_memory import peak_mb
from onepolicy.suites import load_suite
from onepolicy.tokens.open import open_tokenizer
from onepolicy.workflow.tokens_roundtrip import RoundTripRequest, tokens_roundtrip

TOKENIZER = "smollm2"
LENGTH, MILLION = 128, 1_000_000
ROLLOUTS, SHORT = 100_000, 32
SECONDS, REPEATS, NEEDED = 5.0, 3, 0.5


def main() -> int:
    tokenizer = open_tokenizer(TOKENIZER).tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        million = Path(folder) / "million.jsonl"
        rows = write_rows(million, tokenizer, count=MILLION // LENGTH, length=LENGTH)
        times = [(_ours(million), _plain_loop(tokenizer, rows)) for _ in range(REPEATS)]
        ours, theirs = (median(column) for column in zip(*times, strict=True))
        halves = [Path(folder) / f"{count}.jsonl" for count in (ROLLOUTS // 2, ROLLOUTS)]
        for path, count in zip(halves, (ROLLOUTS // 2, ROLLOUTS), strict=True):
            write_rows(path, tokenizer, count=count, length=SHORT)
        peaks = [_peak(path) for path in halves]
    print(f"{theirs / ours:.2f} times as fast as the plain loop (at least {NEEDED:g} needed), limit {SECONDS:g} s")
    print(f"growth from half the rollouts to all: {peaks[1] / peaks[0]:.2f} times")
    return 0 if ours < SECONDS and theirs / ours >= NEEDED and peaks[1] <= peaks[0] * 1.1 else 1


def write_rows(path: Path, tokenizer: Tokenizer, *, count: int, length: int) -> list[list[int]]:
    """A file of completions: the ids of a stretch of the suite's text; in every tenth one token is split."""
    text = "\n".join(sequence.prompt + sequence.completion for sequence in load_suite("fixed-standard").sequences)
    rng = np.random.default_rng(0)
    rows: list[list[int]] = []
    with path.open("w", encoding="utf-8") as file:
        while len(rows) < count:
            start = int(rng.integers(0, len(text) - 8 * length))
            row = tokenizer.encode(text[start : start + 8 * length], add_special_tokens=False).ids[:length]
            if len(rows) % 10 == 0:
                row[length // 2 : length // 2 + 1] = _split(tokenizer, row[length // 2])
            file.write(json.dumps({"id": f"r{len(rows)}", "completion_ids": row}) + "\n")
            rows.append(row)
    return rows


def _split(tokenizer: Tokenizer, token_id: int) -> list[int]:
    """One id for each character of the vocabulary's spelling, as a byte-level vocabulary has them all."""
    ids = (tokenizer.token_to_id(character) for character in tokenizer.id_to_token(token_id) or "")
    return [i for i in ids if i is not None]


def _ours(path: Path) -> float:
    start = time.perf_counter()
    report = tokens_roundtrip(RoundTripRequest(targets=(str(path),), scoring=TOKENIZER))
    seconds = time.perf_counter() - start
    print(f"onepolicy tokens roundtrip  {seconds:6.2f} s  {report.sentence}")
    print(f"{'':28s}{report.causes['ids']}")
    return seconds


def _plain_loop(tokenizer: Tokenizer, rows: list[list[int]]) -> float:
    build: Any = PreTrainedTokenizerFast
    fast = build(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    start = time.perf_counter()
    broken = 0
    for row in rows:
        text = fast.decode(row)
        broken += fast.encode(text, add_special_tokens=False) != row
    seconds = time.perf_counter() - start
    print(f"decode and encode in a loop {seconds:6.2f} s  {broken:,} of {len(rows):,} do not come back")
    return seconds


def _peak(path: Path) -> float:
    done = subprocess.run([sys.executable, __file__, "--peak", str(path)], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    print(f"{answer['rollouts']:,} rollouts: peak {answer['peak_mb']:.0f} MB, {answer['seconds']:.1f} s")
    return float(answer["peak_mb"])


def _in_own_process(path: str) -> None:
    start = time.perf_counter()
    report = tokens_roundtrip(RoundTripRequest(targets=(path,), scoring=TOKENIZER))
    seconds = time.perf_counter() - start
    print(json.dumps({"rollouts": report.checked, "peak_mb": peak_mb(), "seconds": seconds}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        _in_own_process(sys.argv[2])
    else:
        sys.exit(main())
