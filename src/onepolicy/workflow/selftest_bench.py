"""Where faults are planted: models in a temporary folder, and runs of two engines on them."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np

from onepolicy.diagnosis.tokens import Tokens
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.selftest import Way
from onepolicy.workflow.diagnose import DiagnoseRequest
from onepolicy.workflow.diagnose_tokens import tokens_of
from onepolicy.workflow.import_recorded import ImportRequest, import_recorded
from onepolicy.workflow.record import ROLLOUT, RecordRequest, record
from onepolicy.workflow.recorded import find_recording
from onepolicy.workflow.score import TRAINER, ScoreRequest, score
from onepolicy.workflow.selftest_fault import SYSTEM, Fault

SERVED = "served"
"""reading of the rollout side, where a sound engine sampled"""
WORDS = "the rain in spain stays mainly in the plain, and the sun does not"
TINY = "tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is sampled for each row of the table."""

    prompts: int = 16
    new_tokens: int = 40


SCALES = {TINY: Scale()}
"""model -> its scale; any other one is a real model, on which a token takes longer"""
REAL = Scale(prompts=8, new_tokens=24)


@dataclass(slots=True)
class Bench:
    """One base model and all that is made of it. Everything lies in `folder`, which the caller removes."""

    folder: Path
    base: str = TINY
    """`tiny`, or a model as the engine `transformers` names it"""
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def scale(self) -> Scale:
        """How much is sampled."""
        return SCALES.get(self.base, REAL)

    def can(self, fault: Fault) -> bool:
        """Whether the fault's models can be made of the base."""
        needed = {name for text in _texts(fault) for _, name, _, _ in string.Formatter().parse(text) if name}
        return self.base == TINY or (needed <= {*OF_ANY, "llama", "value"} and not fault.own_head)

    def spec(self, text: str, value: float = 0.0) -> str:
        """A spec with the models that it names."""
        return text.format_map(_Models(self, value))

    def model(self, name: str, value: float) -> str:
        """A model as a spec's target, made where it is not there. value: what its gain or movement is."""
        if name == "llama" and self.base != TINY:
            return self.base
        into = self.folder / (name if name == "llama" else f"{name}-{value:.9g}")
        if not into.exists():
            {**OF_ANY, **OF_TINY}[name](self, into, value)
        return str(into)

    def planted(self, fault: Fault, value: float) -> tuple[Path, DiagnoseRequest]:
        """A run of the pair with the fault, and what to ask of it."""
        path = self.folder / f"run-{next(self._numbers)}"
        sampler = self.spec(fault.sampled or fault.rollout, value)
        protocol = SamplingProtocol.model_validate({"max_new_tokens": self.scale.new_tokens, **fault.protocol(value)})
        self.sample(path, sampler, protocol, before=SYSTEM if fault.has_system else "")
        trainer = parse_spec(self.spec(fault.trainer, value))
        score(path, ScoreRequest(engine=trainer, meaning=fault.meaning(value), statistics=True))
        weights = {name: parse_spec(self.spec(text, value)) for name, text in fault.weights.items()}
        if fault.way is Way.COLUMNS:
            return self._mispaired(path), DiagnoseRequest()
        if fault.sampled:
            score(path, ScoreRequest(engine=self._rollout(fault, value), name=SERVED))
        return path, DiagnoseRequest(rollout=SERVED if fault.sampled else ROLLOUT, weights=weights)

    def sample(self, path: Path, spec: str, protocol: SamplingProtocol, *, before: str = "", first: int = 0) -> None:
        """A run that this engine sampled, of prompts from number `first` on."""
        suite = path.with_suffix(".jsonl")
        texts = [(n, f"{before}{n}: {WORDS[: 3 + 7 * n % 41]}") for n in range(first, first + self.scale.prompts)]
        lines = [{"id": f"p{n:03}", "messages": [{"role": "user", "content": text}], "tags": {}} for n, text in texts]
        suite.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        record(path, RecordRequest(engine=parse_spec(spec), suite=str(suite), protocol=protocol, statistics=True))

    def _rollout(self, fault: Fault, value: float) -> EngineSpec:
        spec = self.spec(fault.rollout, value)
        if not fault.function:
            return parse_spec(spec)
        file = self.folder / f"served_{next(self._numbers)}.py"
        argument = value if fault.argument is None else fault.argument
        file.write_text(
            "from onepolicy.integrations.transformers.served import Served\n\n"
            f"SERVED = Served({spec!r}, {fault.function!r}, {argument!r})\n\n\n"
            "def score(token_ids):\n    return SERVED(token_ids)\n",
            encoding="utf-8",
        )
        return parse_spec(f"callable:{file}:score")

    def _mispaired(self, path: Path) -> Path:
        """The run's columns as a trainer records them, each row beside the trainer logprobs of the next one."""
        tokens = tokens_of(Run.open(path), ROLLOUT, TRAINER)
        parts = tokens.parts()
        size = min(part.stop - part.start for _, part in parts)
        file = path.with_suffix(".columns.jsonl")
        moved = [*parts[1:], parts[0]]
        lines = [_line(tokens, row, other, size) for row, other in zip(parts, moved, strict=True)]
        file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        into = path.with_name(f"{path.name}-columns")
        import_recorded(into, ImportRequest(recording=find_recording([file])))
        return into


def _line(tokens: Tokens, row: tuple[int, slice], other: tuple[int, slice], size: int) -> Mapping[str, object]:
    """One rollout in the plain format, with the trainer logprobs of another."""
    (number, own), (_, theirs) = row, other
    start = int(tokens.position[own][0])
    ids = tokens.sequences[number]
    p, q = tokens.p[own][:size], tokens.q[theirs][:size]
    return {
        "rollout_id": tokens.rollout_ids[number],
        "prompt_id": tokens.prompt_ids[number],
        "prompt_ids": ids[:start].tolist(),
        "completion_ids": ids[start : start + size].tolist(),
        "rollout_logprobs": np.float32(p).tolist(),
        "trainer_logprobs": np.float32(q).tolist(),
    }


class _Models(dict[str, object]):
    """What `{name}` in a spec stands for."""

    def __init__(self, bench: Bench, value: float) -> None:
        super().__init__(value=value)
        self._bench = bench

    def __missing__(self, name: str) -> str:
        return self._bench.model(name, self["value"])  # type: ignore[arg-type]


def _texts(fault: Fault) -> tuple[str, ...]:
    return (fault.rollout, fault.trainer, fault.sampled, *fault.weights.values())


def _base(bench: Bench) -> Path:
    from onepolicy.integrations.transformers.target import model_folder  # noqa: PLC0415 - brings torch

    return model_folder(bench.model("llama", 0.0))


def _made(name: str, option: str = "", **options: object) -> Callable[[Bench, Path, float], None]:
    """A tiny model; its value is this option."""

    def make(bench: Bench, into: Path, value: float) -> None:
        from onepolicy.integrations.transformers import tiny  # noqa: PLC0415 - brings torch

        getattr(tiny, name)(into, **options, **({option: value} if option else {}))

    return make


def _derived(name: str, option: str, base: str = "llama") -> Callable[[Bench, Path, float], None]:
    """A model made of another one of the bench."""

    def make(bench: Bench, into: Path, value: float) -> None:
        from onepolicy.integrations.transformers import tiny  # noqa: PLC0415 - brings torch

        folder = _base(bench) if base == "llama" else Path(bench.model(base, value))
        getattr(tiny, name)(folder, into, **{option: value})

    return make


def _padded(bench: Bench, into: Path, value: float) -> None:
    from onepolicy.integrations.transformers import tiny  # noqa: PLC0415 - brings torch

    tiny.with_more_rows(_base(bench), into, rows=round(value), zeros=bench.base == TINY)


def _weak_adapter(bench: Bench, into: Path, value: float) -> None:
    from onepolicy.integrations.transformers import tiny  # noqa: PLC0415 - brings torch

    tiny.adapter(Path(bench.model("weak", value)), into)


OF_ANY: Mapping[str, Callable[[Bench, Path, float], None]] = {
    "older": _derived("moved", "size"),
    "adapter": _derived("adapter", "size"),
    "padded": _padded,
}
"""models made of the base, whatever it is"""
OF_TINY: Mapping[str, Callable[[Bench, Path, float], None]] = {
    "llama": _made("llama"),
    "weak": _made("llama", "attention"),
    "flat": _made("llama", "head"),
    "begun": _made("llama", "attention", with_bos=True),
    "weak_adapter": _weak_adapter,
    "gpt2": _made("gpt2", "positions"),
    "dropping": _made("gpt2", "dropout"),
    "gemma": _made("gemma", "attention"),
    "experts": _made("experts", "strength"),
}


def refuse_unknown(names: tuple[str, ...], known: Mapping[str, Fault]) -> None:
    """Raise UsageError for a name that no fault has."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no fault {unknown[0]!r}. Known faults: {', '.join(known)}.")
