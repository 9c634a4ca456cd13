"""What engines say of themselves now, asked in a process of its own.

What that process loads does not show in the environment of the check that may follow, and what an engine held of an
accelerator is free again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field

from onepolicy.engines.contract import Engine, Sampler
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import EngineError, OnePolicyError
from onepolicy.integrations import open_engine
from onepolicy.records.files import write_text_atomically
from onepolicy.records.reading import Condition, EngineInfo
from onepolicy.records.run import tokenizer_name
from onepolicy.records.stored import read_json
from onepolicy.records.strict import Strict
from onepolicy.records.tokens import digest_of_ids
from onepolicy.suites import Suite, load_suite
from onepolicy.workflow.environment import environment, installed
from onepolicy.workflow.gate_process import safe_path

_START = "from onepolicy.workflow.gate_engines import answer; answer()"


class SaysNow(Strict):
    """As a reading would keep it, were one begun now."""

    engine: EngineInfo
    """its tokenizer's hash as a run names it"""
    environment: dict[str, str]
    installed: dict[str, str]
    """versions of the packages that were not loaded yet"""
    decode: Condition
    prefill: Condition
    prompts: dict[str, str] = Field(default_factory=dict)
    """of the side that samples: prompt -> digest of its ids, which the chat template makes"""


class AllSay(Strict):
    """Of several engines, in the order in which they were opened."""

    engines: tuple[SaysNow, ...]


def say_now(rollout: EngineSpec, trainer: EngineSpec, *, suite: str) -> tuple[SaysNow, ...]:
    """Open one engine after the other and keep what each says. Raises: EngineError if one cannot be opened."""
    with TemporaryDirectory(prefix="onepolicy-gate-") as folder:
        file = Path(folder) / "said.json"
        command = [sys.executable, *safe_path(), "-c", _START, str(file), suite, str(rollout), str(trainer)]
        done = subprocess.run(  # noqa: S603 - this interpreter
            command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            last = (done.stdout.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            raise EngineError(f"the engines could not be asked what they are: {last}")
        return read_json(file, AllSay).engines


def answer() -> None:
    """What that process does: `FILE SUITE ROLLOUT TRAINER` on its command line."""
    file, suite, rollout, trainer = sys.argv[1:]
    try:
        said = AllSay(engines=(_says(parse_spec(rollout), load_suite(suite)), _says(parse_spec(trainer), None)))
    except OnePolicyError as error:
        sys.exit(str(error))
    write_text_atomically(Path(file), said.model_dump_json())


def _says(spec: EngineSpec, suite: Suite | None) -> SaysNow:
    engine = open_engine(spec)
    try:
        content = engine.tokenizer_file()
        name = "" if content is None else tokenizer_name(content)
        return SaysNow(
            engine=engine.info.model_copy(update={"tokenizer_hash": name}),
            environment=environment(),
            installed=installed(),
            decode=engine.condition(path="decode"),
            prefill=engine.condition(path="prefill"),
            prompts=_prompts(engine, suite) if suite is not None else {},
        )
    finally:
        engine.close()


def _prompts(engine: Engine, suite: Suite) -> dict[str, str]:
    """Nothing of an engine whose weights are not known: it is checked in any case."""
    if not isinstance(engine, Sampler) or not engine.info.weights_hash:
        return {}
    return {prompt.id: digest_of_ids(engine.encode_chat(prompt.messages)) for prompt in suite.prompts}
