"""FakeEngine: samples and scores like a language model, in numpy, with faults planted on request."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onepolicy.engines.contract import Completion, Message, SampleInput, ScoreInput, Wanted
from onepolicy.engines.obeyed import ALWAYS, for_request
from onepolicy.engines.options import read_options
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations.fake.distribution import Distributions
from onepolicy.integrations.fake.options import FakeOptions
from onepolicy.integrations.fake.stopping import end_ids, stopped_by
from onepolicy.integrations.fake.vocabulary import (
    VOCAB_SIZE,
    decode,
    encode,
    render_chat,
    tokenizer_json,
)
from onepolicy.integrations.fake.weights import NOTHING, make_weights
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingRow, TopLists
from onepolicy.records.tokens import (
    BoolArray,
    Float32,
    Float64,
    IntArray,
    StateArray,
    TokenState,
    digest_of_ids,
    states_of,
)


class FakeEngine:
    """A tiny byte-level "language model": fixed random logits by the last ids. No model file, no torch.

    Two engines with the same seed are the same policy, to the last bit and whatever the batches. A completion
    depends on its prompt, its seed and the protocol alone.
    """

    scores = True
    obeys = ALWAYS | {"min_new_tokens", "stop", "stop_token_ids", "ignore_eos"}

    def __init__(self, options: FakeOptions | None = None, *, target: str = "tiny") -> None:
        self._options = options = options or FakeOptions()
        self._target = target
        self.batch_size = options.batch_size
        self._weights = make_weights(seed=options.seed, noise=options.noise, salt=options.dtype)
        self._reported_logits = self._weights.logits / options.temperature
        self._reported: dict[Meaning, Distributions] = {}
        self._sampled: dict[Meaning, Distributions] = {}
        self._tokenizer = tokenizer_json()

    @classmethod
    def open(cls, spec: EngineSpec) -> FakeEngine:
        """The engine that `fake:NAME?...` asks for. Raises UsageError for options it does not know."""
        return cls(read_options(spec, FakeOptions), target=spec.target)

    @property
    def info(self) -> EngineInfo:
        """What the engine says that it is. The weights' hash knows nothing of noise and faults."""
        given = self._options.model_dump(exclude_defaults=True)
        return EngineInfo(
            name="fake",
            version="1",
            model=self._target,
            dtype=self._options.dtype,
            weights_hash=self._weights.hash,
            tokenizer_hash=hashlib.sha256(self._tokenizer).hexdigest(),
            vocab_size=VOCAB_SIZE,
            max_length=self._options.max_length or None,
            options={name: str(value) for name, value in given.items()},
        )

    def condition(self, *, path: str) -> Condition:
        """Nothing is padded, and decode and prefill are the same numbers."""
        return Condition.model_validate({"path": path, "batch_size": self.batch_size})

    def score(self, batch: Sequence[ScoreInput], wanted: Wanted) -> list[ReadingRow]:
        """Exact logprobs: one row for each sequence, in order.

        The first token has no context: if it is wanted, it is ABSENT. A token outside the kept set of a
        processed meaning is EXCLUDED. If an input names ids to report, those come back as its top lists.
        Raises: EngineError if an id is outside the vocabulary.
        """
        time.sleep(self._options.delay)
        rows = [self._score_one(one, wanted) for one in batch]
        return self._with_batch_noise(rows) if self._options.batch_noise else rows

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of `<|im_start|>role\\ncontent<|im_end|>\\n` for each message, and the start of the answer."""
        return self.encode("<|bos|>" * self._options.chat_bos + render_chat(messages), add_special_tokens=False)

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text; `add_special_tokens` puts <|bos|> in front."""
        return encode(text, add_special_tokens=add_special_tokens)

    def sampled_meaning(self, protocol: SamplingProtocol) -> Meaning:
        """Raw, or processed where the option `logprobs` or the protocol says so.

        Raises: UsageError for processed logprobs of tokens before which no completion may end.
        """
        if self._options.logprobs == "raw" and protocol.logprobs == "raw":
            return Meaning()
        if protocol.min_new_tokens:
            raise UsageError(
                f"fake: sampling.min_new_tokens = {protocol.min_new_tokens}: its processed logprobs do not know of it. "
                "Leave it out, or take raw ones."
            )
        return Meaning.processed_by(protocol)

    def sample(self, batch: Sequence[SampleInput], protocol: SamplingProtocol, wanted: Wanted) -> list[Completion]:
        """One completion for each prompt, in order; it ends at <|im_end|>, at a stop or at the longest length allowed.

        Raises: EngineError if an id is outside the vocabulary, or the prompt leaves no room for an answer.
        """
        time.sleep(self._options.delay)
        asked = Wanted(meaning=self.sampled_meaning(protocol), statistics=wanted.statistics, top=wanted.top)
        return [self._sample_one(one, for_request(one, protocol), asked) for one in batch]

    def tokenizer_file(self) -> bytes:
        """The content of a `tokenizer.json` that agrees with `encode` and `decode`."""
        return self._tokenizer

    def decode(self, token_ids: IntArray) -> str:
        """Text of the ids, special tokens spelled out; bytes that are no UTF-8 become U+FFFD."""
        return decode(token_ids)

    def close(self) -> None:
        """Nothing is held."""

    def _score_one(self, one: ScoreInput, wanted: Wanted) -> ReadingRow:
        _refuse_unknown_ids(one.rollout_id, one.token_ids)
        rows = self._weights.rows_of(one.token_ids)
        told = self._told(wanted.meaning)
        states = self._states_to_fill(one)
        asked = states == TokenState.VALUE
        logprobs = told.logprobs[rows, one.token_ids] + self._options.offset
        states[asked] = states_of(logprobs[asked], truncates=wanted.meaning.truncates)
        value = states == TokenState.VALUE
        return ReadingRow(
            rollout_id=one.rollout_id,
            digest=digest_of_ids(one.token_ids),
            logprobs=_where(value, logprobs),
            states=states,
            top1=np.where(asked, told.top1[rows], -1).astype(np.int32),
            statistics=self._moments(rows, asked, wanted.meaning),
            top=self._top(one, rows, np.flatnonzero(asked).astype(np.int32), wanted),
        )

    def _with_batch_noise(self, rows: list[ReadingRow]) -> list[ReadingRow]:
        """Logprobs that depend a little on the batch; those that are given stay below zero."""
        seed = hashlib.sha256(" ".join(row.digest for row in rows).encode()).digest()[:8]
        rng = np.random.Generator(np.random.PCG64(int.from_bytes(seed, "big")))
        return [
            replace(
                row,
                logprobs=(
                    row.logprobs * (1 + self._options.batch_noise * rng.standard_normal(len(row.logprobs)))
                ).astype(np.float32),
            )
            for row in rows
        ]

    def _states_to_fill(self, one: ScoreInput) -> StateArray:
        """VALUE where a logprob is to be given, otherwise why there is none."""
        states = np.full(len(one.token_ids), TokenState.VALUE, dtype=np.uint8)
        states[:1] = TokenState.ABSENT
        if self._options.max_length:
            states[self._options.max_length :] = TokenState.TRUNCATED
        states[~one.wanted] = TokenState.MASKED
        return states

    def _moments(self, rows: IntArray, asked: BoolArray, meaning: Meaning) -> dict[str, Float32]:
        told = self._told(meaning)
        return {
            "entropy": _where(asked, told.entropy[rows]),
            "varentropy": _where(asked, told.varentropy[rows]),
        }

    def _top(self, one: ScoreInput, rows: IntArray, asked: IntArray, wanted: Wanted) -> TopLists | None:
        """The ids to report if there are any, otherwise the most likely ones."""
        told = self._told(wanted.meaning)
        if one.report is not None:
            positions, ids = one.report.positions, one.report.ids
        elif wanted.top and one.keep_top:
            positions, ids = asked, told.order[rows[asked], : wanted.top]
        else:
            return None
        logprobs = told.logprobs[rows[positions][:, None], ids] + self._options.offset
        logprobs[positions == 0] = np.nan
        return TopLists(positions=positions, ids=ids, logprobs=logprobs.astype(np.float32))

    def _told(self, meaning: Meaning) -> Distributions:
        """What the engine claims, the planted temperature included."""
        if meaning not in self._reported:
            self._reported[meaning] = Distributions(self._reported_logits, meaning)
        return self._reported[meaning]

    def _drawn_from(self, protocol: SamplingProtocol) -> Distributions:
        """What the engine samples from."""
        meaning = Meaning.processed_by(protocol)
        if meaning not in self._sampled:
            self._sampled[meaning] = Distributions(self._weights.logits, meaning)
        return self._sampled[meaning]

    def _sample_one(self, one: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Completion:
        _refuse_unknown_ids(one.rollout_id, one.prompt_ids)
        completion, ended_by = self._draw(one, protocol)
        start = len(one.prompt_ids)
        token_ids = np.concatenate([one.prompt_ids, completion])
        given = ScoreInput(
            rollout_id=one.rollout_id,
            token_ids=token_ids,
            wanted=np.arange(len(token_ids)) >= start,
            keep_top=one.keep_top,
        )
        return _completion_of(self._score_one(given, wanted), completion, start=start, ended_by=ended_by)

    def _draw(self, one: SampleInput, protocol: SamplingProtocol) -> tuple[IntArray, str]:
        """The completion, and what ended it; empty for the longest length."""
        distributions = self._drawn_from(protocol)
        generator = np.random.Generator(np.random.PCG64(one.seed))
        first, second, third = [NOTHING, NOTHING, NOTHING, *one.prompt_ids[-3:].tolist()][-3:]
        drawn: list[int] = []
        ended_by = ""
        for uniform in generator.random(self._room_for(one, protocol)).tolist():
            row = self._weights.row_after(first, second, third)
            barred = end_ids(protocol) if len(drawn) < protocol.min_new_tokens else ()
            token = distributions.drawn(row, uniform, greedy=protocol.is_greedy, barred=barred)
            drawn.append(token)
            first, second, third = second, third, token
            ended_by = stopped_by(drawn, protocol)
            if ended_by:
                break
        return np.array(drawn, dtype=np.int32), ended_by

    def _room_for(self, one: SampleInput, protocol: SamplingProtocol) -> int:
        """How many tokens the completion may have."""
        if not self._options.max_length:
            return protocol.max_new_tokens
        room = self._options.max_length - len(one.prompt_ids)
        if room < 1:
            raise EngineError(
                f"rollout {one.rollout_id}: the prompt has {len(one.prompt_ids)} tokens and max_length="
                f"{self._options.max_length} leaves no room for a completion. Raise max_length or shorten it."
            )
        return min(room, protocol.max_new_tokens)


def _completion_of(row: ReadingRow, completion: IntArray, *, start: int, ended_by: str) -> Completion:
    """The entries of a row from `start` on, as what was sampled."""
    top = row.top
    if top is not None:
        top = TopLists(positions=top.positions - np.int32(start), ids=top.ids, logprobs=top.logprobs)
    return Completion(
        rollout_id=row.rollout_id,
        token_ids=completion,
        logprobs=row.logprobs[start:],
        states=row.states[start:],
        text=decode(completion),
        finish_reason="stop" if ended_by else "length",
        stop_reason=ended_by,
        cached_tokens=0,
        top1=None if row.top1 is None else row.top1[start:],
        statistics={name: values[start:] for name, values in row.statistics.items()},
        top=top,
    )


def _refuse_unknown_ids(rollout_id: str, token_ids: IntArray) -> None:
    bad = (token_ids < 0) | (token_ids >= VOCAB_SIZE)
    if bad.any():
        position = int(bad.argmax())
        raise EngineError(
            f"rollout {rollout_id}: position {position} has the id {token_ids[position]}, which is outside "
            f"the fake engine's vocabulary of {VOCAB_SIZE} ids (0 to {VOCAB_SIZE - 1}). The rollouts come "
            f"from another tokenizer; score them with the model that sampled them."
        )


def _where(there: BoolArray, values: Float64) -> Float32:
    return np.where(there, values, np.nan).astype(np.float32)
