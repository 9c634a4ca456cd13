"""The group of all commands, and the one place where an error becomes a message and an exit status."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

from onepolicy.cli.lazy import LazyGroup
from onepolicy.errors import OnePolicyError
from onepolicy.visible import visible

COMMANDS = {
    "init": ("onepolicy.cli.init:init", "Write a configuration file for check."),
    "check": ("onepolicy.cli.check:check", "Sample with one engine, score with the other, decide."),
    "record": ("onepolicy.cli.stages:record", "Sample a suite into a run directory."),
    "score": ("onepolicy.cli.stages:score", "Add an engine's logprobs to a run."),
    "judge": ("onepolicy.cli.stages:judge", "Compare two readings of a run and decide."),
    "report": ("onepolicy.cli.stages:report", "Show a judgement that a run keeps."),
    "compare": ("onepolicy.cli.recorded:compare", "Compare the two sides in recorded files and decide."),
    "import": ("onepolicy.cli.recorded:import_", "Read recorded files into a run."),
    "timeline": ("onepolicy.cli.timeline:timeline", "Show the mismatch over the steps of a training, with its jumps."),
    "diagnose": ("onepolicy.cli.diagnose:diagnose", "Why do the two sides of a run differ?"),
    "impact": ("onepolicy.cli.impact:impact", "What does a run's mismatch do to PPO or GRPO training on it?"),
    "symptoms": ("onepolicy.cli.symptoms:symptoms", "What you see, what it usually is, what to run."),
    "selftest": ("onepolicy.cli.selftest:selftest", "Does the diagnosis find what is wrong? Plants known faults."),
    "conform": ("onepolicy.cli.conform:conform", "Do a trainer's own functions compute what they should?"),
    "reward": ("onepolicy.cli.reward:reward", "Is a reward model a sound signal, and the served one the same?"),
    "calibrate": ("onepolicy.cli.calibrate:calibrate", "Measure how far an engine differs from itself."),
    "legs": ("onepolicy.cli.legs:legs", "Hold an engine against itself, leg by leg; name the first that breaks."),
    "parallel": (
        "onepolicy.cli.parallel:parallel",
        "Compare a model's full logits over several ranks with one process.",
    ),
    "horizon": ("onepolicy.cli.horizon:horizon", "What does a run's mismatch add up to over a long rollout?"),
    "bisect": ("onepolicy.cli.bisect:bisect", "Which switch of an engine makes the check fail?"),
    "behave": (
        "onepolicy.cli.behave:behave",
        "Do two configurations behave alike? Samples both, or compares two runs.",
    ),
    "gate": ("onepolicy.cli.gate:gate", "Run a command only if the check passes."),
    "watch": ("onepolicy.cli.watch:watch", "Probe a live pair on fixed ids, again and again."),
    "history": ("onepolicy.cli.history:history", "Show a folder of runs over time: what changed and what moved."),
    "probe": ("onepolicy.cli.probe:probe", "Say what an engine is, what it can do, and what its logprobs mean."),
    "protocol": ("onepolicy.cli.protocol:protocol", "Do both sides sample alike? Needs no model."),
    "audit": ("onepolicy.cli.audit:audit", "Look for odd lengths, stops and seeds in a run's rollouts."),
    "snapshot": ("onepolicy.cli.snapshot:snapshot", "Keep what a checkpoint says of fixed ids, and compare."),
    "weights": ("onepolicy.cli.weights:weights", "Are two sets of weights the same, however they are stored?"),
    "tokens": ("onepolicy.cli.tokens:tokens", "Do both sides see the same tokens? Needs no model."),
    "demo": ("onepolicy.cli.demo:demo", "Compare two real engines on a small real model."),
}
"""name -> (where the command is, its line in the help); loaded only when it is called"""

EXIT_STATUS_HELP = "Exit status: 0 pass, 1 fail, 2 could not run, 3 unknown, 130 interrupted."
STAGE_EXIT_STATUS_HELP = "Exit status: 0 done, 2 could not run, 130 interrupted."
"""of the commands that decide nothing"""


@click.group(
    cls=LazyGroup,
    entries=COMMANDS,
    epilog=EXIT_STATUS_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="onepolicy")
def app() -> None:
    """Are two engines the same policy?

    onepolicy feeds the same tokens to the engine that samples rollouts and to
    the engine that trains on them, compares, and decides.
    """


def main() -> None:
    """Run the command line. Ends the process: 0 pass, 1 fail, 2 could not run, 3 unknown, 130 interrupted."""
    _write_whatever_is_said()
    try:
        with _ends_with_a_status_of_ours():
            status = app.main(standalone_mode=False)
    except click.exceptions.Exit as done:
        status = done.exit_code
    except click.ClickException as error:
        error.show()
        status = 2
    except OnePolicyError as error:
        click.echo(f"onepolicy: {visible(str(error), keep=chr(10))}", err=True)
        status = 2
    except (KeyboardInterrupt, click.Abort):
        kept = " What a run has so far is kept; --run DIR --resume goes on with it." if _resumes(sys.argv[1:]) else ""
        click.echo(f"onepolicy: interrupted.{kept}", err=True)
        status = 130
    except OSError as error:
        click.echo(f"onepolicy: {visible(_of_a_file(error))}", err=True)
        status = 2
    except SystemExit as ended:
        status = 2
        click.echo(f"onepolicy: {_of_an_end(ended)}", err=True)
    except BaseException:  # a bug of ours, or a panic in a library: Python would end with 1, which says: failed
        traceback.print_exc()
        click.echo("onepolicy: this is a bug of onepolicy, and nothing was decided. Report the lines above.", err=True)
        status = 2
    assert isinstance(status, int), "every command returns its exit status"
    sys.exit(status)


def _write_whatever_is_said() -> None:
    """A character that stdout or stderr cannot hold, as one of a stop string, is written as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _resumes(words: Sequence[str]) -> bool:
    """Whether the command that these words call can go on with a run."""
    command: click.Command | None = app
    for word in words:
        if isinstance(command, click.Group):
            command = command.get_command(click.Context(command), word)
    return command is not None and any(one.name == "resume" for one in command.params)


@contextmanager
def _ends_with_a_status_of_ours() -> Iterator[None]:
    """Code that is called and ends this process at once would choose its status, and 0 says that all is well."""
    own, at_once = os.getpid(), os._exit

    def ended(status: int) -> NoReturn:
        if os.getpid() != own:  # a fork of somebody's, which ends as it likes
            at_once(status)
        click.echo(f"onepolicy: code that was called ended the process ({status!r}); nothing was decided.", err=True)
        at_once(2)

    setattr(os, "_exit", ended)  # noqa: B010 - mypy refuses to assign to a function
    try:
        yield
    finally:
        setattr(os, "_exit", at_once)  # noqa: B010


def _of_an_end(ended: SystemExit) -> str:
    """What to say where code that we called asked for the end of the process: a user's function, or a library."""
    if isinstance(ended.__context__, BrokenPipeError):  # rich, whose reader went away, as in `onepolicy ... | head`
        return _of_a_file(ended.__context__)
    return f"code that was called ended the process ({ended.code!r}); nothing was decided."


def _of_a_file(error: OSError) -> str:
    """What to say of an error of the system; one that names no file is of stdout."""
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"the result could not be written ({reason}); the run keeps it."
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    return f"{name}: {reason}. Check that it is there and may be read, or written."
