"""`onepolicy tokens`: questions about tokenizers, chat templates and token ids that need no model."""

from __future__ import annotations

import click

from onepolicy.cli.lazy import LazyGroup

SUBCOMMANDS = {
    "roundtrip": ("onepolicy.cli.tokens_roundtrip:roundtrip", "Do sampled ids survive their text, and a text its ids?"),
    "history": ("onepolicy.cli.tokens_history:history", "Does each call begin with what was sampled before it?"),
    "template": ("onepolicy.cli.tokens_template:template", "Say what a chat template does to a conversation."),
    "compare": ("onepolicy.cli.tokens_compare:compare", "Say in what two tokenizers differ, and show a text."),
}
"""name -> (where the command is, its line in the help); loaded only when it is called"""


@click.group(cls=LazyGroup, entries=SUBCOMMANDS)
def tokens() -> None:
    """Do both sides see the same tokens? Needs no model and no engine."""
