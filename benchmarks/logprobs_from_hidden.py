"""Time and memory of logprobs from hidden states, against the bare matrix product and TRL.

    python benchmarks/logprobs_from_hidden.py

4,096 tokens, hidden size 576, vocabulary 49,152 (SmolLM2-135M), float32, 2 threads. Times are of interleaved
runs: median and best. Extra memory is the growth of the peak resident size (VmHWM, Linux), each in a process of its
own. TRL needs the full logits, so their product counts in its time and memory.

The machine must be otherwise idle: each parallel step waits for its slowest thread. The load is printed.

Must hold, or the exit status is 1: the median of ours is at most 1.15 times that of the bare product, and its extra
memory at most a tenth of what TRL's `selective_log_softmax` takes on the full logits.

The peer, and what importing it needs, into a folder that nothing else uses:

    pip install --no-deps --target /tmp/trl trl==1.16.0 pandas datasets dill multiprocess xxhash tzdata \
        python-dateutil six
    PYTHONPATH=/tmp/trl python benchmarks/logprobs_from_hidden.py

Without it the TRL row is left out, and the memory condition cannot be decided: the exit status is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from onepolicy.logprobs.report import ReportRequest, report_from_hidden

TOKENS, HIDDEN, VOCABULARY = 4096, 576, 49152
MOST_TIME, MOST_MEMORY = 1.15, 0.1

Case = Callable[[Tensor, Tensor, Tensor], Tensor]


def bare_product(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return hidden @ weight.T


def ours(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return report_from_hidden(hidden, weight, ids, ReportRequest()).logprobs


def naive(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    return (hidden @ weight.T).log_softmax(dim=1).gather(1, ids[:, None])[:, 0]


def trl(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    from trl.trainer.utils import selective_log_softmax  # noqa: PLC0415 - optional, and slow to import

    logprobs: Tensor = selective_log_softmax(hidden @ weight.T, ids)
    return logprobs


CASES: dict[str, Case] = {"bare product": bare_product, "ours": ours, "naive log_softmax": naive, "TRL": trl}


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(VOCABULARY, (TOKENS,))
    return torch.randn(TOKENS, HIDDEN), torch.randn(VOCABULARY, HIDDEN) * 0.1, ids


def measured_times(names: list[str], repeats: int) -> dict[str, list[float]]:
    """Seconds of each run; one run of each in turn, so that a busy moment hits all of them."""
    given, times = inputs(), {name: list[float]() for name in names}
    for turn in range(repeats + 1):
        for name in names:
            start = time.perf_counter()
            CASES[name](*given)
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - start)
            print(f"\r{name:<20} {turn}/{repeats}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    return times


def resident(field: str) -> float:
    """MB; `VmRSS` now or `VmHWM`, the most so far."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def print_extra_memory(name: str) -> None:
    """Run in a process of its own: a small call first, so that libraries and their threads are loaded."""
    given = inputs()
    CASES[name](given[0][:64], given[1][:4096], given[2][:64].clamp(max=4095))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak so far was that of making the inputs
    before = resident("VmHWM")
    CASES[name](*given)
    print(resident("VmHWM") - before)


def extra_memory(name: str) -> float:
    command = [sys.executable, __file__, "--memory-of", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def largest_error() -> float:
    """Against float64 on the float32 logits, 512 tokens, in nats."""
    hidden, weight, ids = (tensor[:512] if len(tensor) == TOKENS else tensor for tensor in inputs())
    exact = (hidden @ weight.T).double().log_softmax(dim=1).gather(1, ids[:, None])[:, 0]
    return float((ours(hidden, weight, ids) - exact).abs().max())


def report(runs: dict[str, list[float]], memory: dict[str, float]) -> bool:
    """Prints the table; whether everything that must hold does."""
    print(f"{'':<20}{'median s':>9}{'ratio':>7}{'best s':>9}{'ratio':>7}{'extra MB':>10}{'of TRL':>8}")
    times = {name: statistics.median(values) for name, values in runs.items()}
    base, best_base = times["bare product"], min(runs["bare product"])
    peer = memory.get("TRL", float("nan"))
    for name, values in runs.items():
        print(f"{name:<20}{times[name]:>9.3f}{times[name] / base:>7.2f}", end="")
        print(f"{min(values):>9.3f}{min(values) / best_base:>7.2f}", end="")
        print(f"{memory[name]:>10.0f}{memory[name] / peer:>8.2f}")
    print(f"load of the last minute: {os.getloadavg()[0]:.1f}; here {torch.get_num_threads()} threads")
    fast = times["ours"] <= MOST_TIME * base
    small = memory["ours"] <= MOST_MEMORY * peer
    print(f"largest error against float64: {largest_error():.1e} nats")
    print(f"must hold: time at most {MOST_TIME} of the product: {'yes' if fast else 'NO'}")
    print(f"must hold: extra memory at most {MOST_MEMORY} of TRL's: {'yes' if small else 'NO (or TRL is absent)'}")
    return fast and small


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each [9]")
    parser.add_argument("--threads", type=int, default=2, help="[2]")
    parser.add_argument("--memory-of", choices=list(CASES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print_extra_memory(arguments.memory_of)
        return 0
    names = [name for name in CASES if name != "TRL" or importlib.util.find_spec("trl")]
    memory = {name: extra_memory(name) for name in names}
    return 0 if report(measured_times(names, arguments.repeats), memory) else 1


if __name__ == "__main__":
    sys.exit(main())
