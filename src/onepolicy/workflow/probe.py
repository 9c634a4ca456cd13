"""An engine spec -> what is behind it."""

from __future__ import annotations

from onepolicy.engines.probing import probe_engine
from onepolicy.engines.spec import EngineSpec
from onepolicy.integrations import open_engine
from onepolicy.records.probe import Probe


def probe(spec: EngineSpec) -> Probe:
    """Open an engine and ask it what it is and what it can do. Raises: EngineError, UsageError."""
    engine = open_engine(spec)
    try:
        return probe_engine(engine)
    finally:
        engine.close()
