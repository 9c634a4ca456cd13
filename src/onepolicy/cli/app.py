"""The group of all commands, and the one place where an error becomes a message and an exit status."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

import click

from onepolicy.errors import OnePolicyError
from onepolicy.visible import visible

COMMANDS = {
    "check": ("onepolicy.cli.check:check", "Sample with one engine, score with the other, decide."),
    "record": ("onepolicy.cli.stages:record", "Sample a suite into a run directory."),
    "score": ("onepolicy.cli.stages:score", "Add an engine's logprobs to a run."),
    "judge": ("onepolicy.cli.stages:judge", "Compare two readings of a run and decide."),
    "report": ("onepolicy.cli.stages:report", "Show a judgement that a run keeps."),
    "demo": ("onepolicy.cli.demo:demo", "Compare two real engines on a small real model."),
}
"""name -> (where the command is, its line in the help); loaded only when it is called"""

EXIT_STATUS_HELP = "Exit status: 0 pass, 1 fail, 2 could not run, 3 unknown, 130 interrupted."
STAGE_EXIT_STATUS_HELP = "Exit status: 0 done, 2 could not run, 130 interrupted."
"""of the commands that decide nothing"""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Commands, epilog=EXIT_STATUS_HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="onepolicy")
def app() -> None:
    """Are two engines the same policy?

    onepolicy feeds the same tokens to the engine that samples rollouts and to
    the engine that trains on them, compares, and decides.
    """


def main() -> None:
    """Run the command line. Ends the process: 0 pass, 1 fail, 2 could not run, 3 unknown, 130 interrupted."""
    try:
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
        click.echo("onepolicy: interrupted. What was finished is kept; go on with --run DIR --resume.", err=True)
        status = 130
    except OSError as error:  # of stdout: what touches a run names its own file
        click.echo(f"onepolicy: the result could not be written ({error.strerror}); the run keeps it.", err=True)
        status = 2
    except SystemExit as ended:  # code that we called, a user's function or a library, asked for the end of the process
        click.echo(
            f"onepolicy: code that was called ended the process ({ended.code!r}); nothing was decided.", err=True
        )
        status = 2
    except Exception:  # a bug of ours: Python would end with 1, which says that the check failed
        traceback.print_exc()
        click.echo("onepolicy: this is a bug of onepolicy, and nothing was decided. Report the lines above.", err=True)
        status = 2
    assert isinstance(status, int), "every command returns its exit status"
    sys.exit(status)
