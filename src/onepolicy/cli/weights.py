"""`onepolicy weights`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepolicy.cli.app import EXIT_STATUS_HELP, STAGE_EXIT_STATUS_HELP
from onepolicy.cli.show import progress_bar
from onepolicy.report.console import headline, number
from onepolicy.visible import visible
from onepolicy.weights.compare import TensorDifference, WeightsComparison, compare_weights
from onepolicy.weights.digest import Rounded, WeightsDigest, digest_tensors
from onepolicy.weights.dtypes import ROUNDED
from onepolicy.weights.files import weights_in

_as_option = click.option(
    "--as",
    "rounded_to",
    type=click.Choice(ROUNDED),
    help="Round floating weights to this dtype first, as a trainer does that sends float32 weights to an engine.",
)


@click.group()
def weights() -> None:
    """Are two sets of weights the same, however they are stored?"""


@weights.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.argument("path", type=click.Path(path_type=Path))
@_as_option
@click.option("--tensors", is_flag=True, help="Print the digest of each tensor too.")
@click.option("--json", "as_json", is_flag=True, help="Print the digests as JSON, which compare takes.")
def digest(path: Path, rounded_to: Rounded | None, tensors: bool, as_json: bool) -> int:
    """Print the digest of the weights at PATH.

    It depends on names, dtypes, shapes and values alone: not on files, shards
    or the order of saving.
    """
    found = weights_in(path)
    with progress_bar() as bar:
        bar.start("digesting", sum(tensor.size for tensor in found.values()), unit="bytes")
        done = digest_tensors(found.values(), source=str(path), rounded_to=rounded_to, hashed=bar.advance)
    if as_json:
        click.echo(done.model_dump_json(indent=2))
    else:
        show_digest(done, Console(), tensors=tensors)
    return 0


@weights.command(epilog=EXIT_STATUS_HELP)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@_as_option
@click.option("--most", default=20, show_default=True, type=click.IntRange(min=0), help="Tensors to list at most.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(a: Path, b: Path, rounded_to: Rounded | None, most: int, as_json: bool) -> int:
    """Name the tensors that differ between A and B.

    Each is a model's folder, a file of weights, or what `onepolicy weights
    digest --json` wrote of weights elsewhere.
    """
    found = compare_weights(a, b, rounded_to=rounded_to)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_comparison(found, Console(), most=most)
    return found.exit_status


def show_digest(found: WeightsDigest, console: Console, *, tensors: bool) -> None:
    """Print the whole digest and what it is of."""
    console.print(Text(found.whole, style="bold"), soft_wrap=True)
    rounded = f", rounded to {found.rounded_to}" if found.rounded_to else ""
    console.print(Text(f"{len(found.tensors):,} tensors, {found.count:,} values{rounded}", style="dim"))
    for head, embedding in found.tied.items():
        console.print(Text(visible(f"{head} is {embedding}"), style="dim"))
    for name, one in found.tensors.items() if tensors else ():
        console.print(Text(visible(f"{one.digest}  {one.dtype:<8}  {name} {list(one.shape)}")), soft_wrap=True)


def show_comparison(found: WeightsComparison, console: Console, *, most: int) -> None:
    """Print the answer, the tensors that differ most, and those that are only on one side."""
    console.print(headline(found.sentence, found.status))
    if found.differing and most:
        console.print(Text(), _differences(found.differing[:most]), sep="\n")
    _left_out(len(found.differing) - most, console)
    for side, names in ((found.a, found.only_a), (found.b, found.only_b)):
        if names:
            console.print(Text(visible(f"\nonly in {side}", keep="\n"), style="bold"))
            console.print(*(Text(visible(f"  {name}")) for name in names[:most]), sep="\n")
            _left_out(len(names) - most, console)


def _left_out(count: int, console: Console) -> None:
    if count > 0:
        console.print(Text(f"  and {count:,} more; --most shows them", style="dim"))


def _differences(found: Iterable[TensorDifference]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tensor", overflow="fold")
    for name in ("values that differ", "largest |a - b|", "relative rms"):
        table.add_column(name, justify="right")
    for one in found:
        name = one.name if one.a == one.b else f"{one.name}: {one.a} and {one.b}"
        table.add_row(Text(visible(name)), *_cells(one))
    return table


def _cells(one: TensorDifference) -> tuple[str, str, str]:
    if one.differing is None or one.largest is None:
        return "-", "-", "-"
    relative = "-" if one.relative_rms is None else number(one.relative_rms)
    return f"{one.differing:,} of {one.count:,}", number(one.largest), relative
