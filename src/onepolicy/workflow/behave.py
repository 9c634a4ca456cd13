"""`onepolicy behave`: two runs -> whether they behave alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, SupportsFloat

from onepolicy.behaviour.compare import SUCCESS, Configured, Question, compare_behaviour
from onepolicy.behaviour.completions import Observed, Side
from onepolicy.behaviour.limits import BehaviourLimits
from onepolicy.behaviour.metrics import Asked
from onepolicy.behaviour.permutation import PERMUTATIONS
from onepolicy.behaviour.result import Behaviour, BehaviourSide
from onepolicy.errors import RunError, UsageError
from onepolicy.integrations.callable.function import load_function
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.run import Run
from onepolicy.records.tokens import digest_of_ids
from onepolicy.workflow.behave_kept import BEHAVIOUR, keep, sides_of
from onepolicy.workflow.behave_parse import Parse, parser, refuse_no_pattern
from onepolicy.workflow.behave_record import SIDES, BehaveRequest, record_both
from onepolicy.workflow.behave_whole import side_verdicts
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT

Reward = Callable[[str, str], SupportsFloat]
"""(prompt, completion) -> reward; the prompt as the model read it, special tokens spelled out"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaveOptions:
    """What to look at in two runs."""

    keywords: tuple[str, ...] = ()
    parse: Parse | None = None
    reward: Reward | None = None
    """instead of the rewards that the runs have"""
    success: float = SUCCESS
    limits: BehaviourLimits = BehaviourLimits()
    permutations: int = PERMUTATIONS


def behave(
    a: str | Path, b: str | Path, options: BehaveOptions = BehaveOptions(), *, progress: Progress | None = None
) -> Behaviour:
    """Compare the behaviour of two recorded runs. Needs no engine.

    Raises: RunError, UsageError if a run cannot be read, has no sampled tokens, or none of the other's prompts, if both
    are one and the same run, or if what is asked cannot be.
    """
    _refuse(options)
    shown = progress or Silent()
    runs = [Run.open(Path(path)) for path in (a, b)]
    if runs[0].path.resolve() == runs[1].path.resolve():
        raise UsageError(f"{runs[0].path}: the run would be compared with itself, which always passes. Name two runs.")
    shown.start("reading", sum(run.manifest.planned_rollouts for run in runs))
    spans = [list(run.spans()) for run in runs]
    sides = [_configured(run, calls, options.reward, shown) for run, calls in zip(runs, spans, strict=True)]
    whole = [
        verdict
        for name, run, calls, side in zip(SIDES, runs, spans, sides, strict=True)
        for verdict in side_verdicts(name, run, calls, there=len(side.side.completions))
    ]
    return compare_behaviour(sides[0], sides[1], _question(options, sides), whole)


def record_and_behave(
    path: Path,
    request: BehaveRequest,
    options: BehaveOptions = BehaveOptions(),
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> Behaviour:
    """Sample both sides into `path`/a and `path`/b, compare them, and keep the comparison in `path`/behaviour.json.

    Raises: EngineError, RunError, UsageError; what was sampled before stays, and `resume` goes on from there.
    """
    _refuse(options)
    a, b = record_both(path, request, resume=resume, progress=progress)
    sides = sides_of(path)
    found = behave(a, b, options, progress=progress)
    keep(path, found, of=sides)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaveEvery:
    """The self-check of a training: every so many steps both configurations are sampled and compared."""

    steps: int
    request: Callable[[int], BehaveRequest]
    """step -> what to sample: its checkpoint, and the server that has its weights"""
    path: Path
    """a folder for each step that is looked at"""
    options: BehaveOptions = BehaveOptions()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"a self-check every {self.steps} steps is none. Give 1 or more.")

    def __call__(self, step: int) -> Behaviour | None:
        """The comparison; None between the steps that are looked at. A step that was killed is gone on with."""
        if step % self.steps:
            return None
        return record_and_behave(self._folder(step), self.request(step), self.options, resume=True)

    def _folder(self, step: int) -> Path:
        """A training that was started again comes to a step a second time, with other weights."""
        path, number = self.path / f"step-{step}", 1
        while (path / BEHAVIOUR).exists():
            number += 1
            path = self.path / f"step-{step}-{number}"
        return path


def function_named(target: str, *, option: str) -> Callable[..., Any]:
    """The function that `my_pkg.rewards:score` or `path/to/file.py:score` names. Raises: EngineError, UsageError."""
    try:
        return load_function(target).call
    except UsageError as error:
        raise UsageError(f"{option} {target}: {str(error).replace('callable:', '')}") from error


# -- what is asked ----------------------------------------------------------------------------------------------


def _refuse(options: BehaveOptions) -> None:
    """Before anything is sampled. Raises: UsageError if it cannot be asked."""
    words = options.keywords
    odd = next((word for i, word in enumerate(words) if not word.strip() or word in words[:i]), None)
    if odd is not None:
        raise UsageError(f"the keyword {odd!r} is blank, or given twice. Each keyword is a metric of its own.")
    if not math.isfinite(options.success):
        raise UsageError(f"a success from a reward of {options.success} on is no success. Give a finite number.")
    refuse_no_pattern(options.parse)


def _question(options: BehaveOptions, sides: Sequence[Configured]) -> Question:
    texts = [one.text for side in sides for one in side.side.completions if one.text is not None]
    return Question(
        asked=Asked(keywords=options.keywords, parses=None if options.parse is None else parser(options.parse, texts)),
        limits=options.limits,
        success=options.success,
        permutations=options.permutations,
    )


# -- a run's completions ----------------------------------------------------------------------------------------


def _configured(run: Run, spans: Sequence[Span], reward: Reward | None, progress: Progress) -> Configured:
    completions = list(_observed(run, spans, reward, progress))
    if not completions:
        raise RunError(
            f"{run.path}: no rollout is there yet. Record it: onepolicy behave --resume, or onepolicy record"
        )
    manifest = run.manifest
    usual = SamplingProtocol()
    return Configured(
        side=Side(completions=completions, greedy=manifest.protocol.is_greedy or manifest.protocol.top_k == 1),
        shown=BehaviourSide(
            run=str(run.path),
            engine=manifest.rollout_engine,
            protocol={n: str(v) for n, v in dict(manifest.protocol).items() if v != getattr(usual, n)},
            rollouts=len(completions),
        ),
        max_new_tokens=manifest.protocol.max_new_tokens,
    )


def _observed(run: Run, spans: Sequence[Span], reward: Reward | None, progress: Progress) -> Iterator[Observed]:
    last = sorted(spans, key=lambda span: span.end)
    reasons = {span.rollout_id: span.finish_reason for span in last}  # that of the last model call
    speller = _Speller(run)
    for rollout in run.rollouts():
        if not rollout.sampled.any():
            raise UsageError(f"{run.path}: rollout {rollout.rollout_id} has no sampled token; the run is no sample.")
        progress.advance(1)
        yield _one(rollout, reasons.get(rollout.rollout_id, ""), speller, reward)


def _one(rollout: Rollout, reason: str, speller: _Speller, reward: Reward | None) -> Observed:
    start = int(rollout.sampled.argmax())
    text = speller.completion(rollout)
    found = Observed(
        rollout_id=rollout.rollout_id,
        prompt_id=rollout.prompt_id,
        prompt_digest=digest_of_ids(rollout.token_ids[:start]),
        token_ids=tuple(rollout.token_ids[rollout.sampled].tolist()),
        text=text,
        finish_reason=reason,
        reward=rollout.reward,
    )
    if reward is None:
        return found
    return replace(found, reward=_reward_of(reward, rollout.rollout_id, speller.prompt(rollout, start), text))


def _reward_of(reward: Reward, rollout_id: str, prompt: str | None, completion: str | None) -> float:
    if prompt is None or completion is None:
        raise UsageError(
            f"rollout {rollout_id}: the run keeps no tokenizer, so the reward function cannot be given its text. "
            "Record with an engine that has one, or write the rewards into the run."
        )
    try:
        value = reward(prompt, completion)
    except Exception as error:  # whatever a stranger's code raises is theirs to mend
        raise UsageError(f"rollout {rollout_id}: the reward function failed: {error!r}") from error
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"rollout {rollout_id}: the reward function returned {value!r}, which is no number."
        ) from error
    if not math.isfinite(number):
        raise UsageError(f"rollout {rollout_id}: the reward function returned {value!r}; a reward is a finite number.")
    return number


class _Speller:
    """Text of a run's rollouts: by its tokenizer, which knows the special tokens, or as the engine decoded it."""

    def __init__(self, run: Run) -> None:
        names = run.reading_names()
        digest = run.reading_info(ROLLOUT).engine.tokenizer_hash if ROLLOUT in names else ""
        self._tokenizer = None
        if digest:
            from tokenizers import Tokenizer  # noqa: PLC0415 - only a run with a tokenizer needs it

            self._tokenizer = Tokenizer.from_file(str(run.tokenizer_file(digest)))

    def completion(self, rollout: Rollout) -> str | None:
        """Without special tokens; None if nobody knows the text."""
        if self._tokenizer is None:
            return rollout.text
        return str(self._tokenizer.decode(rollout.token_ids[rollout.sampled].tolist(), skip_special_tokens=True))

    def prompt(self, rollout: Rollout, end: int) -> str | None:
        """With special tokens."""
        if self._tokenizer is None:
            return None
        return str(self._tokenizer.decode(rollout.token_ids[:end].tolist(), skip_special_tokens=False))
