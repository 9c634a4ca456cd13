"""Breaks as they are shown and stored."""

from __future__ import annotations

from collections.abc import Iterator

from onepolicy.records.token_breaks import ShownBreak, ShownPiece, Way
from onepolicy.tokens.round_trip import Outcome, RoundTripBreak, TextBreak, TokenMeasurement
from onepolicy.tokens.sides import Piece

MOST_CHARACTERS, MOST_BYTES = 40, 24
"""shown of one token; a vocabulary may hold one of a thousand spaces"""


def shown(broken: RoundTripBreak | TextBreak, way: Way, *, with_text: bool = True) -> ShownBreak:
    """A break as a value of text and numbers; without text, ids and the cause remain."""
    found = broken.difference
    by_ids = isinstance(broken, RoundTripBreak) or broken.by_ids
    first, second = (pieces if by_ids else _joined(pieces) for pieces in (found.first, found.second))
    return ShownBreak(
        rollout=broken.rollout_id,
        way=way,
        counts="tokens" if by_ids else "characters",
        position=found.position,
        cause=found.cause,
        seen=found.seen if with_text else "",
        advice=found.advice,
        first=tuple(shown_piece(piece, with_text=with_text) for piece in first),
        second=tuple(shown_piece(piece, with_text=with_text) for piece in second),
        shifted=found.shifted,
    )


def shown_of(outcome: Outcome, *, with_text: bool = True) -> Iterator[ShownBreak]:
    """The breaks of one sample."""
    ways: tuple[tuple[Way, RoundTripBreak | TextBreak | None], ...] = (
        ("ids", outcome.ids),
        ("text", outcome.text),
        ("reading", outcome.reading),
    )
    for way, broken in ways:
        if broken is not None:
            yield shown(broken, way, with_text=with_text)


def kept_breaks(measured: TokenMeasurement, *, with_text: bool = True) -> tuple[ShownBreak, ...]:
    """The breaks that a measurement keeps."""
    return (
        *(shown(b, "ids", with_text=with_text) for b in measured.breaks),
        *(shown(b, "text", with_text=with_text) for b in measured.text_back),
        *(shown(b, "reading", with_text=with_text) for b in measured.text_breaks),
    )


def _joined(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Characters as one stretch of text."""
    return (Piece(token_id=None, content=b"".join(p.content for p in pieces)),) if pieces else ()


def shown_piece(piece: Piece, *, with_text: bool) -> ShownPiece:
    """One token; without text, its id."""
    if not with_text:
        return ShownPiece(id=piece.token_id, text="", bytes="")
    text, content = piece.text, piece.content[:MOST_BYTES].hex(" ")
    return ShownPiece(
        id=piece.token_id,
        text=text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…",
        bytes=content if len(piece.content) <= MOST_BYTES else f"{content} … {len(piece.content)} bytes",
    )
