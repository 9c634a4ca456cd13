"""The command line: one file for each group of commands, one library call and one renderer for each command."""

from onepolicy.cli.app import main

__all__ = ["main"]
