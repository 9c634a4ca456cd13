"""Two configurations -> two runs, for `onepolicy behave`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import UsageError
from onepolicy.integrations import check_spec, open_sampler
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.suites import load_suite
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import RecordRequest, record_with

SIDES = ("a", "b")
"""folders of the two runs"""
SAMPLES = 4
"""of each prompt"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BehaveRequest:
    """Two configurations to sample under. Raises: UsageError for an engine that is no spec."""

    engine_a: str | EngineSpec
    """a spec, or its text: "transformers:./model" """
    a: SamplingProtocol = SamplingProtocol(samples_per_prompt=SAMPLES)
    engine_b: str | EngineSpec | None = None
    """A's if not given"""
    b: SamplingProtocol | None = None
    """A's with the seed after A's if not given"""
    suite: str = "quick"
    prompts: int | None = None
    """of the suite, spread over it; all if not given"""
    keep_text: bool = True

    def __post_init__(self) -> None:
        engine = parse_spec(self.engine_a)
        object.__setattr__(self, "engine_a", engine)
        object.__setattr__(self, "engine_b", engine if self.engine_b is None else parse_spec(self.engine_b))
        if self.b is None:
            object.__setattr__(self, "b", self.a.model_copy(update={"seed": self.a.seed + 1}))


_EXAMPLES = {
    "processors": """ Give a list, for example 'processors=["penalties","top_k","top_p","min_p","temperature"]'.""",
    "stop": """ Give a list, for example 'stop=["</answer>"]'.""",
    "stop_token_ids": """ Give a list, for example 'stop_token_ids=[151645]'.""",
}
"""how the fields are written that are lists"""


def record_both(
    path: Path, request: BehaveRequest, *, resume: bool = False, progress: Progress | None = None
) -> tuple[Path, Path]:
    """Sample the suite's prompts under both configurations, into `path`/a and `path`/b; returns the two.

    With `resume`, what is there already is kept. An engine that is the same on both sides is opened once.
    Raises: EngineError, RunError, UsageError.
    """
    shown = progress or Silent()
    asked = {name: _record_request(request, name) for name in SIDES}
    for one in asked.values():
        check_spec(one.engine)
    suite = load_suite(request.suite)
    if suite.is_fixed:
        raise UsageError(f"the suite {suite.name!r} is of fixed sequences; nothing is sampled. Take quick or standard.")
    if request.prompts is not None and not 1 <= request.prompts <= len(suite.prompts):
        raise UsageError(
            f"{request.prompts} prompts are asked for, and the suite {suite.name!r} has {len(suite.prompts)}. Take as "
            "many as that at most, or a larger suite: standard, or a JSONL file."
        )
    same = asked["a"].engine == asked["b"].engine
    for names in [SIDES] if same else [(name,) for name in SIDES]:
        sampler = open_sampler(asked[names[0]].engine)
        try:
            for name in names:
                shown.note(f"sampling {name.upper()} into {path / name}")
                record_with(
                    sampler, path / name, asked[name], suite, resume=_goes_on(path / name, resume), progress=shown
                )
        finally:
            sampler.close()
    return path / "a", path / "b"


def protocols(a: Sequence[str], b: Sequence[str], *, samples: int) -> tuple[SamplingProtocol, SamplingProtocol]:
    """The protocols of `name=value` texts. B samples with the seed after A's unless it names one.

    With one seed for both, equal configurations would give equal samples: one sample and no two.
    Raises: UsageError for an unknown field or a value that is not possible.
    """
    first = _protocol("--a", a, samples)
    second = _protocol("--b", b, samples)
    if not any(text.partition("=")[0].strip() == "seed" for text in b):
        second = second.model_copy(update={"seed": first.seed + 1})
    return first, second


def _record_request(request: BehaveRequest, name: str) -> RecordRequest:
    protocol: SamplingProtocol = getattr(request, name)
    budget = (
        None if request.prompts is None else request.prompts * protocol.samples_per_prompt * protocol.max_new_tokens
    )
    return RecordRequest(
        engine=getattr(request, f"engine_{name}"),
        suite=request.suite,
        protocol=protocol,
        budget=budget,
        top=0,
        keep_text=request.keep_text,
    )


def _goes_on(path: Path, resume: bool) -> bool:
    """A kill may have come before a side had begun; that one is then new."""
    return resume and (path / "manifest.json").exists()


def _protocol(option: str, texts: Sequence[str], samples: int) -> SamplingProtocol:
    values: dict[str, object] = {}
    known = [name for name in SamplingProtocol.model_fields if name != "samples_per_prompt"]
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if name == "samples_per_prompt":
            number = value if sign and value else "N"
            raise UsageError(f"{option} {text!r}: give --samples {number}, which is for both.")
        if not sign or name not in known:
            raise UsageError(f"{option} {text!r}: write it as name=value. Known: {', '.join(known)}.")
        if name in values:
            raise UsageError(f"{option} gives {name} twice.")
        values[name] = _value(value)
    try:
        return SamplingProtocol.model_validate({**values, "samples_per_prompt": samples})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "together"
        example = _EXAMPLES.get(where.partition(".")[0], "")
        raise UsageError(f"{option}: {where} = {first['input']!r}: {first['msg']}.{example}") from error


def _value(text: str) -> object:
    """As JSON, so that lists and numbers can be given; text that is none is itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
