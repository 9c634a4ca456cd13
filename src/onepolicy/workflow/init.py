"""Two engines -> a commented configuration file that `check` runs."""

from __future__ import annotations

import hashlib
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from onepolicy.engines.contract import Engine, Sampler
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import check_spec, open_engine, open_sampler, options_of
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import PRESETS, load_limits
from onepolicy.records.files import disk_errors, write_text_atomically
from onepolicy.records.protocol import COMMON_FIELDS, SamplingProtocol
from onepolicy.records.reading import EngineInfo
from onepolicy.records.yaml_file import Dumper, in_one_line
from onepolicy.suites import load_suite
from onepolicy.visible import visible
from onepolicy.workflow.config import Config, moved

_WIDTH = 100
"""characters of a comment's line"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedSide:
    """What an engine says that it is, and can do."""

    info: EngineInfo
    samples: bool
    scores: bool
    tokenizer: str
    """first 16 hex digits of the SHA-256 of its tokenizer.json; empty if it has none"""

    def __str__(self) -> str:
        info = self.info
        can = [word for word, does in (("samples", self.samples), ("scores", self.scores)) if does]
        vocabulary = "vocabulary unknown" if info.vocab_size is None else f"{info.vocab_size} ids"
        tokenizer = f"tokenizer {self.tokenizer}" if self.tokenizer else "no tokenizer.json"
        parts = [f"{info.name} {info.version}".strip(), info.model, f"{info.dtype} on {info.device}", vocabulary]
        return visible(", ".join([*parts, " and ".join(can), tokenizer]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A preset of limits, and why."""

    preset: str
    why: str


NOT_PROBED = Suggestion(preset="strict", why="the default; no engine was opened to see its precision")


def check_output(path: Path, *, force: bool) -> None:
    """Raise UsageError if a config cannot be put there, or would go over a file and `force` is not given."""
    with disk_errors(path):
        is_folder, has_folder = path.is_dir(), path.parent.is_dir()
    if is_folder:
        raise UsageError(f"{path}: is a folder. Give the file to write with --output.")
    if not has_folder:
        raise UsageError(f"{path}: there is no folder {path.parent}. Make it first, or give another --output.")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{path}: exists and is left as it is. Give another --output, or --force to replace it.")


def check_sides(config: Config) -> None:
    """Raise UsageError for an engine or an option that is not known, or a suite that cannot be read."""
    for spec in (config.rollout, config.trainer):
        if spec is not None:
            check_spec(spec)
    load_suite(config.suite)


def probe_rollout(spec: EngineSpec, suite: str) -> ProbedSide:
    """Open the engine that is to sample, and say what it is.

    Raises: EngineError if it does not start, cannot sample, or cannot score and the suite is of fixed sequences.
    """
    side = _described(open_sampler(spec))
    if load_suite(suite).is_fixed and not side.scores:
        raise EngineError(
            f"{spec}: {spec.engine} cannot score, and the suite {suite!r} is of fixed sequences, which both sides must "
            "score. Take a suite of prompts, such as quick."
        )
    return side


def probe_trainer(spec: EngineSpec) -> ProbedSide:
    """Open the engine that is to score, and say what it is. Raises: EngineError if it cannot start or score."""
    side = _described(open_engine(spec))
    if not side.scores:
        raise EngineError(f"{spec}: {spec.engine} cannot score given tokens. Use it as --rollout.")
    return side


def _described(engine: Engine) -> ProbedSide:
    try:
        if getattr(engine, "is_follower", False):
            raise EngineError("`init` cannot run under torchrun; start it without, or with --no-probe.")
        content = engine.tokenizer_file()
        return ProbedSide(
            info=engine.info,
            samples=isinstance(engine, Sampler),
            scores=engine.scores,
            tokenizer="" if content is None else hashlib.sha256(content).hexdigest()[:16],
        )
    finally:
        engine.close()


def differences(rollout: ProbedSide, trainer: ProbedSide) -> list[str]:
    """What is not the same on both sides and should be, one sentence each."""
    found = []
    sizes = (rollout.info.vocab_size, trainer.info.vocab_size)
    if None not in sizes and sizes[0] != sizes[1]:
        found.append(
            f"the vocabularies differ: {sizes[0]} ids on the rollout side, {sizes[1]} on the trainer side. Rows that "
            "pad an embedding are harmless; another model is not."
        )
    if rollout.tokenizer and trainer.tokenizer and rollout.tokenizer != trainer.tokenizer:
        found.append(
            f"the tokenizers differ: {rollout.tokenizer} on the rollout side, {trainer.tokenizer} on the trainer side. "
            "`check` says whether both read the same text from the same ids."
        )
    return found


# -- the preset -------------------------------------------------------------------------------------------------

_FEW_BITS = re.compile(
    r"(?i)\b(i?q\d|tq\d|(mx|nv)?fp[468](?!\d)|float[468](?!\d)|u?int[248](?!\d)|nf4|w[248]a\d|[248]-?bit|awq|gptq)"
)
"""how llama.cpp, torch and others write a type of at most 8 bits"""


def suggested(rollout: EngineInfo, trainer: EngineInfo) -> Suggestion:
    """The preset for the precision of both sides; strict, which passes least, where it is not known."""
    kinds = {f"the {side} side is {visible(dtype)}": _kind(dtype) for side, dtype in _dtypes(rollout, trainer)}
    for kind in ("quantised", "bf16"):
        found = [words for words, kind_here in kinds.items() if kind_here == kind]
        if found:
            return Suggestion(preset=kind, why=" and ".join(found))
    if "unknown" in kinds.values():
        return Suggestion(preset="strict", why=f"{' and '.join(kinds)}, and strict is the default")
    return Suggestion(preset="strict", why=" and ".join(kinds))


def _dtypes(rollout: EngineInfo, trainer: EngineInfo) -> tuple[tuple[str, str], ...]:
    return (("rollout", rollout.dtype), ("trainer", trainer.dtype))


def _kind(dtype: str) -> str:
    """The preset that a precision asks for, or "unknown"."""
    if _FEW_BITS.search(dtype):
        return "quantised"
    if dtype in ("bfloat16", "float16"):
        return "bf16"
    return "strict" if dtype in ("float32", "float64") else "unknown"


# -- the file ---------------------------------------------------------------------------------------------------


def write_config(path: Path, text: str, *, force: bool) -> None:
    """Write the file whole or not at all. Raises: UsageError if it exists and `force` is not given."""
    check_output(path, force=force)
    write_text_atomically(path, text)


def config_text(config: Config, path: Path, notes: dict[str, list[str]]) -> str:
    """The commented file that says this config, with paths as seen from the folder of `path`.

    notes: name of a key -> further comments; those of "" stand at the top.
    """
    seen = moved(config, start=Path(), end=path.parent)
    blocks = ["\n".join(_comments([*_HEAD, *notes.get("", [])]))]
    for name, field in Config.model_fields.items():
        comments = _comments([_one_line(field.description), *notes.get(name, [])])
        blocks.append("\n".join([*comments, *_entry(name, getattr(seen, name))]))
    return "\n\n".join(blocks) + "\n"


_HEAD = (
    "Written by `onepolicy init`; run it with `onepolicy check` and the name of this file. Options on the command line "
    "go over it.",
    "Relative paths start from this file's folder. A key without a value is as if it were not there.",
)


def _entry(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, SamplingProtocol):
        shown = {*COMMON_FIELDS, *value.changed}
        yield f"{name}:"
        for key, one in value.model_dump(mode="json").items():
            line = f"{key}: {in_one_line(one)}" if key in shown else f"# {key}: {in_one_line(one)}"
            yield from _with_comment(f"  {line}", SamplingProtocol.model_fields[key].description)
    elif isinstance(value, EngineSpec):
        yield from _comments([f"{value.engine} knows the options: {', '.join(options_of(value.engine).model_fields)}."])
        yield _line(name, str(value))
    elif name == "limits" and value in PRESETS:
        yield f"{name}:"
        yield f"  preset: {value}"
        yield from _commented_limits(load_limits(value))
    else:
        yield _line(name, [str(spec) for spec in value] if name == "also" else value)


def _commented_limits(limits: Limits) -> Iterator[str]:
    for name in Limits.numbers():
        line = f"  # {_line(name, getattr(limits, name))}"
        yield from _with_comment(line, Limits.model_fields[name].description)


def _line(name: str, value: object) -> str:
    return str(
        yaml.dump({name: value}, Dumper=Dumper, width=10**9, allow_unicode=True, default_flow_style=False)
    ).rstrip("\n")


def _with_comment(line: str, comment: str | None) -> Iterator[str]:
    yield f"{line:<29} # {_one_line(comment)}"


def _comments(texts: list[str]) -> list[str]:
    lines = [line for text in texts for line in textwrap.wrap(visible(text), _WIDTH - 2, break_long_words=False)]
    return [f"# {line}" for line in lines]


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
