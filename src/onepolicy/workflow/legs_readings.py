"""The readings of a ladder: what the run has already is used, and what it lacks is computed, one engine at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onepolicy.engines.contract import Engine
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import EngineError, RunError
from onepolicy.integrations import open_engine
from onepolicy.records.reading import ReadingInfo
from onepolicy.records.run import Run
from onepolicy.workflow.legs_table import Wanted
from onepolicy.workflow.progress import Progress
from onepolicy.workflow.score import ScoreRequest, reading_request, score_with

_SAME_ENGINE = ("name", "version", "model", "weights_hash")
"""what an engine says of itself that no leg changes"""


@dataclass(slots=True, kw_only=True)
class Readings:
    """Of one ladder: `names` and `failed` are filled by `read_all`."""

    run: Run
    prefix: str
    progress: Progress
    names: dict[str, str] = field(default_factory=dict)
    """name of a wanted reading -> its name in the run"""
    failed: dict[str, str] = field(default_factory=dict)
    """name of a wanted reading -> why it could not be computed"""
    _digests: dict[str, str] = field(default_factory=dict)
    """of the run's rollouts, by their id"""

    def read_all(self, wanted: Sequence[Wanted], *, engine: Engine | None = None) -> None:
        """Have every reading, the first of which is the plain one.

        engine: of the plain spec, if it is open already; it stays open.
        Raises: EngineError if the plain reading fails; another one that fails is kept in `failed`.
        """
        plain = wanted[0]
        self._digests = {rollout.rollout_id: rollout.digest for rollout in self.run.rollouts()}
        groups: dict[str, list[Wanted]] = {}
        for one in wanted:
            if one.recorded:
                self.names[one.name] = one.recorded
            elif not self._is_there(one, plain):
                groups.setdefault(str(one.spec), []).append(one)
        for group in groups.values():
            if engine is not None and group[0].spec == plain.spec:
                self._score_each(engine, group, plain)
            else:
                self._open_and_score(group, plain)
        self._refuse_others(plain)

    def _is_there(self, wanted: Wanted, plain: Wanted) -> bool:
        """Whether a whole reading of the same request is in the run, under whatever name: its own comes first."""
        request = reading_request(self.run, self._request(wanted))
        own, taken = self._own_name(wanted), self.names.get(plain.name) if wanted.anew else None
        known = self.run.reading_names()
        for name in sorted(known, key=lambda name: (name != own, name)):
            if name == taken or (wanted.anew and name == self._own_name(plain)):
                continue
            if self.run.reading_info(name).request == request and self.run.reading_digests(name) == self._digests:
                self.names[wanted.name] = name
                return True
        return False

    def _open_and_score(self, group: Sequence[Wanted], plain: Wanted) -> None:
        try:
            engine = open_scorer(group[0].spec)
        except EngineError as error:
            for wanted in group:
                self._fail(wanted, plain, error)
            return
        try:
            self._score_each(engine, group, plain)
        finally:
            engine.close()

    def _score_each(self, engine: Engine, group: Iterable[Wanted], plain: Wanted) -> None:
        for wanted in group:
            if self._is_there(wanted, plain):  # another leg may have the same request
                continue
            try:
                score_with(engine, self.run, self._request(wanted), progress=self.progress)
            except EngineError as error:
                self._fail(wanted, plain, error)
            else:
                self.names[wanted.name] = self._own_name(wanted)

    def _fail(self, wanted: Wanted, plain: Wanted, error: EngineError) -> None:
        if wanted.name == plain.name:
            raise error
        self.failed[wanted.name] = str(error)

    def _request(self, wanted: Wanted) -> ScoreRequest:
        return ScoreRequest(
            engine=wanted.spec, name=self._own_name(wanted), report_ids_of=None, shuffle=wanted.shuffle, resume=True
        )

    def _own_name(self, wanted: Wanted) -> str:
        return f"{self.prefix}-{wanted.name}"

    def _refuse_others(self, plain: Wanted) -> None:
        """Raise RunError if a reading is of another engine or environment than the plain one of the same spec."""
        there = self.run.reading_info(self.names[plain.name])
        for name in self.names.values():
            info = self.run.reading_info(name)
            spec = parse_spec(info.request.engine)
            if (spec.engine, spec.target) == (plain.spec.engine, plain.spec.target):
                _refuse_changed(self.run, there, info)


def open_scorer(spec: EngineSpec) -> Engine:
    """An engine that scores. Raises: EngineError if it cannot, or only follows another process."""
    engine = open_engine(spec)
    if not engine.scores:
        engine.close()
        raise EngineError(f"{spec}: {spec.engine} cannot score, so it has no legs. Take the other side.")
    if getattr(engine, "is_follower", False):
        engine.close()
        raise EngineError("`legs` cannot run under torchrun; let it start the ranks: callable:...?ranks=2")
    return engine


def _refuse_changed(run: Run, plain: ReadingInfo, info: ReadingInfo) -> None:
    then, now = plain.environment, info.environment
    changed = [f"{name} {then[name]} -> {now[name]}" for name in then if name in now and then[name] != now[name]]
    for name in _SAME_ENGINE:
        before, after = getattr(plain.engine, name), getattr(info.engine, name)
        changed += [f"{name} {before} -> {after}"] if before != after else []
    if changed:
        raise RunError(
            f"{run.path}: the reading {info.name!r} was computed with another engine or in another environment than "
            f"{plain.name!r}: {'; '.join(changed)}. Legs are of one: climb them in another run, or under another "
            "--name."
        )
