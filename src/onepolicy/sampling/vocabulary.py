"""Token ids that a model does not have: a configuration that was made for another one."""

from __future__ import annotations

from collections.abc import Iterable

from onepolicy.errors import UsageError
from onepolicy.records.run import Run


def refuse_beyond(ids: Iterable[int], vocab_size: int | None, *, where: str, of: str) -> None:
    """Raise UsageError for an id at or beyond the end of a vocabulary; nothing is known of one without a size.

    where: what the ids are called and where they stand. of: whose vocabulary it is.
    """
    beyond = [token for token in ids if vocab_size is not None and token >= vocab_size]
    if beyond:
        raise UsageError(
            f"{where} = {', '.join(map(str, beyond))}: {of} has {vocab_size} ids, the last of which is "
            f"{vocab_size - 1 if vocab_size else 'none'}. Is this the protocol of another model?"
        )


def vocabulary_of(run: Run) -> int | None:
    """The largest vocabulary that an engine of a run's readings has; None if none says. Raises: RunError."""
    sizes = [run.reading_info(name).engine.vocab_size for name in run.reading_names()]
    return max((size for size in sizes if size is not None), default=None)
