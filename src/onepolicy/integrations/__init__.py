"""One folder per framework. To add an engine, or a format of recorded files: its folder, and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from onepolicy.errors import EngineError, UsageError

if TYPE_CHECKING:  # a process that reads recorded lines needs no engine, and starts faster without
    from onepolicy.dumps.contract import Format
    from onepolicy.engines.contract import Engine, Sampler
    from onepolicy.engines.options import EngineOptions
    from onepolicy.engines.parallel import Layout, RankModel
    from onepolicy.engines.spec import EngineSpec
    from onepolicy.sampling.convert import Reader, Writer

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


PROTOCOLS = {
    name: (f"{_HERE}.{name}.protocol:read_protocol", f"{_HERE}.{name}.protocol:write_protocol")
    for name in ("transformers", "vllm", "sglang", "trtllm", "openai", "llamacpp", "trl", "verl")
}
"""framework -> its reader and its writer of a sampling protocol (`sampling/convert.py`), imported when asked for"""


LIVE_PROTOCOLS = {name: f"{_HERE}.{name}.live:live_protocol" for name in ("vllm", "llamacpp")}
"""engine of a server -> what says or measures the protocol at work there: (spec, fields of a request) -> Effective"""

MEASURED_LIVE = frozenset({"vllm"})
"""those of which it is measured, so that it can be told how many completions to draw: `per_text`"""


def live_protocol_of(engine: str) -> Any:
    """What asks a running server for its protocol. Raises: UsageError if that is not known of it."""
    if engine not in LIVE_PROTOCOLS:
        raise UsageError(
            f"what a running {engine} server samples with cannot be asked for. Known: {', '.join(LIVE_PROTOCOLS)}. "
            f"Give its configuration as {engine}:FILE."
        )
    return _imported(LIVE_PROTOCOLS[engine])


def protocol_reader(framework: str) -> Reader:
    """What reads a framework's own sampling configuration. Raises: UsageError if it is not known."""
    found: Reader = _imported(_protocol_of(framework)[0])
    return found


def protocol_writer(framework: str) -> Writer:
    """What writes a protocol as a framework's configuration. Raises: UsageError if it is not known."""
    found: Writer = _imported(_protocol_of(framework)[1])
    return found


def _protocol_of(framework: str) -> tuple[str, str]:
    if framework not in PROTOCOLS:
        raise UsageError(f"there is no framework {framework!r}. Known frameworks: {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[framework]


def options_of(engine: str) -> type[EngineOptions]:
    """The options that an engine knows. Raises UsageError if there is no such engine; imports no framework."""
    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}. Known engines: {', '.join(ENGINES)}.")
    options: type[EngineOptions] = _imported(ENGINES[engine][1])
    return options


def check_spec(spec: EngineSpec) -> None:
    """Raise UsageError if the spec names no engine, or an option that it does not know; nothing is started."""
    from onepolicy.engines.options import read_options  # noqa: PLC0415

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
    from onepolicy.engines.contract import Sampler  # noqa: PLC0415

    engine = open_engine(spec)
    try:
        if isinstance(engine, Sampler):  # reads `info`, for which a server is asked
            return engine
        raise EngineError(f"{spec}: {spec.engine} scores given tokens and cannot sample. Use it as --trainer.")
    except BaseException:
        engine.close()
        raise


RANK_MODELS = {
    "transformers": f"{_HERE}.transformers.parallel:open_rank",
    "callable": f"{_HERE}.callable.logits:open_rank",
}
"""engine that `onepolicy parallel` can spread over ranks -> what opens it on one of them"""


def open_rank_model(spec: EngineSpec, layout: Layout | None) -> RankModel:
    """A model as this rank has it; None is one process alone. Raises: UsageError, EngineError."""
    if spec.engine not in RANK_MODELS:
        raise UsageError(f"{spec}: {spec.engine} cannot be spread over ranks here; {' and '.join(RANK_MODELS)} can.")
    model: RankModel = _imported(RANK_MODELS[spec.engine])(spec, layout)
    return model


def _imported(where: str) -> Any:
    module, name = where.split(":")
    return getattr(import_module(module), name)


CONFORMS = {name: f"{_HERE}.{name}.conform:subject" for name in ("trl", "verl")}
"""framework -> what gives its own functions to `onepolicy conform`, imported when asked for"""


def conforming_subject(framework: str) -> Any:
    """A framework's functions in the roles of `onepolicy conform`. Raises: EngineError if it is not installed."""
    return _imported(CONFORMS[framework])()


FORMATS = {
    "nemo-rl": f"{_HERE}.nemo_rl.dump:NEMO_RL",
    "prime-rl": f"{_HERE}.prime_rl.dump:PRIME_RL",
    "verl": f"{_HERE}.verl.dump:VERL",
    "verl-jsonl": f"{_HERE}.verl.text:VERL_JSONL",
    "verl-msprobe": f"{_HERE}.verl.text:VERL_MSPROBE",
    "trl-completions": f"{_HERE}.trl.completions:TRL_COMPLETIONS",
    "slime": f"{_HERE}.slime.dump:SLIME",
    "slime-rollout": f"{_HERE}.slime.dump:SLIME_ROLLOUT",
    "miles": f"{_HERE}.miles.dump:MILES",
    "skyrl": f"{_HERE}.skyrl.dump:SKYRL",
    "responses": f"{_HERE}.openai.dump:RESPONSES",
    "sglang-responses": f"{_HERE}.sglang.dump:SGLANG_RESPONSES",
    "columns": f"{_HERE}.columns.dump:COLUMNS",
}
"""name of a format of recorded files -> where its `Format` is, imported when it is asked for"""


def format_named(name: str) -> Format:
    """A format of recorded files. Raises UsageError if there is none of this name."""
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}. Known formats: {', '.join(FORMATS)}.")
    found: Format = _imported(FORMATS[name])
    return found


def columns_format(columns: Mapping[str, str]) -> Format:
    """Plain Parquet or JSONL under other names: ours -> theirs. Raises UsageError for a name that is not ours."""
    found: Format = _imported(f"{_HERE}.columns.dump:columns_format")(columns)
    return found
