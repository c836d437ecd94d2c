"""A sequence of random numbers for one op and one view of a sample; see `prepserver.pipeline.random_words`."""

from __future__ import annotations

import struct

from prepserver.pipeline.random_words import SampleKey, eight_words, place_of

_WORDS = struct.Struct("<8Q")


class Draws:
    """The endless sequence of numbers of the op at `place` in a pipeline (`Decode` is 0) for one `view` of a sample."""

    __slots__ = ("_block", "_key", "_place", "_words", "view")

    def __init__(self, key: SampleKey, place: int, view: int = 0) -> None:
        self._key = key
        self._place, self.view = place_of(place, view), view
        self._block = 0
        self._words: list[int] = []

    def word(self) -> int:
        """Return the next uniform integer in [0, 2**64)."""
        return (self._words or self._more()).pop()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return the next uniform number in [low, high); 53 random bits."""
        return low + (high - low) * (((self._words or self._more()).pop() >> 11) * 2.0**-53)

    def below(self, count: int) -> int:
        """Return the next uniform integer in [0, count); count at least 1.

        Multiply and shift (Lemire 2019) without rejection: for counts of pixels the bias is below 2**-49.
        """
        return ((self._words or self._more()).pop() * count) >> 64

    def key(self) -> int:
        """Return the next 128 bits, the key of a generator of many numbers."""
        return self.word() << 64 | self.word()

    def _more(self) -> list[int]:
        """Return eight words, to be taken from the end."""
        self._words = list(_WORDS.unpack(eight_words(self._key, self._place, self._block))[::-1])
        self._block += 1
        return self._words
