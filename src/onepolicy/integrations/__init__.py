"""One folder per framework. To add an engine: its folder, and one line here."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from onepolicy.engines.contract import Engine, Sampler
from onepolicy.engines.options import EngineOptions, read_options
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError

_HERE = "onepolicy.integrations"
ENGINES = {
    "callable": (f"{_HERE}.callable.engine:CallableEngine", f"{_HERE}.callable.options:CallableOptions"),
    "fake": (f"{_HERE}.fake.engine:FakeEngine", f"{_HERE}.fake.options:FakeOptions"),
    "llamacpp": (f"{_HERE}.llamacpp.engine:LlamaCppEngine", f"{_HERE}.llamacpp.options:LlamaCppOptions"),
    "openai": (f"{_HERE}.openai.engine:OpenAiEngine", f"{_HERE}.openai.options:OpenAiOptions"),
    "sglang": (f"{_HERE}.sglang.engine:SglangEngine", f"{_HERE}.sglang.options:SglangOptions"),
    "trtllm": (f"{_HERE}.trtllm.engine:TrtllmEngine", f"{_HERE}.trtllm.options:TrtllmOptions"),
    "vllm": (f"{_HERE}.vllm.engine:VllmEngine", f"{_HERE}.vllm.options:VllmOptions"),
    "transformers": (
        f"{_HERE}.transformers.engine:TransformersEngine",
        f"{_HERE}.transformers.options:TransformersOptions",
    ),
}
"""name in a spec -> class with a classmethod `open(spec)`, imported when it is asked for, and class of its options"""


def options_of(engine: str) -> type[EngineOptions]:
    """The options that an engine knows. Raises UsageError if there is no such engine; imports no framework."""
    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}. Known engines: {', '.join(ENGINES)}.")
    options: type[EngineOptions] = _imported(ENGINES[engine][1])
    return options


def check_spec(spec: EngineSpec) -> None:
    """Raise UsageError if the spec names no engine, or an option that it does not know; nothing is started."""
    if spec.engine not in ENGINES:
        raise UsageError(f"{str(spec)!r}: there is no engine {spec.engine!r}. Known engines: {', '.join(ENGINES)}.")
    read_options(spec, options_of(spec.engine))


def open_engine(spec: EngineSpec) -> Engine:
    """Start the engine that a spec names. Raises UsageError, EngineError or MissingExtraError."""
    check_spec(spec)
    engine: Engine = _imported(ENGINES[spec.engine][0]).open(spec)
    return engine


def open_sampler(spec: EngineSpec) -> Sampler:
    """Start an engine that can sample. Raises EngineError if it can only score."""
    engine = open_engine(spec)
    try:
        if isinstance(engine, Sampler):  # reads `info`, for which a server is asked
            return engine
        raise EngineError(f"{spec}: {spec.engine} scores given tokens and cannot sample. Use it as --trainer.")
    except BaseException:
        engine.close()
        raise


def _imported(where: str) -> Any:
    module, name = where.split(":")
    return getattr(import_module(module), name)
