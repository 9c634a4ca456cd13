"""A comparison of behaviour beside the two runs that it speaks of."""

from __future__ import annotations

import hashlib
from pathlib import Path

from onepolicy.behaviour.result import Behaviour
from onepolicy.errors import RunError
from onepolicy.judgement.decide import decide
from onepolicy.records.files import disk_errors, write_text_atomically
from onepolicy.records.run import Run
from onepolicy.records.stored import read_json
from onepolicy.records.strict import Strict
from onepolicy.workflow.behave_record import SIDES

BEHAVIOUR = "behaviour.json"
"""beside the folders of the two runs"""


class KeptSide(Strict):
    """What a run held when it was compared."""

    protocol: str
    """hash of the run's protocol"""
    content: str
    """SHA-256 of the run's rollouts and spans"""


class KeptBehaviour(Strict):
    """`behaviour.json`."""

    format_version: int = 1
    a: KeptSide
    b: KeptSide
    found: Behaviour

    def is_of(self, path: Path) -> bool:
        """Whether it speaks of what the runs at `path`/a and `path`/b hold now. Raises: RunError."""
        return sides_of(path) == {"a": self.a, "b": self.b}


def sides_of(path: Path) -> dict[str, KeptSide]:
    """What the runs at `path`/a and `path`/b hold now. Raises: RunError."""
    runs = {name: Run.open(path / name) for name in SIDES}
    return {name: KeptSide(protocol=run.manifest.protocol.hash, content=_content(run)) for name, run in runs.items()}


def keep(path: Path, found: Behaviour, *, of: dict[str, KeptSide]) -> None:
    """Write a comparison to `path`, in place of an earlier one. of: `sides_of` before it was made."""
    kept = KeptBehaviour(a=of["a"], b=of["b"], found=found)
    write_text_atomically(path / BEHAVIOUR, kept.model_dump_json(indent=2) + "\n")


def kept_behaviour(path: Path) -> KeptBehaviour:
    """The comparison at `path`. Raises: RunError if it is damaged, or its answer does not follow from its verdicts."""
    file = path / BEHAVIOUR
    kept = read_json(file, KeptBehaviour)
    if kept.found.status is not decide(kept.found.verdicts):
        raise RunError(
            f"{file}: says {kept.found.status.value!r}, which does not follow from its verdicts. The file was changed; "
            "compare again: onepolicy behave --resume"
        )
    return kept


def _content(run: Run) -> str:
    """All that a comparison reads of a run but its protocol: one hash over its files' names and bytes."""
    found = hashlib.sha256()
    for folder in ("rollouts", "spans"):
        for part in sorted((run.path / folder).glob("part-*.parquet")):
            with disk_errors(part), part.open("rb") as file:
                found.update(f"{folder}/{part.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()
