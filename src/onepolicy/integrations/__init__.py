"""One folder per framework. To add an engine: its folder, and one line here."""

from __future__ import annotations

from importlib import import_module

from onepolicy.engines.contract import Engine, Sampler
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError

ENGINES = {
    "callable": "onepolicy.integrations.callable.engine:CallableEngine",
    "fake": "onepolicy.integrations.fake.engine:FakeEngine",
    "llamacpp": "onepolicy.integrations.llamacpp.engine:LlamaCppEngine",
    "transformers": "onepolicy.integrations.transformers.engine:TransformersEngine",
}
"""name in a spec -> class with a classmethod `open(spec)`; imported only when it is asked for"""


def check_engine_name(spec: EngineSpec) -> None:
    """Raise UsageError if the spec names no engine that there is; nothing is imported or started."""
    if spec.engine not in ENGINES:
        raise UsageError(f"{str(spec)!r}: there is no engine {spec.engine!r}. Known engines: {', '.join(ENGINES)}.")


def open_engine(spec: EngineSpec) -> Engine:
    """Start the engine that a spec names. Raises UsageError, EngineError or MissingExtraError."""
    check_engine_name(spec)
    module, name = ENGINES[spec.engine].split(":")
    engine: Engine = getattr(import_module(module), name).open(spec)
    return engine


def open_sampler(spec: EngineSpec) -> Sampler:
    """Start an engine that can sample. Raises EngineError if it can only score."""
    engine = open_engine(spec)
    if not isinstance(engine, Sampler):
        engine.close()
        raise EngineError(f"{spec}: {spec.engine} scores given tokens and cannot sample. Use it as --trainer.")
    return engine
