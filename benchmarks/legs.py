"""The ladders of real engines, as the tables of a page.

    python benchmarks/legs.py [NAME=SPEC ...]      (about five minutes on two cores without a server)

Climbs every leg of the packaged model in Transformers in float32 and bfloat16 and in llama.cpp, then of a server that
is given, such as a vLLM that is running (`vLLM=vllm:http://localhost:8000`), and prints one Markdown table for each.
What is given after it, such as one that was started with other flags (`chunked=vllm:...`), is held against it as a leg.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.judgement.load import load_limits
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.report.legs import markdown
from onepolicy.workflow.legs import LegsRequest, legs

TOKENS = 700
"""of sixteen sequences, for an engine that steps through each token"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One table."""

    name: str
    spec: str
    limits: str = "strict"
    suite: str | None = None
    budget: int | None = None
    against: dict[str, EngineSpec] = field(default_factory=dict)


OURS = (
    Engine(name="Transformers, float32", spec="transformers:smollm2?dtype=float32"),
    Engine(name="Transformers, bfloat16", spec="transformers:smollm2?dtype=bfloat16", limits="bf16"),
    Engine(name="llama.cpp, Q4_1", spec="llamacpp:smollm2", limits="quantised", suite="quick", budget=TOKENS),
)


def main() -> int:
    """Print the tables."""
    for engine in (*OURS, *_given(sys.argv[1:])):
        print(f"### {engine.name}\n\n{table(engine)}\n", flush=True)
    return 0


def table(engine: Engine) -> str:
    """The ladder of one engine in Markdown, with what it took."""
    request = LegsRequest(
        engine=parse_spec(engine.spec),
        against=engine.against,
        suite=engine.suite,
        budget=engine.budget,
        protocol=SamplingProtocol(max_new_tokens=32),
        limits=load_limits(engine.limits),
        limits_name=engine.limits,
    )
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        ladder = legs(request, path=Path(folder) / "run")
    took = time.perf_counter() - begun
    tokens = max(rung.tokens for rung in ladder.rungs)
    prompts = max(rung.prompts for rung in ladder.rungs)
    about = f"{ladder.sentence} ({prompts} sequences, {tokens:,} tokens, limits {engine.limits}; {took:.0f} s)"
    return f"{about}\n\n{markdown(ladder)}"


def _given(arguments: list[str]) -> list[Engine]:
    """The first server gets a table, and those after it are legs of it."""
    named = [argument.partition("=")[::2] for argument in arguments]
    if not named:
        return []
    (name, spec), *others = named
    against = {other: parse_spec(one) for other, one in others}
    return [Engine(name=name, spec=spec, limits="bf16", suite="quick", budget=TOKENS, against=against)]


if __name__ == "__main__":
    sys.exit(main())
