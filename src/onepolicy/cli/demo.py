"""`onepolicy demo`."""

import click


@click.command()
def demo() -> int:
    """Compare two real engines on a small real model."""
    return 0
