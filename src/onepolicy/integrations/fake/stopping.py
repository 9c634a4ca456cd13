"""What ends a completion of the fake engine."""

from __future__ import annotations

import numpy as np

from onepolicy.integrations.fake.vocabulary import END, decode
from onepolicy.records.protocol import SamplingProtocol


def end_ids(protocol: SamplingProtocol) -> tuple[int, ...]:
    """Ids that end a completion."""
    return () if protocol.ignore_eos else (END, *protocol.stop_token_ids)


def stopped_by(drawn: list[int], protocol: SamplingProtocol) -> str:
    """What the last token ends the completion by: the end token, a stop id or a stop string; empty if by nothing."""
    if drawn[-1] in end_ids(protocol):
        return "<|im_end|>" if drawn[-1] == END else str(drawn[-1])
    if not protocol.stop or len(drawn) < protocol.min_new_tokens:
        return ""
    before, text = (decode(np.array(ids, dtype=np.int32)) for ids in (drawn[:-1], drawn))
    return next((stop for stop in protocol.stop if text.count(stop) > before.count(stop)), "")
