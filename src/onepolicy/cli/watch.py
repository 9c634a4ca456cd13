"""`onepolicy watch`."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.duration import Duration
from onepolicy.cli.show import progress_bar
from onepolicy.records.files import write_text_atomically
from onepolicy.records.past import PastRun
from onepolicy.records.verdict import Status
from onepolicy.report.prometheus import prometheus_text
from onepolicy.visible import visible
from onepolicy.workflow.config import check_request, load_config
from onepolicy.workflow.gate_answer import refuse_one_file
from onepolicy.workflow.history_lines import LINES
from onepolicy.workflow.watch import Watched, WatchRequest
from onepolicy.workflow.watch import watch as run_watch

_UNTIL = {"fail": Status.FAIL, "unknown": Status.UNKNOWN}


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--every", type=Duration(), default="10m", show_default=True, help="From one probe to the next.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="watch",
    show_default=True,
    help="Where watch.jsonl and the runs of the probes are kept.",
)
@click.option(
    "--until",
    type=click.Choice(list(_UNTIL)),
    help="End at the first probe that fails; or is unknown or fails. Not given: go on.",
)
@click.option("--probes", type=click.IntRange(min=1), metavar="INTEGER", help="End after so many.")
@click.option("--keep-all", is_flag=True, help="Keep the runs of passes that say nothing new too.")
@click.option(
    "--prometheus",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the numbers of the last probe for a textfile collector.",
)
def watch(config: Path, until: str | None, prometheus: Path | None, **options: Any) -> int:
    """Probe a live pair on fixed ids, again and again.

    Asks both engines of CONFIG for the same token ids and appends a line to a
    history, which `onepolicy history` shows. What changes is said once: another
    answer, another version, a server that does not answer (unknown, and asked
    again). SIGTERM and Ctrl-C end it with what it has.

    The exit status is 1 if a probe failed, 3 if one is unknown, 0 if all pass.
    """
    refuse_one_file(config, {"--folder": options["folder"] / LINES, "--prometheus": prometheus})
    request = WatchRequest(
        check=check_request(load_config(config)),
        until=None if until is None else _UNTIL[until],
        seen=_writer(prometheus),
        **options,
    )
    watched = Watched()
    with progress_bar() as bar, _ended_by_signals():
        run_watch(request, watched, progress=bar)
    last = "" if watched.last is None else f" The last: {visible(watched.last.sentence)}"
    click.echo(f"{watched.status.value.capitalize()}: {watched.rows} probes in {visible(str(request.folder))}.{last}")
    return watched.status.exit_status


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGINT end the block, wherever it is, and nothing else."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass  # what was probed is kept, line by line
    finally:
        signal.signal(signal.SIGTERM, before)


def _writer(file: Path | None) -> Callable[[PastRun], None]:
    """Writes the numbers of each probe, if a file is named."""

    def write(row: PastRun) -> None:
        if file is not None:
            text = prometheus_text(row.numbers, status=row.status, time=row.time or datetime.now(UTC))
            write_text_atomically(file, text)

    return write
