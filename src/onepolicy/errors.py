"""What can go wrong and who can mend it.

    OnePolicyError                exit status 2, shown without a traceback
    ├── UsageError                the command, a spec string or a configuration is not what can be run
    ├── EngineError               an engine could not be started, or did not answer what it was asked
    │   ├── InapplicableError     a model has nothing of what a spec changes
    │   └── MissingExtraError     its package is not installed; the message says what to install
    ├── TokenizerError            the files of a tokenizer are absent, damaged or of a kind that is not read
    ├── TemplateError             a chat template is no Jinja, refuses a conversation, or does not end
    ├── DumpError                 a file that a framework recorded cannot be read, or contradicts itself
    ├── RunError                  a run directory is absent, damaged, incomplete or of another format version
    │   └── ForeignReadingError   a reading scored other ids than the run's
    ├── AlignmentError            two things that must be the same length or the same tokens are not
    ├── NotTheSamePolicyError     raised by `assert_same_policy`; carries the judgement
    └── NotTheSameTokensError     raised by `assert_round_trip`; carries the break

Every message says what was found, where, and what to do next. Anything else that is raised is a bug in onepolicy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onepolicy.records.token_breaks import ShownBreak
    from onepolicy.records.verdict import Judgement


class OnePolicyError(Exception):
    """Something that the person at the keyboard can mend."""


class UsageError(OnePolicyError):
    """The request itself cannot be run."""


class EngineError(OnePolicyError):
    """An engine could not start or did not answer what it was asked."""


class InapplicableError(EngineError):
    """A model cannot be changed as it was asked to: it has nothing of the kind, or is so already."""


class MissingExtraError(EngineError):
    """An optional package is not installed."""

    def __init__(self, *, package: str, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed here. "
            f"Install it with: pip install 'onepolicy[{extra}]'"
        )


class TokenizerError(OnePolicyError):
    """The files of a tokenizer cannot be read, or do not amount to one."""


class TemplateError(OnePolicyError):
    """A chat template is not valid, refuses a conversation, or was stopped."""


class DumpError(OnePolicyError):
    """A recorded file cannot be read, is of no known format, or contradicts itself."""


class RunError(OnePolicyError):
    """A run directory cannot be read or continued."""


class ForeignReadingError(RunError):
    """A reading scored other token ids than the rollouts of the run."""


class AlignmentError(OnePolicyError):
    """Two columns that must describe the same tokens do not."""


class NotTheSamePolicyError(OnePolicyError, AssertionError):
    """The judgement was not a pass."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.sentence)
        self.judgement = judgement


class NotTheSameTokensError(OnePolicyError, AssertionError):
    """A rollout's ids do not come back from their text, or its text not from its ids."""

    def __init__(self, message: str, found: ShownBreak) -> None:
        super().__init__(message)
        self.found = found
