"""Chooses the pieces of texts that make each row of tokens: pure arithmetic, done once when texts are listed.

It packs windows of consecutive texts, so that memory is bounded and the texts of a row lie near each other. Within a
window it places the longest pieces first, each in the row with the least room that it fits into (best fit decreasing),
as in "Fewer Truncations Improve Language Modeling" (Ding et al., 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

WINDOW = 1 << 16  # texts of a window

_TRIES = 6
_ENOUGH = 0.98  # of a row: a part of a long text that fills this much is not improved further


class Piece(NamedTuple):
    """A part of a text."""

    text: int  # number of the text
    begin: int  # first character
    end: int  # one past the last character; 0 for a text that cannot be read
    tokens: int


def rows_of(pieces: list[Piece], length: int) -> list[list[Piece]]:
    """Return the rows that hold all pieces, in the order of their first texts; none has more than `length` tokens."""
    rows: list[list[Piece]] = []
    by_room: list[list[int]] = [[] for _ in range(length + 1)]  # numbers of rows
    rooms = 0  # a bit for each room that a row has
    for piece in sorted(pieces, key=lambda each: -each.tokens):
        fitting = rooms >> piece.tokens
        if fitting:
            room = piece.tokens + (fitting & -fitting).bit_length() - 1
            number = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
            rows[number].append(piece)
        else:
            room, number = length, len(rows)
            rows.append([piece])
        left = room - piece.tokens
        by_room[left].append(number)
        if left:  # a full row is never looked for
            rooms |= 1 << left
    for row in rows:
        row.sort()
    return sorted(rows)


def parts_of(number: int, text: str, count: int, length: int, counted: Callable[[str], int]) -> Iterator[Piece]:
    """Yield the parts of a text that has more tokens than a row: all of it, in order, each nearly as long as a row.

    The text has `count` tokens, a row `length`; `counted` returns the number of tokens of a part.

    Raises:
        ValueError: A single character has more tokens than a row.
    """
    begin, chars = 0, len(text) / count
    while begin < len(text):
        best, size = (0, 0), int(chars * length)
        for _ in range(_TRIES):
            end = _cut(text, begin, min(len(text), begin + max(1, size)))
            tokens = counted(text[begin:end])
            if tokens <= length and (best[0] == 0 or end > best[0]):
                best = (end, tokens)
                if tokens >= _ENOUGH * length or end == len(text):
                    break
            size = int((end - begin) * length * (0.99 if tokens <= length else 0.97) / max(1, tokens))
        while not best[0]:  # its tokens are spread very unevenly
            size = max(1, size // 2)
            end = _cut(text, begin, begin + size)
            tokens = counted(text[begin:end])
            if tokens <= length:
                best = (end, tokens)
            elif size == 1:
                raise ValueError(f"character {begin} has more than {length} tokens")
        end, tokens = best
        yield Piece(number, begin, end, tokens)
        chars = (end - begin) / max(1, tokens)
        begin = end


def _cut(text: str, begin: int, end: int) -> int:
    """Return the last place before white space in the second half of a part; `end` if there is none."""
    if end == len(text):
        return end
    found = max(text.rfind(each, begin + (end - begin) // 2, end) for each in (" ", "\n", "\t"))
    return found if found > begin else end
