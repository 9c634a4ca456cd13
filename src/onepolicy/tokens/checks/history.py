"""Does each call of a trajectory begin with what was sampled before it?"""

from __future__ import annotations

from onepolicy.records.verdict import Verdict
from onepolicy.tokens.round_trip import TokenMeasurement
from onepolicy.tokens.trajectory import history_verdict


def history(measured: TokenMeasurement) -> tuple[Verdict, ...]:
    """One verdict, or none where no trajectory has several calls.

    Informs: each call of a run is scored with the prompt that it had. `onepolicy tokens history` decides by it.
    """
    return () if measured.history is None else (history_verdict(measured.history, required=False),)
