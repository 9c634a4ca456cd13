"""The table of real tokenizers in docs/tokenizers.md: round trip, prefix preservation, stop token, BOS.

make .tokenizers/.ready && python benchmarks/real_tokenizers.py [suite]        (about a minute on two cores)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from onepolicy.integrations.transformers.target import model_folder
from onepolicy.records.verdict import Status, Verdict
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.template.ends import end_of_turn
from onepolicy.tokens.template.report import book_of, examine
from onepolicy.workflow.tokens_roundtrip import RoundTripRequest, tokens_roundtrip

FETCHED = Path(__file__).parents[1] / ".tokenizers"
TOKENIZERS = (
    ("SmolLM2 (GGUF)", "smollm2"),
    ("SmolLM2 (converted)", str(model_folder("smollm2"))),
    ("DeepSeek", str(FETCHED / "deepseek")),
    ("Qwen3", str(FETCHED / "qwen3")),
    ("Llama 3.1", str(FETCHED / "llama3_1")),
    ("Gemma 3", str(FETCHED / "gemma3")),
)
PROPERTIES = (
    "prefix_plain",
    "prefix_thinking",
    "prefix_reasoning_field",
    "prefix_tools",
    "prefix_thinking_tools",
    "outer_whitespace",
)
HEAD = (
    "| tokenizer | round trip | plain | reasoning in content | in its own field | tools | tools and reasoning "
    "| outer whitespace | stop token | then | BOS |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    suite = sys.argv[1] if len(sys.argv) > 1 else "fixed-standard"
    print(HEAD)
    for name, target in TOKENIZERS:
        cells = (name, round_trip(target, suite), *template(target))
        print(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |", flush=True)
    return 0


def round_trip(target: str, suite: str) -> str:
    """Prompts and completions of the suite that come back, and why others do not."""
    report = tokens_roundtrip(RoundTripRequest(targets=(suite,), scoring=target))
    causes = ", ".join(f"{count} {cause}" for cause, count in report.causes["text"].items())
    return f"{report.checked - report.broken} of {report.checked}" + (f" ({causes})" if causes else "")


def template(target: str) -> list[str]:
    """What the template does to the probe conversations."""
    book = book_of(open_tokenizer(target))
    verdicts = {verdict.check: verdict for verdict in examine(book).verdicts}
    found = end_of_turn(book)
    rest = re.search(r"comes ('.*?'),", verdicts["between_turns"].message)
    return [
        *(told(verdicts[name]) for name in PROPERTIES),
        f"`{found[1] if found else 'none'}`, {'eos' if verdicts['stop_token'].status is Status.PASS else 'not eos'}",
        f"`{rest[1][1:-1]}`" if rest else "nothing",
        bos(verdicts),
    ]


def told(verdict: Verdict) -> str:
    """kept, or what happens to the first turn that changes."""
    if verdict.status is Status.PASS:
        return "kept"
    if verdict.status is Status.FAIL:
        cause = re.search(r"turn \d+: (?:.*\()?([a-z ]+)\)?$", verdict.evidence[0].note, re.DOTALL)
        return cause[1] if cause else "changed"
    return "refused" if verdict.message.startswith("refuses") else "not written"


def bos(verdicts: dict[str, Verdict]) -> str:
    """Who writes it."""
    if verdicts["bos"].status is Status.FAIL:
        return "template and tokenizer: doubled if encoded again"
    return "none" if verdicts["raw_text_bos"].status is Status.PASS else "template only; raw text has none"


if __name__ == "__main__":
    sys.exit(main())
