"""Are the engine that samples rollouts and the engine that trains on them the same policy?

Names are imported when they are first used: `import onepolicy` loads neither numpy nor torch nor pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onepolicy.api import assert_round_trip, assert_same_policy, check, compare, compare_files
    from onepolicy.errors import (
        AlignmentError,
        DumpError,
        EngineError,
        ForeignReadingError,
        NotTheSamePolicyError,
        NotTheSameTokensError,
        OnePolicyError,
        RunError,
        UsageError,
    )
    from onepolicy.judgement.limits import Limits
    from onepolicy.monitor.halted import TrainingHalted
    from onepolicy.monitor.monitor import Monitor
    from onepolicy.records.protocol import Meaning, SamplingProtocol
    from onepolicy.records.run import Run
    from onepolicy.records.verdict import Judgement, Status, Verdict
    from onepolicy.version import VERSION as __version__  # noqa: N811
    from onepolicy.workflow.compare import StoredReading

_WHERE = {
    "AlignmentError": "errors",
    "DumpError": "errors",
    "EngineError": "errors",
    "ForeignReadingError": "errors",
    "Judgement": "records.verdict",
    "Limits": "judgement.limits",
    "Meaning": "records.protocol",
    "Monitor": "monitor.monitor",
    "NotTheSamePolicyError": "errors",
    "NotTheSameTokensError": "errors",
    "OnePolicyError": "errors",
    "Run": "records.run",
    "RunError": "errors",
    "SamplingProtocol": "records.protocol",
    "Status": "records.verdict",
    "StoredReading": "workflow.compare",
    "TrainingHalted": "monitor.halted",
    "UsageError": "errors",
    "Verdict": "records.verdict",
    "assert_round_trip": "api",
    "assert_same_policy": "api",
    "check": "api",
    "compare": "api",
    "compare_files": "api",
}

__all__ = [
    "AlignmentError",
    "DumpError",
    "EngineError",
    "ForeignReadingError",
    "Judgement",
    "Limits",
    "Meaning",
    "Monitor",
    "NotTheSamePolicyError",
    "NotTheSameTokensError",
    "OnePolicyError",
    "Run",
    "RunError",
    "SamplingProtocol",
    "Status",
    "StoredReading",
    "TrainingHalted",
    "UsageError",
    "Verdict",
    "__version__",
    "assert_round_trip",
    "assert_same_policy",
    "check",
    "compare",
    "compare_files",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from onepolicy.version import VERSION  # noqa: PLC0415 - reading the metadata costs more than the rest

        return VERSION
    if name not in _WHERE:
        raise AttributeError(f"module 'onepolicy' has no attribute {name!r}")
    return getattr(import_module(f"onepolicy.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
