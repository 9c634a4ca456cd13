"""CallableEngine: scores with the user's own function."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.engines.options import read_options
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, MissingExtraError, UsageError
from onepolicy.integrations.callable.batch import Batch
from onepolicy.integrations.callable.function import UserFunction, load_function
from onepolicy.integrations.callable.options import CallableOptions
from onepolicy.integrations.callable.ranks import StartedRanks, is_under_torchrun
from onepolicy.integrations.callable.tokenizer import read_tokenizer
from onepolicy.records.protocol import Meaning
from onepolicy.records.reading import Condition, EngineInfo, ReadingRow
from onepolicy.records.tokens import Float64, IntArray, TokenState, digest_of_ids, states_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Caller(Protocol):
    """Calls the user's function: here, in ranks that we start, or in the ranks of torchrun."""

    @property
    def version(self) -> str:
        """The module's `__version__`, or empty."""

    @property
    def takes_temperature(self) -> bool:
        """Whether the function has a keyword `temperature`."""

    def score(self, batch: Batch) -> list[Float64]:
        """One array [T] for each sequence. Raises EngineError."""

    def close(self) -> None:
        """Free what it holds."""


@runtime_checkable
class LockStep(Caller, Protocol):
    """A caller that is one rank of several, each a process of the user's."""

    @property
    def is_follower(self) -> bool:
        """Whether this rank only follows rank 0."""

    def follow(self) -> None:
        """Serve rank 0 until it is done. Raises EngineError."""


class CallableEngine:
    """Scores with `score(token_ids: list[list[int]]) -> list of 1-d arrays`; `UserFunction` has the contract.

    `?ranks=2` starts two processes that call it in lock step. Under torchrun every rank opens this engine:
    where `is_follower` is true, call `follow()`, then `close()`, and nothing else. It cannot sample, and
    keeps no statistics or top lists.
    """

    scores = True

    def __init__(self, caller: Caller, *, target: str, options: CallableOptions | None = None) -> None:
        self._caller = caller
        self._target = target
        self._options = options or CallableOptions()
        self.batch_size = self._options.batch_size
        path = self._options.tokenizer
        self._tokenizer = read_tokenizer(path) if path else None
        self._parsed: Tokenizer | None = None

    @classmethod
    def open(cls, spec: EngineSpec) -> CallableEngine:
        """Find the function and start its ranks, if it has any.

        Raises: UsageError if there is no such function or option, EngineError if importing its module fails.
        """
        options = read_options(spec, CallableOptions)
        caller = _caller(spec.target, options)
        try:
            return cls(caller, target=spec.target, options=options)
        except EngineError:
            caller.close()
            raise

    @property
    def is_follower(self) -> bool:
        """Whether this process is a rank above 0 of torchrun, which must call `follow` and nothing else."""
        return isinstance(self._caller, LockStep) and self._caller.is_follower

    def follow(self) -> None:
        """Serve rank 0 until it is done. Raises EngineError if any rank fails."""
        assert isinstance(self._caller, LockStep)
        self._caller.follow()

    @property
    def info(self) -> EngineInfo:
        """What is known: the target, the module's `__version__`, and the labels that the user gave."""
        given = self._options.model_dump(exclude_defaults=True)
        return EngineInfo(
            name="callable",
            version=self._caller.version,
            model=self._target,
            dtype=self._options.dtype,
            device="unknown",
            tokenizer_hash=hashlib.sha256(self._tokenizer).hexdigest() if self._tokenizer else "",
            options={name: str(value) for name, value in given.items()},
        )

    def condition(self, *, path: str) -> Condition:
        """Prefill; how the function pads is not known. Raises EngineError for decode."""
        if path != "prefill":
            raise EngineError(f"callable:{self._target} scores given tokens all at once: it cannot {path}.")
        return Condition(path="prefill", batch_size=self.batch_size)

    def score(self, batch: Sequence[ScoreInput], wanted: Wanted) -> list[ReadingRow]:
        """The function's logprobs: one row for each sequence, in order.

        Raises: EngineError if the function fails or breaks its contract, or cannot score `wanted.meaning`.
        """
        logprobs = self._caller.score(
            Batch(
                rollout_ids=[one.rollout_id for one in batch],
                token_ids=[one.token_ids for one in batch],
                temperature=self._temperature(wanted.meaning),
            )
        )
        return [_row(one, values) for one, values in zip(batch, logprobs, strict=True)]

    def tokenizer_file(self) -> bytes | None:
        """The content of the file that the option `tokenizer` names."""
        return self._tokenizer

    def decode(self, token_ids: IntArray) -> str | None:
        """Text of the ids, special tokens spelled out; None without the option `tokenizer`."""
        if self._tokenizer is None:
            return None
        if self._parsed is None:
            from tokenizers import Tokenizer  # noqa: PLC0415  only the token checks need it

            self._parsed = Tokenizer.from_str(self._tokenizer.decode())
        return str(self._parsed.decode(token_ids.tolist(), skip_special_tokens=False))

    def close(self) -> None:
        """End the ranks that it started; under torchrun, send the followers home."""
        self._caller.close()

    def _temperature(self, meaning: Meaning) -> float:
        if meaning.is_raw:
            return 1.0
        truncates = meaning.top_p < 1.0 or meaning.top_k > 0 or meaning.min_p > 0.0
        if truncates or not self._caller.takes_temperature:
            can = "raw and temperature-scaled" if self._caller.takes_temperature else "raw"
            raise EngineError(
                f"callable:{self._target} can only score {can} logprobs, and {meaning} was asked for. Record "
                f"the rollouts with raw logprobs, or, if temperature is all, let the function take a keyword "
                f"`temperature`."
            )
        return meaning.temperature


def _caller(target: str, options: CallableOptions) -> Caller:
    if options.ranks and is_under_torchrun():
        raise UsageError(
            f"callable:{target}: ranks={options.ranks} would start ranks inside a rank of torchrun. "
            f"Leave the option out, or start onepolicy without torchrun."
        )
    if options.ranks:
        return StartedRanks(target, count=options.ranks, timeout=options.timeout)
    function = load_function(target)
    return _in_step(function, timeout=options.timeout) if is_under_torchrun() else function


def _in_step(function: UserFunction, *, timeout: float) -> Caller:
    try:
        from onepolicy.integrations.callable.torchrun import TorchrunRanks  # noqa: PLC0415  imports torch
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            package="torch", extra="transformers", needed_for="a callable engine with RANK and WORLD_SIZE set"
        ) from error
    return TorchrunRanks(function, timeout=timeout)


def _row(one: ScoreInput, logprobs: Float64) -> ReadingRow:
    """The wanted entries; the first token has no context, so it is ABSENT if it is wanted."""
    states = states_of(logprobs)
    states[:1] = TokenState.ABSENT
    states[~one.wanted] = TokenState.MASKED
    kept = np.where(states == TokenState.VALUE, logprobs, np.nan)
    return ReadingRow(
        rollout_id=one.rollout_id,
        digest=digest_of_ids(one.token_ids),
        logprobs=kept.astype(np.float32),
        states=states,
    )
