"""A comparison of behaviour on a terminal, 80 columns wide or more."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from onepolicy.behaviour.result import Agreement, Behaviour, BehaviourMetric, BehaviourSide, RewardEquivalence
from onepolicy.report.console import checks_table, headline
from onepolicy.visible import visible


def show_behaviour(found: Behaviour, console: Console) -> None:
    """Print the answer, what A and B are, the metrics, both rounds' rewards, the checks and the notes."""
    parts: list[RenderableType] = [headline(found.sentence, found.status), Text(), sides_table(found)]
    parts += [Text(), metrics_table(found)]
    if found.reward is not None and found.agreement is not None:
        parts += [Text(), rounds_table(found.reward, found.agreement)]
    parts += [Text(), checks_table(found.verdicts)]
    parts += [Text(visible(f"{note}."), style="dim") for note in found.notes]
    console.print(Group(*parts))


def sides_table(found: Behaviour) -> Table:
    """What was compared: engine, sampling where it is not the default, completions, run."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, side in (("A", found.a), ("B", found.b)):
        table.add_row(name, Text(visible(_configuration(side))))
    return table


def _configuration(side: BehaviourSide) -> str:
    sampling = ", ".join(f"{name} {value}" for name, value in side.protocol.items()) or "defaults"
    return f"{side.engine}; {sampling}; {side.rollouts} completions in {side.run}"


def metrics_table(found: Behaviour) -> Table:
    """One row for each metric: both means, the difference, its adjusted p, and from which size on it matters."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("metric", overflow="fold")
    for name in ("A", "B", "difference", "p", "alarms above", "80 % see"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.metrics:
        table.add_row(Text(visible(row.name)), *_cells(row))
    return table


def _cells(row: BehaviourMetric) -> tuple[str, ...]:
    if row.unit == "tokens":
        shares = (f"{row.difference:+.0%}", f"{row.p:.2g}", f"{row.threshold:.0%}", f"{row.visible:.0%}")
        return (f"{row.a:.1f}", f"{row.b:.1f}", *shares)
    return (
        f"{row.a:.3f}",
        f"{row.b:.3f}",
        f"{row.difference:+.3f}",
        f"{row.p:.2g}",
        f"{row.threshold:g}",
        f"{row.visible:.3f}",
    )


def rounds_table(reward: RewardEquivalence, agreement: Agreement) -> Table:
    """Both rounds of evaluation, and how often a prompt ends the same in both."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("evaluation")
    for name in ("A", "B", "both"):
        table.add_column(name, justify="right", no_wrap=True)
    interval = f"{reward.difference:+.3f} ({reward.low:+.3f} to {reward.high:+.3f})"
    table.add_row("mean reward", f"{reward.a:.3f}", f"{reward.b:.3f}", interval)
    table.add_row(f"reward of {agreement.success:g} or more", f"{agreement.rate_a:.0%}", f"{agreement.rate_b:.0%}", "")
    within = ["-" if x is None else f"{x:.0%}" for x in (agreement.within_a, agreement.within_b)]
    table.add_row("same outcome of a prompt", *within, f"{agreement.across:.0%}")
    return table
