"""That an engine samples as the protocol says: what it cannot do is refused before anything is sampled."""

from __future__ import annotations

from onepolicy.engines.contract import Sampler
from onepolicy.engines.obeyed import ALWAYS
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.tokens import IntArray
from onepolicy.sampling.vocabulary import refuse_beyond


def refuse_unobeyed(sampler: Sampler, spec: EngineSpec, protocol: SamplingProtocol) -> None:
    """Raise UsageError, or EngineError of a server, unless the engine samples as the protocol says."""
    _refuse_impossible(protocol)
    meaning = sampler.sampled_meaning(protocol)
    unobeyed = [name for name in protocol.changed if name not in sampler.obeys]
    if unobeyed:
        further = ", ".join(sorted(sampler.obeys - ALWAYS)) or "none"
        raise UsageError(
            f"{spec.engine}: sampling.{unobeyed[0]} = {getattr(protocol, unobeyed[0])!r}: this engine does not obey "
            "the field and would sample without it. Leave it out, or sample with another engine. Fields that it obeys "
            f"beside the common ones: {further}."
        )
    if protocol.logprobs == "processed" and meaning != Meaning.processed_by(protocol):
        raise UsageError(
            f"{spec.engine}: sampling.logprobs = processed, and the logprobs that this engine gives are {meaning}. "
            "Leave the field out, or start the engine so that it returns processed ones."
        )
    if protocol.dtype is not None and sampler.info.dtype != protocol.dtype:
        raise UsageError(
            f"{spec.engine}: sampling.dtype = {protocol.dtype}, and the engine's is {sampler.info.dtype}. Open it with "
            f"?dtype={protocol.dtype} if it has that, or leave the field out."
        )
    if protocol.stop_token_ids:
        where = f"{spec.engine}: sampling.stop_token_ids"
        refuse_beyond(protocol.stop_token_ids, sampler.info.vocab_size, where=where, of="the engine's model")


def _refuse_impossible(protocol: SamplingProtocol) -> None:
    if protocol.schedule is not None and protocol.schedule.moves:
        raise UsageError(
            f"sampling.schedule goes from {protocol.schedule.start:g} to {protocol.schedule.end:g}, and a recording is "
            "of one step. Leave it out: what is sampled at is sampling.temperature."
        )
    if protocol.prompt_truncation is not None and protocol.max_prompt_tokens is None:
        raise UsageError(
            f"sampling.prompt_truncation = {protocol.prompt_truncation}: how long a prompt may be is not known here. "
            "Set max_prompt_tokens too."
        )


def cut_prompt(token_ids: IntArray, protocol: SamplingProtocol, *, rollout_id: str) -> IntArray:
    """The prompt as the protocol lets it be. Raises: EngineError if it is too long and nothing says which side is cut.

    Shape: [P] -> [at most max_prompt_tokens].
    """
    most = protocol.max_prompt_tokens
    if most is None or len(token_ids) <= most:
        return token_ids
    if protocol.prompt_truncation is None:
        raise EngineError(
            f"rollout {rollout_id}: its prompt has {len(token_ids)} tokens, and max_prompt_tokens = {most}. Raise it, "
            "or say which side is cut (prompt_truncation)."
        )
    return token_ids[-most:] if protocol.prompt_truncation == "left" else token_ids[:most]
