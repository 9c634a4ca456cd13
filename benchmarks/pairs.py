"""The table of real pairs in docs/pairs.md: which mismatch is to be expected between which engines.

    python benchmarks/pairs.py [suite]        (about five minutes on two cores for quick)

Samples the packaged model with one engine, scores it with another, and prints a Markdown row for each pair; then the
same for what a real vLLM recorded (`benchmarks/data/`), whatever the suite.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onepolicy
from onepolicy.engines.spec import parse_spec
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.statistics import Estimate, prompts_needed
from onepolicy.records.verdict import Judgement
from onepolicy.workflow.judge import judge
from onepolicy.workflow.score import ScoreRequest, score
from recording import recorded, write_run

FLOAT32, BFLOAT16 = (f"transformers:smollm2?dtype={dtype}" for dtype in ("float32", "bfloat16"))
PAIRS = (
    ("Transformers float32", FLOAT32, "Transformers float32", FLOAT32),
    ("Transformers bfloat16", BFLOAT16, "Transformers float32", FLOAT32),
    ("Transformers bfloat16", BFLOAT16, "Transformers bfloat16", BFLOAT16),
    ("llama.cpp Q4_1", "llamacpp:smollm2", "Transformers float32", FLOAT32),
)
RECORDED = (("Transformers float32", FLOAT32), ("Transformers bfloat16", BFLOAT16))
HEAD = (
    "| rollout side | trainer side | tokens | mean \\|d\\| | max \\|d\\| | KL per token | 99 % bounds | at 1e-4 "
    "| prompts needed |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    suite = sys.argv[1] if len(sys.argv) > 1 else "quick"
    print(HEAD)
    for rollout_name, rollout, trainer_name, trainer in PAIRS:
        with tempfile.TemporaryDirectory() as folder:
            judgement = onepolicy.check(rollout=rollout, trainer=trainer, suite=suite, run=Path(folder) / "run")
        print(_row(f"{rollout_name} | {trainer_name}", judgement), flush=True)
    for trainer_name, trainer in RECORDED:
        with tempfile.TemporaryDirectory() as folder:
            run = write_run(Path(folder) / "run", recorded())
            score(run.path, ScoreRequest(engine=parse_spec(trainer)))
            judgement = judge(run.path)
        print(_row(f"vLLM bfloat16 (recorded) | {trainer_name}", judgement), flush=True)
    return 0


def _row(names: str, judgement: Judgement) -> str:
    kl = next(verdict for verdict in judgement.verdicts if verdict.check == "mean_kl")
    metrics, tokens = judgement.metrics, judgement.counts["tokens_compared"]
    return (
        f"| {names} | {tokens} | {metrics['mean_abs_d']:.2g} | {metrics['max_abs_d']:.2g} | {kl.value:.2g} "
        f"| {kl.low:.2g} and {kl.high:.2g} | {kl.status.value} | {_needed(judgement)} |"
    )


def _needed(judgement: Judgement) -> str:
    """Prompts after which the interval would lie on one side of the default limit."""
    kl = next(verdict for verdict in judgement.verdicts if verdict.check == "mean_kl")
    assert kl.value is not None
    estimate = Estimate(
        value=kl.value,
        low=kl.low or 0.0,
        high=kl.high or 0.0,
        standard_error=judgement.metrics["gate_standard_error"],
        clusters=judgement.counts["prompt_groups"],
        effective_clusters=float(judgement.counts["prompt_groups"]),
    )
    return str(max(12, round(prompts_needed(estimate, limit=Limits().mean_kl))))


if __name__ == "__main__":
    sys.exit(main())
