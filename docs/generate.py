"""Writes docs/metrics.md and docs/cli.md from the code. `make docs` runs it; a test checks that they are up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from onepolicy.cli.app import COMMANDS, app
from onepolicy.integrations import ENGINES, options_of
from onepolicy.numerics.native import reconcile_page
from onepolicy.numerics.table import REDUCTIONS
from onepolicy.records.verdict import Judgement

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

Against the exact KL of a real pair (Transformers bfloat16 and float32, 16 prompts, exact KL 1.23e-3;
`python benchmarks/estimators.py`):

| estimator | share of the exact KL | error | coefficient of variation per token |
|---|---|---|---|
| k1 | 0.92 | 0.22 | 43 |
| k3 | 0.977 | 0.017 | 2.5 |
| hybrid, K = 20 | 0.990 | 0.007 | 1.7 |
| hybrid, K = 100 | 1.000 | 0.005 | 1.5 |
| K = 20 and one event for the rest: a lower bound | 0.78 | 0.02 | 1.4 |
| K = 100 likewise | 0.90 | 0.01 | 1.3 |

It is called a KL only if the tokens were sampled from the distribution that the rollout logprobs belong to. For fixed
sequences and for greedy or otherwise sampled tokens with raw logprobs the verdict is `on these tokens`: a mean, without
an interval. Under top-p, top-k or min-p k3 alone misses what the trainer gives to removed tokens, so without top lists
the KL is unknown.

Two identities are checked beside it, as structural faults hide from k3. `mean_ratio`: the importance ratio averages to
1 over tokens sampled from the rollout policy, whatever the numerics; an offset of 0.01 on every token passes 1e-4 in k3
and fails here. `sampled_as_reported`: `-logprob - entropy` averages to 0 over tokens drawn from the reported
distributions; a temperature that the logprobs do not show is invisible in d and fails here (limit 4 standard
deviations).

The interval is one-sided 99 % at each end, over prompt groups: `r exp(+- t s / r)` with `r` the ratio of sums, `s` its
jackknife error over prompts and `t` Student's quantile with `n_eff - 1` degrees of freedom. Identical token sequences
are one independent unit, whatever their prompt ids. Fewer than 12 prompts, or effectively fewer than 8, decide nothing.

At a nominal 1 % the chance of passing a policy that sits exactly on the limit depends on the tails over prompts
(`python benchmarks/interval.py`; false fails are at most 0.7 % everywhere):

| level of a prompt | 12 prompts | 24 | 48 | 200 | 1000 |
|---|---|---|---|---|---|
| lognormal, sigma 0.5 | 2.5 % | 2.5 % | 2.4 % | 1.5 % | 1.4 % |
| lognormal, sigma 0.8 | 4.1 % | 4.0 % | 3.8 % | 2.4 % | 1.8 % |
| grows like the square root of the length, sigma 0.8 | 7.1 % | 6.8 % | 5.2 % | 3.2 % | 2.0 % |
| lognormal, sigma 1.0 | 5.5 % | 5.5 % | 5.0 % | 3.2 % | 2.2 % |
| lognormal, sigma 1.5 | 11.8 % | 11.3 % | 10.1 % | 6.8 % | 4.7 % |

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
    for name in COMMANDS:
        command = app.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, **SETTINGS)
        parts.append(f"## onepolicy {name}\n\n```text\n{command.get_help(inner).rstrip()}\n```\n")
    return "\n".join(parts)


ENGINES_HEAD = """# Engines and their options

<!-- written by docs/generate.py; change the options' docstrings in src/onepolicy/integrations instead -->

A spec is `engine:target?option=value&option=value`; quote it in a shell. The same as a mapping:
`{"engine": "transformers", "target": "./model", "dtype": "bfloat16"}`.
"""


def engines_page() -> str:
    """The options of every engine."""
    parts = [ENGINES_HEAD]
    for name in ENGINES:
        fields = options_of(name).model_fields.items()
        rows = [f"| `{field}` | {_default(info.default)} | {_cell(info.description or '')} |" for field, info in fields]
        parts.append(f"## {name}\n\n| option | default | what it is |\n|---|---|---|\n" + "\n".join(rows) + "\n")
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
    "reconcile.md": reconcile_page,
    "judgement.schema.json": schema_page,
}


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
