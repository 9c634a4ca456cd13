"""Every fault that a self-test plants, in the order of its table."""

from __future__ import annotations

from onepolicy.records.selftest import SelfTest
from onepolicy.workflow import selftest_calls, selftest_models, selftest_sampling

FAULTS = {
    fault.name: fault for fault in (*selftest_sampling.faults(), *selftest_models.faults(), *selftest_calls.faults())
}
"""name -> fault"""
NOT_PLANTED = {
    "presence and frequency penalties": "the engine `transformers` has neither",
    "quantised weights or KV cache": "takes a GGUF file and llama.cpp",
    "sentinels below -1000, and values above 0": "readings mark them as no logprobs before anything is compared",
    "other tokenisation": "the ids are shared: `onepolicy tokens compare`",
}
"""faults without a row here, and why"""


def not_planted(found: SelfTest) -> dict[str, str]:
    """What a self-test has no row for, and why: fault -> reason."""
    planted = {one.fault for one in found.planted}
    return NOT_PLANTED | {name: "was not asked for, or takes `--model tiny`" for name in FAULTS if name not in planted}
