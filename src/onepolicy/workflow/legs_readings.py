"""The readings of a ladder: what the run has already is used, and what it lacks is computed, one engine at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onepolicy.engines.contract import Engine
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import EngineError, RunError
from onepolicy.integrations import open_engine
from onepolicy.records.canary import Canary
from onepolicy.records.reading import EngineInfo, ReadingInfo
from onepolicy.records.run import Run
from onepolicy.workflow.environment import engine_info, environment
from onepolicy.workflow.legs_table import Wanted
from onepolicy.workflow.progress import Progress
from onepolicy.workflow.same_model import canary_ids, canary_of
from onepolicy.workflow.score import ScoreRequest, reading_request, score_with

_SAME_ENGINE = ("name", "version", "model", "weights_hash")
"""what an engine says of itself that no leg changes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answering:
    """What answers, now or when a reading began."""

    spec: str
    engine: EngineInfo
    environment: dict[str, str]
    canary: Canary | None

    def changes(self, info: ReadingInfo) -> list[str]:
        """What a reading of this engine says otherwise of it, under any condition."""
        there = info.environment
        found = [
            f"{name} {there[name]} -> {own}" for name, own in self.environment.items() if there.get(name, own) != own
        ]
        for name in _SAME_ENGINE:
            before, after = getattr(info.engine, name), getattr(self.engine, name)
            found += [f"{name} {before} -> {after}"] if before != after else []
        if info.request.engine == self.spec and info.canary is not None and self.canary is not None:
            if info.canary.weight_version != self.canary.weight_version:
                found.append(f"weights {info.canary.weight_version!r} -> {self.canary.weight_version!r}")
            elif not info.canary.is_of_the_model_of(self.canary):
                found.append(f"logprobs of the same ids by {info.canary.mean_abs_d(self.canary):.2g} nats in the mean")
        return found


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
    _answering: dict[tuple[str, str], _Answering] = field(default_factory=dict)
    """by engine and target, of what has readings in the run that could be used"""

    def read_all(self, wanted: Sequence[Wanted], *, engine: Engine | None = None) -> None:
        """Have every reading, the first of which is the plain one.

        engine: of the plain spec, if it is open already; it stays open.
        Raises: EngineError if the plain reading fails; another one that fails is kept in `failed`.
        """
        plain = wanted[0]
        if engine is not None:
            self._see(engine, plain.spec)
        self._digests = {rollout.rollout_id: rollout.digest for rollout in self.run.rollouts()}
        groups: dict[str, list[Wanted]] = {}
        for one in wanted:
            if one.recorded:
                self.names[one.name] = one.recorded
            elif not self._is_there(one, plain) and one.name not in self.failed:
                groups.setdefault(str(one.spec), []).append(one)
        for group in groups.values():
            if engine is not None and group[0].spec == plain.spec:
                self._score_each(engine, group, plain)
            else:
                self._open_and_score(group, plain)
        self._refuse_others(plain)

    def _is_there(self, wanted: Wanted, plain: Wanted) -> bool:
        """Whether a whole reading of the same request is in the run, under whatever name: its own comes first.

        It must be of what answers now: an engine that has such a reading is opened and looked at.
        """
        request = reading_request(self.run, self._request(wanted))
        own, taken = self._own_name(wanted), self.names.get(plain.name) if wanted.anew else None
        known = self.run.reading_names()
        for name in sorted(known, key=lambda name: (name != own, name)):
            if name == taken or (wanted.anew and name == self._own_name(plain)):
                continue
            info = self.run.reading_info(name)
            if info.request == request and self.run.reading_digests(name) == self._digests:
                changed = self._changed(info, wanted, plain)
                if changed and name == own:
                    raise RunError(
                        f"{self.run.path}: the reading {name!r} is not of what answers now: {'; '.join(changed)}. Legs "
                        "are of one engine: climb them in another run, or under another --name."
                    )
                if not changed and wanted.name not in self.failed:
                    self.names[wanted.name] = name
                    return True
        return False

    def _changed(self, info: ReadingInfo, wanted: Wanted, plain: Wanted) -> list[str]:
        key = (wanted.spec.engine, wanted.spec.target)
        if key not in self._answering:
            try:
                engine = open_scorer(wanted.spec)
            except EngineError as error:
                self._fail(wanted, plain, error)
                return []
            try:
                self._see(engine, wanted.spec)
            finally:
                engine.close()
        return self._answering[key].changes(info)

    def _see(self, engine: Engine, spec: EngineSpec) -> None:
        """Keep what an open engine is."""
        self._answering[spec.engine, spec.target] = _Answering(
            spec=str(spec),
            engine=engine_info(self.run, engine),
            environment=environment(),
            canary=canary_of(engine, canary_ids(self.run)),
        )

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
    began = _Answering(
        spec=plain.request.engine, engine=plain.engine, environment=plain.environment, canary=plain.canary
    )
    if changed := began.changes(info):
        raise RunError(
            f"{run.path}: the reading {info.name!r} was computed with another engine or in another environment than "
            f"{plain.name!r}: {'; '.join(changed)}. Legs are of one: climb them in another run, or under another "
            "--name."
        )
