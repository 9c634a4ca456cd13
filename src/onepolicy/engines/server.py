"""What every engine behind a URL has in common: it answers each sequence by itself, and many are in flight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cached_property
from typing import Generic, Literal, Protocol, Self, TypeVar

import numpy as np

from onepolicy.engines.contract import Completion, SampleInput, ScoreInput, Wanted
from onepolicy.engines.http import HttpClient, ServerOptions, StatusError, aside
from onepolicy.engines.measured import (
    DRAWS,
    NEARLY_GREEDY,
    MeasuredMeaning,
    Obeys,
    TopList,
    measure,
    measure_temperature,
)
from onepolicy.engines.obeyed import ALWAYS
from onepolicy.engines.options import read_options
from onepolicy.engines.probing import TEMPERATURE_HOW, Questions
from onepolicy.engines.readable import readable
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.records.canary import MOST_IDS, Canary
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, ReadingRow
from onepolicy.records.tokens import IntArray, TokenState

T = TypeVar("T")
OptionsT = TypeVar("OptionsT", bound=ServerOptions)
CANARY_TOP = 5
"""of the most likely tokens by which a server that cannot score is known again"""


class TokenizerHere(Protocol):
    """What is asked here of a tokenizer that lies on this machine; its class is in a layer above."""

    def decode(self, token_ids: IntArray) -> str:
        """Text of the ids, special tokens spelled out."""

    def file(self) -> bytes:
        """The content of its `tokenizer.json`."""


class ServerEngine(ABC, Generic[OptionsT]):
    """An engine's requests over an `HttpClient`; a server's own folder says what they look like."""

    options_model: type[OptionsT]
    """what a spec of this engine may say"""
    scores = True
    obeys = ALWAYS

    def __init__(self, client: HttpClient, options: OptionsT) -> None:
        self.client = client
        self.options = options
        self.concurrency = options.concurrency
        self.batch_size = options.concurrency

    @classmethod
    def open(cls, spec: EngineSpec) -> Self:
        """Connect to the server at a spec's URL. Raises: UsageError, EngineError if nothing usable answers."""
        options = read_options(spec, cls.options_model)
        client = HttpClient(spec.target, options)
        with closed_if_unusable(client):
            return cls(client, options)

    @abstractmethod
    async def score_one(self, item: ScoreInput, wanted: Wanted) -> ReadingRow:
        """Teacher-forced logprobs of one sequence. Raises: EngineError."""

    @abstractmethod
    async def sample_one(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Completion:
        """One completion. Raises: EngineError."""

    @abstractmethod
    def refuse_unsayable(self, protocol: SamplingProtocol) -> None:
        """Raise UsageError if no request to the server can say this protocol."""

    async def weight_version(self) -> str:
        """How the server names the weights that it has now; empty if it does not."""
        return ""

    @abstractmethod
    def first_position(self, token_ids: IntArray, temperature: float, top_k: int) -> TopList:
        """The most likely tokens of the position after some ids, as a request with these settings is answered."""

    @cached_property
    def tokenizer_here(self) -> TokenizerHere | None:
        """The tokenizer of the engine's options, or of a folder that its server names; None if none can be read."""
        return None

    def decode(self, token_ids: IntArray) -> str | None:
        """Text of the ids, special tokens spelled out; None without a tokenizer here."""
        return None if self.tokenizer_here is None else self.tokenizer_here.decode(token_ids)

    def tokenizer_file(self) -> bytes | None:
        """Content of the `tokenizer.json` of the tokenizer here; None without one."""
        return None if self.tokenizer_here is None else self.tokenizer_here.file()

    @cached_property
    def sampled_logprobs(self) -> MeasuredMeaning:
        """What the logprobs of sampled tokens mean, measured with at most nine requests for one token."""
        with readable(self.client.url):
            return measure(self.first_position)

    @cached_property
    def obeys_temperature(self) -> Obeys:
        """Whether it draws at the temperature that it is asked for, measured with a few requests for one token."""
        with readable(self.client.url):
            return measure_temperature(self.first_position, self._drawn)

    def sampled_meaning(self, protocol: SamplingProtocol) -> Meaning:
        """As measured.

        Raises: UsageError if a request cannot say the protocol; EngineError if the server ignores it, or it needs what
        was not measured.
        """
        self.refuse_unsayable(protocol)
        if protocol.temperature != 1.0:
            self._refuse_ignored_temperature()
        if protocol.is_plain or protocol.is_greedy:
            return Meaning()
        meaning = self.sampled_logprobs.under(protocol)
        if meaning is None:
            raise EngineError(
                f"{self.client.url}: what its logprobs mean under another temperature or truncation than none could "
                f"not be told ({self.sampled_logprobs}). Sample with temperature 1 and no truncation."
            )
        return meaning

    def submit_score(self, item: ScoreInput, wanted: Wanted) -> Future[ReadingRow]:
        """The same, later."""
        return self.client.submit(self._named(item.rollout_id, lambda: self.score_one(item, wanted)))

    def submit_sample(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Future[Completion]:
        """The same, later."""
        return self.client.submit(self._named(item.rollout_id, lambda: self.sample_one(item, protocol, wanted)))

    def score(self, batch: Sequence[ScoreInput], wanted: Wanted) -> list[ReadingRow]:
        """Teacher-forced logprobs: one row for each sequence, in order. Raises EngineError."""
        return [future.result() for future in [self.submit_score(item, wanted) for item in batch]]

    def sample(self, batch: Sequence[SampleInput], protocol: SamplingProtocol, wanted: Wanted) -> list[Completion]:
        """One completion for each prompt, in order. Raises EngineError."""
        return [future.result() for future in [self.submit_sample(item, protocol, wanted) for item in batch]]

    def questions(self) -> Questions:
        """What a server is asked beyond the contract; its own folder may add to it."""
        how = "top lists at temperature 1 and 0.5, and with top_k 2"
        return Questions(
            abilities={"heeds temperature": lambda: (self.obeys_temperature, TEMPERATURE_HOW)},
            meanings={"sampled": lambda: (str(self.sampled_logprobs), how)},
            weight_version=self.client.call(self.weight_version()),
        )

    def canary(self, token_ids: IntArray) -> Canary:
        """What the model says of some ids now: their logprobs, or where it cannot score what may come after them."""
        ids = token_ids[:MOST_IDS]
        with aside():
            try:
                logprobs = self._scored(ids) if self.scores else self._next(ids)
            except EngineError:  # a rollout side need not score
                logprobs = self._next(ids)
            version = self.client.call(self.weight_version())
        return Canary(token_ids=tuple(ids.tolist()), weight_version=version, logprobs=logprobs)

    def condition(self, *, path: Literal["decode", "prefill"]) -> Condition:
        """The server puts requests together as it likes; which ones is not known."""
        return Condition(path=path)

    def close(self) -> None:
        """End the connection; the server stays."""
        self.client.close()

    def refuse_processed(self, wanted: Wanted, *, of: str) -> None:
        """Raise EngineError if others than raw logprobs are asked for. of: whose are raw, as the message says it."""
        if not wanted.meaning.is_raw:
            raise EngineError(
                f"{self.client.url}: {of} are raw, {wanted.meaning} ones are asked for. Sample with temperature 1 and "
                "no truncation, or score with another engine."
            )

    async def _named(self, rollout_id: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer, or an error that says which rollout it is of."""
        with readable(f"rollout {rollout_id}: {self.client.url}"):
            try:
                return await ask()
            except StatusError as error:
                raise EngineError(f"rollout {rollout_id}: {error}") from error
            except EngineError as error:
                if self.client.url in str(error):
                    raise
                raise EngineError(f"{self.client.url}: {error}") from error

    def _refuse_ignored_temperature(self) -> None:
        if self.obeys_temperature == "yes":
            return
        found = (
            f"ignores the request's `temperature`: at {NEARLY_GREEDY:g} it draws tokens that are not the most likely"
            if self.obeys_temperature == "no"
            else f"gives no sign whether it heeds `temperature`: at {NEARLY_GREEDY:g} it draws as it does at 1"
        )
        raise EngineError(f"{self.client.url}: {found}. Sample with temperature 1, or from another server.")

    def _drawn(self, ids: IntArray) -> list[int]:
        protocol = SamplingProtocol(temperature=NEARLY_GREEDY, max_new_tokens=1)
        asked = [SampleInput(rollout_id="probe", prompt_ids=ids, seed=seed) for seed in range(DRAWS)]
        return [int(one.token_ids[0]) for one in self.sample(asked, protocol, Wanted())]

    def _scored(self, ids: IntArray) -> dict[str, float]:
        wanted = np.arange(len(ids)) > 0
        (row,) = self.score([ScoreInput(rollout_id="canary", token_ids=ids, wanted=wanted, keep_top=False)], Wanted())
        valued = np.flatnonzero(row.states == TokenState.VALUE)
        return {str(at): float(row.logprobs[at]) for at in valued.tolist()}

    def _next(self, ids: IntArray) -> dict[str, float]:
        asked = SampleInput(rollout_id="canary", prompt_ids=ids, seed=0)
        (one,) = self.sample([asked], SamplingProtocol(max_new_tokens=1), Wanted(top=CANARY_TOP))
        if one.top is None or not len(one.top.ids):
            return {}
        pairs = zip(one.top.ids[0].tolist(), one.top.logprobs[0].tolist(), strict=True)
        return {f"next {token}": value for token, value in pairs if token >= 0 and np.isfinite(value)}


@contextmanager
def closed_if_unusable(client: HttpClient) -> Iterator[None]:
    """What is made of a client inside keeps it; if that fails the client is closed. Raises: EngineError."""
    try:
        with readable(client.url):
            yield
    except BaseException:
        client.close()
        raise
