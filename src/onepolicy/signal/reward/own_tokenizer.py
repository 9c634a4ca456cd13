"""Do the tokenizer of a reward model, its template and its configuration belong together?"""

from __future__ import annotations

from onepolicy.records.verdict import Evidence, Verdict
from onepolicy.signal.reward.found import failed, not_checked, passed
from onepolicy.signal.reward.scorer import TokenizerFacts
from onepolicy.signal.reward.subject import Subject

CHECK = "own_tokenizer"


def own_tokenizer(subject: Subject) -> Verdict:
    """Fails if an id has no row, BOS stands twice, or tokenizer and model pad with different ids."""
    if subject.open is None:
        return not_checked(CHECK, "the scorer encodes by itself.")
    facts = subject.open.facts
    wrong = [*_of_padding(facts), *_of_rows(facts), *_of_begin(subject, facts)]
    if wrong:
        evidence = tuple(Evidence(rollout_id="tokenizer", note=one) for one in wrong)
        return failed(CHECK, " ".join(wrong), quantity="contradictions", value=len(wrong), limit=0, evidence=evidence)
    template = "its chat template" if facts.has_template else "no chat template: messages are joined by line breaks"
    return passed(CHECK, f"its own, with {template}; padding is id {facts.pad_id} for tokenizer and model.")


def _of_padding(facts: TokenizerFacts) -> list[str]:
    if facts.pad_id is None:
        return []
    if facts.model_pad_id is None:
        return [
            f"the tokenizer pads with id {facts.pad_id} and config.json names no pad_token_id, so the model takes "
            "padding for text, and refuses batches. Write the id into config.json."
        ]
    if facts.pad_id != facts.model_pad_id:
        return [
            f"the tokenizer pads with id {facts.pad_id} and config.json says pad_token_id {facts.model_pad_id}, so the "
            "model reads its score at padding. Give both one id."
        ]
    return []


def _of_rows(facts: TokenizerFacts) -> list[str]:
    if facts.highest_id < facts.rows:
        return []
    return [
        f"the tokenizer has ids up to {facts.highest_id} and the model {facts.rows} rows: it is the tokenizer of "
        "another model. Save the reward model's own beside it."
    ]


def _of_begin(subject: Subject, facts: TokenizerFacts) -> list[str]:
    assert subject.open is not None
    if facts.bos_id is None:
        return []
    ids = subject.open.encode(subject.answers[:1])[0].ids[:2].tolist()
    if ids != [facts.bos_id, facts.bos_id]:
        return []
    return [f"a text begins with BOS (id {facts.bos_id}) twice. Let the template or the tokenizer add it, not both."]
