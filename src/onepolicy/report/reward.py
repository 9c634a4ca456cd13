"""The checks of a reward model on a terminal, 80 columns wide or more."""

from __future__ import annotations

from rich.console import Console, Group
from rich.text import Text

from onepolicy.report.console import checks_table, headline, number
from onepolicy.signal.reward.result import RewardChecks
from onepolicy.visible import visible


def show_reward(found: RewardChecks, console: Console) -> None:
    """Print the answer, the checks, and what was looked at."""
    served = f" against {found.served}" if found.served else ""
    spread = "" if found.spread is None else f", spread of two answers {number(found.spread)}"
    looked = f"{found.model}{served}: {found.pairs} pairs{spread}"
    shown = Text(visible(looked), style="dim")
    console.print(Group(headline(found.sentence, found.status), Text(), checks_table(found.verdicts), Text(), shown))
