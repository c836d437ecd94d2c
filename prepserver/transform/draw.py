"""Counter-based randomness: numbers that depend only on (seed, pass, sample, op's place, view).

So a row can be made again, elsewhere, alone, with the same random parameters. BLAKE2b (RFC 7693) over the counter costs
one compression for eight numbers, about two microseconds; numpy's scalar generators cost tens, and their streams may
change between releases.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_MESSAGE = struct.Struct("<QQQQQ")
_WORDS = struct.Struct("<8Q")
_MASK = (1 << 64) - 1
_DOMAIN = b"prepserver-draw1"  # BLAKE2b's 16-byte personalisation: nothing else has these numbers
_UNKEYED = hashlib.blake2b(digest_size=64, person=_DOMAIN)  # before any message


@dataclass(slots=True)  # one for each sample: a frozen one takes three times as long to make
class SampleKey:
    """What a sample's random numbers depend on.

    Attributes:
        seed: The order's seed.
        pass_: Number of complete passes over the source.
        index: The sample's place in the source.
    """

    seed: int
    pass_: int
    index: int


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


def place_of(place: int, view: int) -> int:
    """Return a number that is unique to the op at `place` in a `view`."""
    return place | view << 32  # so the first view's numbers are those of a pipeline with one view


def eight_words(key: SampleKey, place: int, block: int = 0) -> bytes:
    """Return the eight 64-bit words, little-endian, of a `block` of `Draws`; `place` is from `place_of`."""
    hashed = _UNKEYED.copy()  # half the time of making one with its parameters
    hashed.update(_MESSAGE.pack(key.seed & _MASK, key.pass_ & _MASK, key.index & _MASK, place, block))
    return hashed.digest()
