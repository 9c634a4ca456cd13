"""The ladders of real engines, as the page docs/legs-measured.md.

    python benchmarks/legs.py [NAME=SPEC ...] > docs/legs-measured.md      (about five minutes on two cores)

Climbs every leg of the packaged model in Transformers in float32 and bfloat16 and in llama.cpp, then of a server that
is given, such as a vLLM that is running (`VLLM=vllm:http://localhost:8000`), and prints one Markdown table for each.
What is given after it under a lower-case name, such as a server that was started with other flags (`chunked=vllm:...`),
is held against it as a leg; under a capital it has a table of its own.
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


HEAD = """# Legs of real engines

<!-- written by benchmarks/legs.py -->

SmolLM2-135M-Instruct as packaged, on two CPU cores; float32 and bfloat16 are the packaged 4-bit weights, dequantised.
[legs](legs.md) says what each leg is and what decides. Written by

    {command}
"""


def main() -> int:
    """Print the page."""
    given = " ".join(argument.partition("=")[0] + "=SPEC" for argument in sys.argv[1:])
    print(HEAD.format(command=f"python benchmarks/legs.py {given}".strip()))
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
    """What has a name with a capital gets a table, and what follows it without one are legs of it."""
    engines: list[Engine] = []
    for argument in arguments:
        name, _, spec = argument.partition("=")
        if name[:1].isupper():
            engines.append(Engine(name=name, spec=spec, limits="bf16", suite="quick", budget=TOKENS))
        else:
            engines[-1].against[name] = parse_spec(spec)
    return engines


if __name__ == "__main__":
    sys.exit(main())
