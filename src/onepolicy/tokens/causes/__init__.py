"""Two sides that should have the same tokens -> why they first differ.

To add a cause: a function Compared -> what was seen (None if it does not hold) in the file of its kind, and one entry
in `CAUSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onepolicy.tokens.causes import boundaries, characters, places, rewriting, segmentation
from onepolicy.tokens.sides import Compared, Difference, Origin, Side

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause: how it is recognised, where it lies, and what to do about it."""

    name: str
    origin: Origin
    seen: Callable[[Compared], str | None]
    advice: str


def explain(first: Side, second: Side, *, start: int = 0, cap: int | None = None) -> Difference | None:
    """Why the second side's tokens are not the first's; None if they are.

    start: position of the first id in the full sequence. cap: the most tokens that a sample could have.
    Causes are asked in the order of `CAUSES`, and the first that is seen is named; `unknown` comes with both spellings.
    """
    compared = Compared(first, second, start=start, cap=cap)
    if compared.same:
        return None
    for cause in CAUSES:
        seen = cause.seen(compared)
        if seen is not None:
            return compared.difference(cause.name, seen, cause.advice, origin=cause.origin)
    seen = f"{first.name} {compared.around(0)!r}, {second.name} {compared.around(1)!r}"
    advice = "Compare both spellings; none of the known causes explains them."
    return compared.difference(UNKNOWN, seen, advice, origin=Origin.TEXT)


_TRAIN_ON_IDS = "Train on the sampled ids; do not encode their text again."

CAUSES: tuple[Cause, ...] = (
    Cause(
        name="id outside the vocabulary",
        origin=Origin.TOKENIZER,
        seen=segmentation.unknown_id,
        advice="Give each side the tokenizer of its ids, and mask the logits of ids that no token has.",
    ),
    Cause(
        name="special text parsed on one side",
        origin=Origin.TOKENIZER,
        seen=segmentation.special_text,
        advice="Encode the content of messages with special tokens split, on both sides.",
    ),
    Cause(
        name="BOS doubled",
        origin=Origin.SPECIALS,
        seen=boundaries.bos_doubled,
        advice="Send ids, or encode rendered text with add_special_tokens=False, so that there is exactly one.",
    ),
    Cause(
        name="BOS missing",
        origin=Origin.SPECIALS,
        seen=boundaries.bos_missing,
        advice="Put it in front of raw text, as the tokenizer itself would.",
    ),
    Cause(
        name="BOS inside",
        origin=Origin.SPECIALS,
        seen=boundaries.bos_inside,
        advice="Encode each segment after the first with add_special_tokens=False.",
    ),
    Cause(
        name="EOS doubled",
        origin=Origin.SPECIALS,
        seen=boundaries.eos_doubled,
        advice="Let one side write the end token, the engine or the trainer.",
    ),
    Cause(
        name="EOS missing",
        origin=Origin.SPECIALS,
        seen=boundaries.eos_missing,
        advice="Keep the sampled end token in the ids that are trained on.",
    ),
    Cause(
        name="added token decoded as other text",
        origin=Origin.TOKENIZER,
        seen=characters.added_token_decoded,
        advice="Upgrade tokenizers, or add the token under a text that survives its decoder.",
    ),
    Cause(
        name="space after a special token",
        origin=Origin.TOKENIZER,
        seen=segmentation.space_after_special,
        advice="Send ids; the two sides join a marker and the word after it by other rules.",
    ),
    Cause(
        name="other tokenizer",
        origin=Origin.TOKENIZER,
        seen=segmentation.other_tokenizer,
        advice="Give both sides one tokenizer; `onepolicy tokens compare` says what differs.",
    ),
    Cause(
        name="another valid segmentation",
        origin=Origin.TOKENIZER,
        seen=segmentation.another_segmentation,
        advice=_TRAIN_ON_IDS,
    ),
    Cause(
        name="no token for a character",
        origin=Origin.TOKENIZER,
        seen=segmentation.no_token,
        advice="Keep the ids; a text with such characters cannot be told to this model as it is.",
    ),
    Cause(
        name="byte codes in the text",
        origin=Origin.TOKENIZER,
        seen=characters.byte_codes,
        advice="Decode with the tokenizer's own decoder instead of joining its pieces.",
    ),
    Cause(
        name="bytes that form no character", origin=Origin.TOKENIZER, seen=characters.partial_utf8, advice=_TRAIN_ON_IDS
    ),
    Cause(
        name="tool-call JSON written anew",
        origin=Origin.TEXT,
        seen=rewriting.json_rewritten,
        advice="Keep the model's own text of the call as history, and parse a copy of it.",
    ),
    Cause(
        name="thinking removed",
        origin=Origin.TEXT,
        seen=rewriting.thinking_removed,
        advice="Keep the sampled ids as history, or train each turn as a sequence of its own.",
    ),
    Cause(
        name="normalisation",
        origin=Origin.TOKENIZER,
        seen=rewriting.normalised,
        advice="Switch the normaliser off on the side that has it, or train on the sampled ids.",
    ),
    Cause(
        name="ids rebuilt token by token",
        origin=Origin.TOKENIZER,
        seen=segmentation.rebuilt_from_pieces,
        advice="Ask the server for integer ids; the text of a single token does not give its id back.",
    ),
    Cause(
        name="whitespace",
        origin=Origin.TEXT,
        seen=rewriting.whitespace_changed,
        advice="Trim neither the model's output nor the content of messages.",
    ),
    Cause(
        name="special tokens stripped or added",
        origin=Origin.SPECIALS,
        seen=rewriting.specials_changed,
        advice="Send ids, or decode with special tokens kept and encode without adding any.",
    ),
    Cause(
        name="cut",
        origin=Origin.TEXT,
        seen=places.cut,
        advice="Give both sides the same longest length, and the same side to cut.",
    ),
    Cause(
        name="shifted",
        origin=Origin.TEXT,
        seen=places.shifted_ids,
        advice="Align both sides at the same first token before comparing anything.",
    ),
    Cause(
        name="template rendered otherwise",
        origin=Origin.TEXT,
        seen=rewriting.template_rewritten,
        advice="Render a conversation once, or with the same template and options on both sides.",
    ),
)
"""in the order in which they are asked"""
