"""Where a sequence and a turn begin and end, in ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.tokens.causes import explain
from onepolicy.tokens.render import Rendering
from onepolicy.tokens.sides import Side
from onepolicy.tokens.template.probes import ANSWER, MARKER, PLAIN, TYPED, Book
from onepolicy.tokens.template.words import note, passed, quoted

if TYPE_CHECKING:
    from tokenizers import Encoding


def stop_token(book: Book) -> Verdict:
    """Whether an end is written after the assistant's turn, and whether generation ends at it."""
    found = end_of_turn(book)
    if found is None:
        tail = quoted(_tail(book))
        return Verdict(
            check="stop_token",
            status=Status.FAIL,
            message=(
                f"no end token follows the assistant's turn, only {tail}: a model trained on it never learns to stop. "
                "Add the tokenizer's end token to the template."
            ),
        )
    token_id, text = found
    if not _is_trained(book, text):
        return Verdict(
            check="stop_token",
            status=Status.FAIL,
            message=f"{text} lies outside the template's generation block: the loss mask leaves it out, and the model "
            "does not learn to stop. Move it inside.",
        )
    return _generation_ends(book, token_id, text)


def between_turns(book: Book) -> Verdict:
    """What the template writes after the end of a turn, which the model never samples."""
    found = end_of_turn(book)
    if found is None:
        return note("between_turns", "unknown without an end token; see stop_token.")
    rest = _tail(book).partition(found[1])[2]
    if not rest:
        return passed("between_turns", f"nothing is written between {found[1]} and the next turn.", required=False)
    ids = book.reader.encode(rest)
    return note(
        "between_turns",
        f"after {found[1]} comes {quoted(rest)}, ids {ids}, which the model does not sample. Ids that are accumulated "
        "turn by turn need them there, not trained on.",
    )


def bos(book: Book) -> Verdict:
    """Whether the rendered text gets other ids when it is encoded with special tokens on."""
    text = book.text(PLAIN, 1, prompt=True)
    bare = book.reader.encode(text)
    added = _encoded(book, text, add_special_tokens=True).ids
    difference = explain(Side(name="rendered", ids=bare, reader=book.reader), Side(name="re-encoded", ids=added))
    if difference is None:
        return passed("bos", "rendered text has the same ids whether special tokens are added or not.")
    own = bare and bare[0] in book.reader.boundaries.bos
    lost = "The template brings its own" if own else "The template writes none"
    return Verdict(
        check="bos",
        status=Status.FAIL,
        message=(
            f"{difference.cause}: encoded with special tokens, {difference.seen}. {lost}; the whole sequence shifts. "
            "Encode rendered text with add_special_tokens=False on both sides, or send ids."
        ),
        evidence=(Evidence(rollout_id=PLAIN.name, position=difference.position, note=difference.cause),),
    )


def raw_text_bos(book: Book) -> Verdict:
    """Whether a text that no template touched gets a BOS."""
    first = book.reader.tokenizer.encode("a", add_special_tokens=True).ids[:1]
    adds = book.reader.boundaries.adds_bos
    spelled = _spelled(book, first[0]) if first else ""
    if adds:
        return note(
            "raw_text_bos",
            f"raw text gets {spelled} only with special tokens on; encoded without, as rendered text must be, it has "
            "none. Encode the two kinds of prompt differently.",
        )
    if book.bos and book.text(PLAIN, 1).startswith(book.bos):
        return note(
            "raw_text_bos", f"a conversation begins with {book.bos}, raw text does not; put it in front yourself."
        )
    return passed("raw_text_bos", "raw text gets no BOS, with special tokens or without.", required=False)


def typed_special(book: Book) -> Verdict:
    """Whether a special token that a user spells out becomes one."""
    found = end_of_turn(book)
    token_id, text = found if found else _any_special(book)
    if not text:
        return passed("typed_special", "the tokenizer has no special tokens.", required=False)
    rendered = book.text(TYPED).replace(MARKER, text)
    at = book.text(TYPED).index(MARKER)
    encoding = _encoded(book, rendered, add_special_tokens=False)
    spans = zip(encoding.ids, encoding.offsets, strict=True)
    place = next((i for i, (token, (start, _)) in enumerate(spans) if token == token_id and start == at), None)
    if place is None:
        return passed("typed_special", f"{text} in a user's message stays plain text.", required=False)
    return Verdict(
        check="typed_special",
        status=Status.UNKNOWN,
        required=False,
        message=(
            f"{text} in a user's message becomes id {token_id} at position {place}, inside the content. A user or a "
            "tool can end a turn; encode content with special tokens split, on both sides."
        ),
        evidence=(Evidence(rollout_id=TYPED.name, position=place, note=f"{text} inside the user's content"),),
    )


def end_of_turn(book: Book) -> tuple[int, str] | None:
    """Id and text of the first special token after the assistant's content; None if there is none."""
    pieces = book.reader.pieces
    ids = book.reader.encode(_tail(book))
    found = next((i for i in ids if pieces.is_special(i)), None)
    return None if found is None else (found, _spelled(book, found))


def _tail(book: Book) -> str:
    return book.text(PLAIN, 2).rpartition(ANSWER)[2]


def _is_trained(book: Book, text: str) -> bool:
    """Whether the template's generation block, if it has one, holds the end of the turn."""
    page = book.page(PLAIN, 2)
    if not isinstance(page, Rendering) or not page.assistant:
        return True
    start, end = page.assistant[-1]
    return text in page.text[start:end].rpartition(ANSWER)[2]


def _generation_ends(book: Book, token_id: int, text: str) -> Verdict:
    eos = book.special("eos_token")
    if text == eos or token_id in (book.stop_ids or ()):
        why = "the tokenizer's eos_token" if text == eos else "one of generation_config's eos_token_id"
        return passed(
            "stop_token", f"{text} ends the assistant's turn and is {why}: it is trained, and generation stops."
        )
    named = f"eos_token is {eos}" if eos else "no eos_token is named"
    if book.stop_ids is None:
        return Verdict(
            check="stop_token",
            status=Status.UNKNOWN,
            message=f"{text} ends the assistant's turn, {named}, and no generation_config.json says whether generation "
            f"stops at it. Make sure that id {token_id} is a stop id of the engine.",
        )
    return Verdict(
        check="stop_token",
        status=Status.FAIL,
        message=f"{text} ends the assistant's turn, but {named} and generation_config stops at "
        f"{sorted(book.stop_ids)}: generation runs on past the turn. Add id {token_id} to the stop ids.",
    )


def _any_special(book: Book) -> tuple[int, str]:
    added = book.reader.tokenizer.get_added_tokens_decoder()
    return next(((i, str(token.content)) for i, token in added.items() if token.special), (-1, ""))


def _spelled(book: Book, token_id: int) -> str:
    return book.reader.content([token_id]).decode("utf-8", errors="backslashreplace")


def _encoded(book: Book, text: str, *, add_special_tokens: bool) -> Encoding:
    """The encoding of a text; no tokenizer takes a lone surrogate."""
    whole = text.encode("utf-8", errors="replace").decode()
    return book.reader.tokenizer.encode(whole, add_special_tokens=add_special_tokens)
