"""Asking an engine what it can do. Nothing is assumed: each question is a request, and its answer is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from onepolicy.engines.contract import Completion, Engine, SampleInput, Sampler, ScoreInput, Wanted
from onepolicy.engines.http import StatusError, UnreachableError
from onepolicy.engines.measured import (
    DRAWS,
    NEARLY_GREEDY,
    PROMPTS,
    Draw,
    TopList,
    measure,
    measure_temperature,
)
from onepolicy.engines.readable import readable
from onepolicy.errors import EngineError
from onepolicy.records.probe import Fact, Probe
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import ReadingRow, TopLists
from onepolicy.records.tokens import IntArray, TokenState

TEXT = "Two and two are four. 二加二等于四。"
OPEN = frozenset({"heeds temperature", "top-k limit", "cache proof"})
"""questions to which a refusal is no answer"""
TOP_SIZES = (100, 20, 5, 1)
"""most likely tokens that a list is tried with"""
LONG = 300
"""tokens of a prompt that is sent twice: more than a block of any cache"""
LISTED = 20
TEMPERATURE_HOW = f"{DRAWS} draws at temperature {NEARLY_GREEDY:g}, against the top list"
Found = tuple[str, str]
"""answer, and how it was found out"""
Question = Callable[[], Found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What an engine is asked beside the contract, or more closely under the same name."""

    abilities: Mapping[str, Question] = field(default_factory=dict)
    meanings: Mapping[str, Question] = field(default_factory=dict)
    weight_version: str = ""


@runtime_checkable
class Probed(Protocol):
    """An engine with questions of its own."""

    def questions(self) -> Questions:
        """What it is asked beyond the contract."""


def facts(questions: Mapping[str, Question], *, refused: str) -> tuple[Fact, ...]:
    """The answer to each question; `refused` is that of one that an engine refuses, unless it breaks the server.

    Raises: UnreachableError if the server is gone.
    """
    return tuple(_fact(name, ask, "unknown" if name in OPEN else refused) for name, ask in questions.items())


def _fact(name: str, ask: Question, refused: str) -> Fact:
    try:
        with readable(name):
            answer, how = ask()
    except UnreachableError:
        raise
    except StatusError as error:
        answer, how = "unknown" if error.status >= 500 and not error.unknown_path else refused, _refusal(error)
    except EngineError as error:
        answer, how = refused, _short(str(error))
    return Fact(name=name, answer=answer, how=how)


def probe_engine(engine: Engine) -> Probe:
    """What an engine can do by the contract, which every engine has, and by questions of its own if it has some."""
    own = engine.questions() if isinstance(engine, Probed) else Questions()
    sampler = engine if isinstance(engine, Sampler) else None
    questions: dict[str, Question] = {
        "scores given ids": lambda: _scores(engine),
        "logprobs of given ids": lambda: _reports(engine),
        "detokenise": lambda: _decodes(engine),
    }
    meanings: dict[str, Question] = {"prompt": lambda: _scored_meaning(engine)}
    if sampler is not None:
        questions |= _of_sampler(sampler)
        meanings = {"sampled": lambda: _sampled_meaning(sampler), **meanings}
    return Probe(
        engine=engine.info,
        weight_version=own.weight_version,
        abilities=facts({**questions, **own.abilities}, refused="no"),
        meanings=facts({**meanings, **own.meanings}, refused="unknown"),
    )


def _of_sampler(sampler: Sampler) -> dict[str, Question]:
    return {
        "tokenise": lambda: _encodes(sampler),
        "template": lambda: _renders(sampler),
        "ids out": lambda: _samples(sampler),
        "top-k limit": lambda: _lists(sampler),
        "distributions": lambda: _distributions(sampler),
        "cache proof": lambda: _cached(sampler),
        "heeds temperature": lambda: _heeds_temperature(sampler),
    }


# -- scoring --------------------------------------------------------------------------------------------------------


def _ids(which: int = 0) -> IntArray:
    return np.asarray(PROMPTS[which] * 3, dtype=np.int32)


def _score(engine: Engine, ids: IntArray, wanted: Wanted, listed: Sequence[int] = ()) -> ReadingRow:
    """The row of some ids; listed: ids whose logprobs at the last position are asked for. Raises: EngineError."""
    if not engine.scores:
        raise EngineError("it says that it can only be a rollout side")
    item = ScoreInput(
        rollout_id="probe",
        token_ids=ids,
        wanted=np.arange(len(ids)) > 0,
        report=_report_at(len(ids) - 1, listed) if len(listed) else None,
    )
    (row,) = engine.score([item], wanted)
    return row


def _report_at(position: int, listed: Sequence[int]) -> TopLists:
    ids = np.asarray([listed], dtype=np.int32)
    unknown = np.full(ids.shape, np.nan, dtype=np.float32)
    return TopLists(positions=np.asarray([position], dtype=np.int32), ids=ids, logprobs=unknown)


def _scores(engine: Engine) -> Found:
    states = _score(engine, _ids(), Wanted()).states[1:]
    valued = int(np.count_nonzero(states == TokenState.VALUE))
    return "yes" if valued == len(states) else "no", f"{valued} logprobs came back for {len(states)} tokens"


def _reports(engine: Engine) -> Found:
    top = _score(engine, _ids(), Wanted(), range(30, 60)).top
    given = 0 if top is None else int(np.isfinite(top.logprobs).sum())
    how = f"{given} of 30 ids that nobody chose came back with a logprob"
    return "yes" if given == 30 else ("the most likely alone" if given else "no"), how


def _scored_meaning(engine: Engine) -> Found:
    def ask(ids: IntArray, temperature: float, top_k: int) -> TopList:
        wanted = Wanted(meaning=Meaning(temperature=temperature, top_k=top_k))
        likely = list(_first_list(engine, ids)) if isinstance(engine, Sampler) else []
        top = _score(engine, np.append(ids, ids[:1]), wanted, likely or range(250)).top
        return {} if top is None else _listed(top)

    if not ask(_ids(), 1.0, 0):
        return "unknown", "no logprobs of given ids, by which it would be seen"
    try:
        found = measure(ask)
    except EngineError as error:
        return "raw", f"refuses another meaning: {_short(str(error))}"
    if found.is_processed:
        return "as asked for", "temperature 0.5 and top_k 2 process it, and nothing does where they are not asked for"
    return str(found), "logprobs of the same ids at temperature 1 and 0.5, and with top_k 2"


def _listed(top: TopLists) -> dict[int, float]:
    """The logprobs of the first position."""
    pairs = zip(top.ids[0].tolist(), top.logprobs[0].tolist(), strict=True)
    return {token: value for token, value in pairs if token >= 0 and np.isfinite(value)}


# -- sampling -------------------------------------------------------------------------------------------------------


def _one(
    sampler: Sampler, ids: IntArray, *, top: int = 0, seed: int = 0, temperature: float = 1.0, top_k: int = 0
) -> Completion:
    protocol = SamplingProtocol(max_new_tokens=1, temperature=temperature, top_k=top_k)
    (completion,) = sampler.sample(
        [SampleInput(rollout_id="probe", prompt_ids=ids, seed=seed)], protocol, Wanted(top=top)
    )
    return completion


def _samples(sampler: Sampler) -> Found:
    drawn = _one(sampler, _ids())
    return ("yes" if len(drawn.token_ids) == 1 else "no"), f"{len(drawn.token_ids)} id came back for one token"


def _first_list(
    sampler: Sampler, ids: IntArray, *, top: int = LISTED, temperature: float = 1.0, top_k: int = 0
) -> dict[int, float]:
    drawn = _one(sampler, ids, top=top, temperature=temperature, top_k=top_k)
    return {} if drawn.top is None or not len(drawn.top.ids) else _listed(drawn.top)


def _lists(sampler: Sampler) -> Found:
    for size in TOP_SIZES:
        try:
            given = len(_first_list(sampler, _ids(), top=size))
        except StatusError as error:
            if error.status >= 500:
                raise
            continue
        if given:
            shown = f"at least {given}" if given >= size else str(given)
            return shown, f"{given} entries came back where {size} were asked for"
    return "unknown", f"no list came back, whether of {' or '.join(map(str, TOP_SIZES))}"


def _distributions(sampler: Sampler) -> Found:
    size = sampler.info.vocab_size
    if size is None:
        return "unknown", "it does not say how large its vocabulary is"
    given = len(_first_list(sampler, _ids(), top=size))
    return ("yes" if given == size else "no"), f"{given} of {size} entries came back"


def _cached(sampler: Sampler) -> Found:
    ids = np.arange(LONG, dtype=np.int32) % 100 + 50
    counts = [_one(sampler, ids).cached_tokens for _ in range(2)]
    if None in counts:
        return "no", "it gives no count of cached tokens"
    return cache_found(LONG, counts[1] or 0)


def cache_found(sent: int, cached: int) -> Found:
    """Of a prompt that was sent twice, and how many of its tokens the second time took from the cache."""
    how = f"of {sent} tokens sent twice, {cached} came from the cache"
    return ("yes", how) if cached else ("unknown", f"{how}; is the prefix cache on?")


def _sampled_meaning(sampler: Sampler) -> Found:
    def ask(ids: IntArray, temperature: float, top_k: int) -> TopList:
        return _first_list(sampler, ids, temperature=temperature, top_k=top_k)

    return str(measure(ask)), "top lists at temperature 1 and 0.5, and with top_k 2"


def _heeds_temperature(sampler: Sampler) -> Found:
    def draw(ids: IntArray) -> list[int]:
        return [int(_one(sampler, ids, seed=seed, temperature=NEARLY_GREEDY).token_ids[0]) for seed in range(DRAWS)]

    return temperature_found(lambda ids: _first_list(sampler, ids), draw)


def temperature_found(first_list: Callable[[IntArray], TopList], draw: Draw) -> Found:
    """Whether the temperature is heeded, from top lists and draws."""
    return measure_temperature(lambda ids, temperature, top_k: first_list(ids), draw), TEMPERATURE_HOW


# -- text -----------------------------------------------------------------------------------------------------------


def _encodes(sampler: Sampler) -> Found:
    ids = sampler.encode(TEXT, add_special_tokens=False)
    return ("yes" if len(ids) else "no"), f"{len(ids)} ids for a text of {len(TEXT)} characters"


def _renders(sampler: Sampler) -> Found:
    ids = sampler.encode_chat([{"role": "user", "content": TEXT}])
    return ("yes" if len(ids) else "no"), f"{len(ids)} ids for a conversation of one message"


def _decodes(engine: Engine) -> Found:
    text = engine.decode(_ids())
    return (
        ("no", "it has no tokenizer") if text is None else ("yes", f"{len(_ids())} ids became {len(text)} characters")
    )


def _refusal(error: StatusError) -> str:
    return f"status {error.status}: {_short(error.said)}"


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= 120 else f"{plain[:119]}…"
