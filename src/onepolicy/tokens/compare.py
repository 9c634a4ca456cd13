"""In what two tokenizers differ: their parts, and the texts that become other ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from onepolicy.tokens.part_differences import describe
from onepolicy.tokens.parts import (
    ADDED,
    INFORMATIVE,
    MERGES,
    VOCABULARY,
    Fingerprint,
    fingerprint_of,
    parts_of,
)
from onepolicy.tokens.pieces import Pieces
from onepolicy.tokens.probes import ENDS, Probe, probes
from onepolicy.tokens.shrink import shortest
from onepolicy.tokens.tokenizer import StoredTokenizer, is_panic

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = tuple[int, ...] | None
"""of a text; None where the tokenizer refuses it"""
_MANY = 200
"""texts that are tried of each part that differs"""
_LONGEST = 1000
"""characters of a text that is tried"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartComparison:
    """One part of both."""

    name: str
    same: bool
    informative: bool
    """whether a difference changes neither ids nor text"""
    detail: tuple[str, ...]
    """in what it differs, a line each; empty if it does not"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassComparison:
    """The probes of one class."""

    name: str
    probes: int
    differ: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDifference:
    """A text and what each makes of it."""

    text: str
    kind: Literal["ids", "text"]
    """what differs: the ids of the text, or the text of equal ids"""
    with_ends: bool
    """whether it was encoded with what the tokenizers add to a text, such as BOS"""
    a_ids: Ids
    b_ids: Ids
    a_pieces: tuple[str, ...]
    b_pieces: tuple[str, ...]
    a_text: str
    b_text: str
    """of the ids"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerComparison:
    """What was found; `same` only if every part that changes ids or text is equal and no probe differs."""

    a: str
    b: str
    a_fingerprint: Fingerprint | None
    b_fingerprint: Fingerprint | None
    """None of a server"""
    parts: tuple[PartComparison, ...]
    """empty if one is a server: of that only its answers are known"""
    classes: tuple[ClassComparison, ...]
    shortest: TextDifference | None
    """the shortest text found on which they differ"""

    @property
    def same(self) -> bool:
        """Whether both are the same tokenizer."""
        return all(part.same or part.informative for part in self.parts) and self.shortest is None

    @property
    def sentence(self) -> str:
        """The answer, in words."""
        if self.same and not self.parts:
            return f"Same: all {sum(kind.probes for kind in self.classes)} probes have the same ids and text."
        if self.same:
            return "Same: every part that changes ids or text is equal, and so are the ids of all probes."
        parts = [part.name for part in self.parts if not part.same and not part.informative]
        differ = sum(kind.differ for kind in self.classes)
        probes = f"{differ} of {sum(kind.probes for kind in self.classes)} probes differ"
        if not self.parts:
            return f"Different: {probes}."
        return f"Different: {', '.join(parts) or 'no part on its own'}; {probes}."

    @property
    def exit_status(self) -> int:
        """0 the same, 1 different."""
        return 0 if self.same else 1


def compare_tokenizers(a: StoredTokenizer, b: StoredTokenizer) -> TokenizerComparison:
    """Compare two tokenizers part by part, and by the ids that they give to the probes.

    Raises: TokenizerError if one of them is none.
    """
    built = (a.tokenizer(), b.tokenizer())
    pair = Pair(*built)
    a_parts, b_parts = parts_of(a, built[0]), parts_of(b, built[1])
    asked = [
        *probes(special_tokens(a, a_parts) | special_tokens(b, b_parts)),
        *_of_differing_parts(built, a_parts, b_parts),
    ]
    asked = list(dict.fromkeys(asked))
    differ = [probe for probe, hit in zip(asked, pair.differ(asked), strict=True) if hit]
    return TokenizerComparison(
        a=a.origin,
        b=b.origin,
        a_fingerprint=fingerprint_of(a_parts),
        b_fingerprint=fingerprint_of(b_parts),
        parts=tuple(_part(name, a_parts, b_parts) for name in a_parts),
        classes=tuple(_classes(asked, differ)),
        shortest=_shortest(pair, differ),
    )


def compare_answers(a: Answers, b: Answers, *, special: Iterable[str] = ()) -> TokenizerComparison:
    """Compare two by the ids and texts of the probes alone. special: texts of special tokens to ask about.

    Raises: EngineError if a server fails.
    """
    pair = Pair(a, b)
    asked = list(dict.fromkeys(probes(special)))
    differ = [probe for probe, hit in zip(asked, pair.differ(asked), strict=True) if hit]
    return TokenizerComparison(
        a=a.origin,
        b=b.origin,
        a_fingerprint=None,
        b_fingerprint=None,
        parts=(),
        classes=tuple(_classes(asked, differ)),
        shortest=_shortest(pair, differ),
    )


@runtime_checkable
class Answers(Protocol):
    """What a tokenizer, here or behind a server, makes of texts and ids."""

    origin: str
    """as the user named it"""

    def encoded(self, texts: Sequence[str], *, with_ends: bool) -> list[Ids]:
        """The ids of each text; None of one that is refused. with_ends: with what is added to a text, such as BOS."""

    def decoded(self, ids: Sequence[Ids]) -> list[str]:
        """The text of each sequence, special tokens spelled out."""

    def spelled(self, ids: Ids) -> tuple[str, ...]:
        """The text of each token."""


class LocalAnswers:
    """Those of a tokenizer in this process."""

    def __init__(self, tokenizer: Tokenizer, *, origin: str = "") -> None:
        self._tokenizer, self.origin = tokenizer, origin

    def encoded(self, texts: Sequence[str], *, with_ends: bool) -> list[Ids]:
        """The ids of each text; None of one that it refuses."""
        return encoded(self._tokenizer, texts, with_ends=with_ends)

    def decoded(self, ids: Sequence[Ids]) -> list[str]:
        """The text of each sequence."""
        return [decoded(self._tokenizer, one) for one in ids]

    def spelled(self, ids: Ids) -> tuple[str, ...]:
        """The text of each token."""
        return _spelled(self._tokenizer, ids)


class Pair:
    """Two tokenizers that are asked the same."""

    def __init__(self, a: Tokenizer | Answers, b: Tokenizer | Answers) -> None:
        self._answers = [side if isinstance(side, Answers) else LocalAnswers(side) for side in (a, b)]

    def differ(self, asked: Sequence[Probe]) -> list[bool]:
        """For each probe, whether its ids differ, or the text of its equal ids."""
        found = dict.fromkeys(asked, False)
        for with_ends in (False, True):
            some = [probe for probe in asked if (probe.kind == ENDS) == with_ends]
            hits = self.texts_differ([probe.text for probe in some], with_ends=with_ends)
            found |= dict(zip(some, hits, strict=True))
        return [found[probe] for probe in asked]

    def texts_differ(self, texts: Sequence[str], *, with_ends: bool) -> list[bool]:
        """The same of texts."""
        a_ids, b_ids = (side.encoded(texts, with_ends=with_ends) for side in self._answers)
        equal = sorted({ids for ids, others in zip(a_ids, b_ids, strict=True) if ids == others and ids is not None})
        a_texts, b_texts = (side.decoded(equal) for side in self._answers)
        other_text = {ids for ids, a, b in zip(equal, a_texts, b_texts, strict=True) if a != b}
        return [x != y or x in other_text for x, y in zip(a_ids, b_ids, strict=True)]

    def difference(self, text: str, *, with_ends: bool) -> TextDifference:
        """What each makes of a text on which they differ."""
        a, b = self._answers
        a_ids, b_ids = (side.encoded([text], with_ends=with_ends)[0] for side in (a, b))
        return TextDifference(
            text=text,
            kind="ids" if a_ids != b_ids else "text",
            with_ends=with_ends,
            a_ids=a_ids,
            b_ids=b_ids,
            a_pieces=a.spelled(a_ids),
            b_pieces=b.spelled(b_ids),
            a_text=a.decoded([a_ids])[0],
            b_text=b.decoded([b_ids])[0],
        )


def encoded(tokenizer: Tokenizer, texts: Sequence[str], *, with_ends: bool) -> list[Ids]:
    """The ids of each text; None of one that the tokenizer refuses."""
    try:
        return [tuple(e.ids) for e in tokenizer.encode_batch(list(texts), add_special_tokens=with_ends)]
    except BaseException as error:  # of a vocabulary of words without an unknown token, or of a damaged table
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if len(texts) == 1:
            return [None]
        return [ids for text in texts for ids in encoded(tokenizer, [text], with_ends=with_ends)]


def decoded(tokenizer: Tokenizer, ids: Ids) -> str:
    """The text of ids, special tokens spelled out."""
    return str(tokenizer.decode(list(ids or ()), skip_special_tokens=False))


def special_tokens(stored: StoredTokenizer, parts: Mapping[str, Any]) -> dict[str, None]:
    """Those that the configuration names; otherwise the first two that are special."""
    named = [stored.special[name] for name in ("bos_token", "eos_token") if name in stored.special]
    return dict.fromkeys(named or [token["content"] for token in parts[ADDED] if token["special"]][:2])


def _of_differing_parts(
    built: tuple[Tokenizer, Tokenizer], a: Mapping[str, Any], b: Mapping[str, Any]
) -> Iterator[Probe]:
    """The texts of tokens, added tokens and merges that only one side has."""
    for name in (VOCABULARY, MERGES, ADDED):
        if a[name] == b[name]:
            continue
        for tokenizer, mine, other in ((built[0], a[name], b[name]), (built[1], b[name], a[name])):
            for text in _texts(tokenizer, name, mine, other):
                if 0 < len(text) <= _LONGEST:
                    yield Probe(kind=f"texts of {name} that differ", text=text)


def _texts(tokenizer: Tokenizer, name: str, mine: Sequence[Any], other: Sequence[Any]) -> list[str]:
    if name == ADDED:
        there = {tuple(token.values()) for token in other}
        return [str(token["content"]) for token in mine if tuple(token.values()) not in there][:_MANY]
    known = {tuple(item) for item in other}
    only = [item for item in mine if tuple(item) not in known][:_MANY]
    ids = [item[0] if name == VOCABULARY else tokenizer.token_to_id("".join(item)) for item in only]
    pieces = Pieces(tokenizer)
    contents = [pieces.bytes_of(token_id) or b"" for token_id in ids if token_id is not None]
    return [text for content in contents if (text := content.decode(errors="ignore")).encode() == content]


def _part(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> PartComparison:
    same = a[name] == b[name]
    detail = () if same else tuple(describe(name, a, b))
    return PartComparison(name=name, same=same, informative=name in INFORMATIVE, detail=detail)


def _classes(asked: Iterable[Probe], differ: Iterable[Probe]) -> Iterator[ClassComparison]:
    hits = set(differ)
    by_class: dict[str, list[Probe]] = {}
    for probe in asked:
        by_class.setdefault(probe.kind, []).append(probe)
    for name, members in by_class.items():
        yield ClassComparison(name=name, probes=len(members), differ=len(hits.intersection(members)))


def _shortest(pair: Pair, differ: Sequence[Probe]) -> TextDifference | None:
    """Without what the tokenizers add to a text, if that shows it; otherwise with it."""
    for with_ends in (False, True):
        texts = [probe.text for probe in differ if with_ends or probe.kind != ENDS]

        def shows(tried: Sequence[str], *, ends: bool = with_ends) -> list[bool]:
            return pair.texts_differ(tried, with_ends=ends)

        found = shortest(texts, shows)
        if found is not None:
            return pair.difference(found, with_ends=with_ends)
    return None


def _spelled(tokenizer: Tokenizer, ids: Ids) -> tuple[str, ...]:
    pieces = Pieces(tokenizer)
    return tuple(pieces.text_of(token_id) for token_id in ids or ())
