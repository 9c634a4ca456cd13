"""Writes the pages in `PAGES` from the code. `make docs` runs it; a test checks that they are up to date."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from onepolicy.cli.app import app
from onepolicy.diagnosis.symptoms import symptoms
from onepolicy.engines.obeyed import ALWAYS
from onepolicy.integrations import ENGINES, FORMATS, format_named, options_of
from onepolicy.numerics.native import reconcile_page
from onepolicy.numerics.table import REDUCTIONS
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.verdict import Judgement
from onepolicy.report.symptoms import symptoms_page

HERE = Path(__file__).parent
SETTINGS: dict[str, Any] = {"terminal_width": 80, "max_content_width": 80, "help_option_names": ["-h", "--help"]}

METRICS_HEAD = """# Metrics

<!-- written by docs/generate.py; change src/onepolicy/numerics/table.py instead -->

`p` is the rollout policy, `q` the trainer policy, `x` a compared token, `d = ln q(x) - ln p(x)` in nats. All are
computed in float64 from float32 logprobs over the tokens that have one on both sides. Nothing is clamped; a metric
without a value is left out, never filled. A released name never changes its meaning.

| name | unit | what it is |
|---|---|---|
"""

METRICS_TAIL = """
## What gates

`gate` is the quantity that the check `mean_kl` decides on, per token:

* hybrid KL, `sum over v in S of [p(v) ln(p(v)/q(v)) - p(v) + q(v)]`, plus k3 of the sampled token if it is not in `S`,
  where both sides have logprobs of the same `S` (the rollout side's most likely tokens, 20 by default). Unbiased and
  never negative, as `S` does not depend on the sampled token; exact if `S` is the whole vocabulary;
* k3, `exp(d) - 1 - d`, elsewhere.

Against the exact KL of a real pair (Transformers bfloat16 and float32 on the contexts of 48 prompts, exact KL 1.385e-3;
`python benchmarks/estimators.py`), and on the tokens and lists of a real vLLM as a share of hybrid-100:

| estimator | share of the exact KL | error | coefficient of variation per token | on vLLM's tokens |
|---|---|---|---|---|
| k1 | 1.10 | 0.12 | 35 | 1.0 (error 1.1) |
| k3 | 1.008 | 0.012 | 3.7 | 0.97 (0.04) |
| hybrid, K = 20 | 0.995 | 0.008 | 2.2 | 0.998 (0.017) |
| hybrid, K = 100 | 0.997 | 0.005 | 2.0 | 1 |
| K = 20 and one event for the rest: a lower bound | 0.80 | 0.02 | 2.0 | 0.81 (0.02) |
| K = 100 likewise | 0.91 | 0.01 | 1.9 | 0.93 (0.02) |

The lower bounds decide nothing.

It is called a KL only if the tokens were sampled from the distribution that the rollout logprobs belong to. For fixed
sequences and for greedy or otherwise sampled tokens with raw logprobs the verdict is `on these tokens`: a mean, without
an interval. Under top-p, top-k or min-p k3 alone misses what the trainer gives to removed tokens, so without top lists
the KL is unknown.

Two identities are checked beside it, as structural faults hide from k3. `mean_ratio`: the importance ratio averages to
1 over tokens sampled from the rollout policy, whatever the numerics; an offset of 0.01 on every token passes 1e-4 in k3
and fails here. `sampled_as_reported`: `-logprob - entropy` averages to 0 over tokens drawn from the reported
distributions; a temperature that the logprobs do not show is invisible in d and fails here (limit 4 standard
deviations).

The interval is over prompt groups: `r exp(-E)` and `r exp(E + E^2 / 3)` with `E = t s / r`, `r` the ratio of sums,
`s` its jackknife error over prompts and `t` Student's quantile with `n_eff - 1` degrees of freedom, one-sided 99 %
at each end at the first look ([limits](limits.md#when-it-decides)). Identical token sequences are one independent
unit, whatever their prompt ids. Fewer than 12 prompts, or effectively fewer than 8, decide nothing. A rollout of
more than 128 tokens counts with its own mean and weighs as much as one of 128: otherwise a few long ones decide
alone (the last but one row).

At a nominal 1 % the chance of passing a policy that sits exactly on the limit depends on the tails over prompts
(`python benchmarks/interval.py`; false fails are at most 1.0 % everywhere). The recorded rows resample the rollouts
of a real pair (vLLM bfloat16 against Transformers, 48 prompts); at most 5 % is promised for all but the last two
rows:

| level of a prompt | 12 prompts | 24 | 48 | 200 | 1000 |
|---|---|---|---|---|---|
| recorded, against float32, hybrid | 0.5 % | 1.0 % | 1.3 % | 1.2 % | 1.1 % |
| recorded, against bfloat16, hybrid | 0.8 % | 0.8 % | 0.9 % | 0.9 % | 1.0 % |
| lognormal fitted to the recording | 3.1 % | 3.0 % | 2.5 % | 1.8 % | 1.4 % |
| lognormal, sigma 0.5 | 1.9 % | 1.9 % | 1.8 % | 1.3 % | 1.2 % |
| lognormal, sigma 0.8 | 2.8 % | 2.8 % | 2.6 % | 1.8 % | 1.4 % |
| lognormal, sigma 1.0 | 3.8 % | 3.8 % | 3.4 % | 2.3 % | 1.7 % |
| grows like the square root of the length, sigma 0.8 | 4.4 % | 4.1 % | 3.1 % | 2.1 % | 1.5 % |
| the same, each token counting the same | 6.8 % | 6.6 % | 6.0 % | 4.5 % | 2.9 % |
| lognormal, sigma 1.5 | 7.1 % | 7.6 % | 6.6 % | 4.8 % | 3.1 % |

Formulas: `src/onepolicy/numerics/metrics.py` and `src/onepolicy/judgement/statistics.py`.
"""


def metrics_page() -> str:
    """The table of metrics."""
    rows = [f"| `{name}` | {unit or '-'} | {_cell(what)} |" for name, (unit, what, _) in REDUCTIONS.items()]
    return METRICS_HEAD + "\n".join(rows) + "\n" + METRICS_TAIL


def cli_page() -> str:
    """The help of every command."""
    parts = ["# Commands\n\n<!-- written by docs/generate.py; change the help texts in src/onepolicy/cli instead -->\n"]
    context = click.Context(app, info_name="onepolicy", **SETTINGS)
    parts.append(f"```text\n{app.get_help(context).rstrip()}\n```\n")
    return "\n".join([*parts, *_helps(app, context)])


def _helps(group: click.Group, context: click.Context) -> Iterator[str]:
    """The help of each command in a group, and of those in groups inside it."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, **SETTINGS)
        yield f"## {inner.command_path}\n\n```text\n{command.get_help(inner).rstrip()}\n```\n"
        if isinstance(command, click.Group):
            yield from _helps(command, inner)


ENGINES_HEAD = """# Engines and their options

<!-- written by docs/generate.py; change the options' docstrings in src/onepolicy/integrations instead -->

A spec is `engine:target?option=value&option=value`; quote it in a shell. The same as a mapping:
`{{"engine": "transformers", "target": "./model", "dtype": "bfloat16"}}`.

An engine that samples obeys these fields of a [protocol](protocol.md), and those that are named with it: {always}.
Any other one that is not at its default is refused before anything is sampled.
"""


def engines_page() -> str:
    """The options of every engine, and the fields of a protocol that it obeys."""
    parts = [ENGINES_HEAD.format(always=_fields(ALWAYS))]
    for name in ENGINES:
        fields = options_of(name).model_fields.items()
        rows = [f"| `{field}` | {_default(info.default)} | {_cell(info.description or '')} |" for field, info in fields]
        table = "| option | default | what it is |\n|---|---|---|\n" + "\n".join(rows)
        parts.append(f"## {name}\n\n{table}\n\n{_obeyed(name)}\n")
    return "\n".join(parts)


def _obeyed(name: str) -> str:
    module, engine = ENGINES[name][0].split(":")
    obeys = getattr(getattr(import_module(module), engine), "obeys", None)
    return "It does not sample." if obeys is None else f"Obeys also: {_fields(obeys - ALWAYS) or 'nothing'}."


def _fields(names: Iterable[str]) -> str:
    """In the order of the protocol."""
    return ", ".join(f"`{name}`" for name in SamplingProtocol.model_fields if name in set(names))


DUMPS_HEAD = """# Recorded files

<!-- written by docs/generate.py; change the docstrings of the readers in src/onepolicy/integrations instead -->

What a framework recorded is compared without an engine. The format is known from the content; nothing in a file is
ever executed, and its rows are all accounted for: read = used + refused.

```console
$ onepolicy compare logs/train_data_step12.jsonl             # both sides are in it: a verdict
$ onepolicy compare 'dumps/train_data/*.pt' --limits bf16    # a quoted glob, a folder or a URL that fsspec knows
$ onepolicy compare rollouts.jsonl rescored.parquet          # one side each: put together by their token ids
$ onepolicy import logs --run runs/imported                  # the same as a run: report, more readings, judge again
$ onepolicy timeline logs                                    # step after step, with jumps (docs/timeline.md)
```

Files may be compressed (`.gz`, `.zst`; known from their content). Of plain Parquet or JSONL name the columns that are
called otherwise: `--columns rollout_logprobs=vllm_logprobs,trainer_logprobs=old_log_probs`. How the rollouts were
sampled is what no file says: give `--temperature`, `--top-p`, `--top-k`, `--min-p` if they were not sampled from the
model's own distribution. `--tokenizer PATH` shows text in place of ids.

A row whose fields contradict each other (a list one entry longer than the tokens, a mask beyond the ids) is refused
with file, row and field, and what is judged without it is unknown (3), never a pass. What is odd and no contradiction
is told: logprobs that agree far better a few positions further on (`alignment`), a mask that begins or ends a place
off (`mask_ends`), a 0.0 where the other side is not certain (`placeholder_zeros`). Unknown, so no pass: columns that
are mostly 0.0 on both sides or a copy of each other (`two_columns`), many rollouts that are masked away
(`compared_rollouts`), and rollouts that were sampled by other weights than those that scored them (`same_weights`).

A side that is absent can be computed: `onepolicy import`, then `onepolicy score RUN --engine SPEC`, then `onepolicy
judge RUN`.
"""


def dumps_page() -> str:
    """Every format of recorded files: what it is, and how its columns are read."""
    parts = [DUMPS_HEAD]
    for name in FORMATS:
        found = format_named(name)
        text = cleandoc(import_module(FORMATS[name].partition(":")[0]).__doc__ or "")
        notes = "".join(f"* {note}\n" for note in found.notes)
        parts.append(f"## {name}\n\n{found.title}\n\n{text}\n" + (f"\n{notes}" if notes else ""))
    return "\n".join(parts)


def schema_page() -> str:
    """The JSON schema of a judgement."""
    return json.dumps(Judgement.model_json_schema(), indent=2) + "\n"


def _default(value: object) -> str:
    return "-" if value is None or value == "" else f"`{value}`"


PAGES = {
    "metrics.md": metrics_page,
    "cli.md": cli_page,
    "engines.md": engines_page,
    "dumps.md": dumps_page,
    "reconcile.md": reconcile_page,
    "symptoms.md": lambda: symptoms_page(symptoms()),
    "judgement.schema.json": schema_page,
}


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
