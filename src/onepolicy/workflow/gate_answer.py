"""The verdict file of a gate. Light: the process that becomes the command loads no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from onepolicy.errors import RunError, UsageError
from onepolicy.records.files import disk_errors, write_text_atomically
from onepolicy.records.past import GateAnswer
from onepolicy.records.verdict import Status
from onepolicy.version import VERSION

COULD_NOT_RUN = 2


def refuse_one_file(config: Path, written: Mapping[str, Path | None]) -> None:
    """Raise UsageError if an option names the configuration, or what another one names, as the file to write."""
    names = {config.resolve(): "the configuration"}
    for option, file in written.items():
        if file is None:
            continue
        if file.resolve() in names:
            raise UsageError(
                f"{option} {file}: is {names[file.resolve()]}, and would be written over. Name another file."
            )
        names[file.resolve()] = f"what {option} names"


def undecided(config: Path, now: datetime) -> GateAnswer:
    """What the verdict file says until there is an answer, and for good if the process is killed."""
    return could_not_run(config, now, "the check has not come to its end.")


def could_not_run(config: Path, now: datetime, why: str) -> GateAnswer:
    """The answer that blocks because there is none."""
    return GateAnswer(
        tool_version=VERSION,
        time=now,
        config=str(config),
        allowed=False,
        status=Status.UNKNOWN,
        exit_status=COULD_NOT_RUN,
        sentence=f"Unknown: {why}",
    )


def write_answer(file: Path, answer: GateAnswer) -> None:
    """Atomically: whoever reads it finds the one or the other. Raises: RunError if it cannot be written."""
    write_text_atomically(file, answer.model_dump_json(indent=2) + "\n")


def read_answer(file: Path) -> GateAnswer:
    """What a verdict file says. Raises: RunError if it is absent or damaged, or contradicts itself."""
    with disk_errors(file):
        content = file.read_bytes()
    try:
        return GateAnswer.model_validate_json(content)
    except ValidationError as error:
        raise RunError(f"{file}: is no verdict file of `onepolicy gate` ({error.errors()[0]['msg']}).") from error
