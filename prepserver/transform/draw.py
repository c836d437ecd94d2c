"""Counter-based randomness: numbers that depend on (seed, pass, sample, op's place, view) and on nothing else.

So a row can be made again, elsewhere, alone, and its random parameters are the same. BLAKE2b (RFC 7693) over
the counter costs one compression for eight numbers, about two microseconds; numpy's scalar generators cost
tens, and their streams may change between releases.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_MESSAGE = struct.Struct("<QQQQQ")
_WORDS = struct.Struct("<8Q")
_MASK = (1 << 64) - 1
_DOMAIN = b"prepserver-draw1"  # BLAKE2b's 16-byte personalisation: these numbers serve nothing else
_UNKEYED = hashlib.blake2b(digest_size=64, person=_DOMAIN)  # before any message


@dataclass(slots=True)  # one for each sample: a frozen one takes three times as long to make
class SampleKey:
    """What a sample's randomness hangs on.

    Attributes:
        seed: The order's seed.
        pass_: How many times the source has been gone through.
        index: The sample's place in the source.
    """

    seed: int
    pass_: int
    index: int


class Draws:
    """The endless line of numbers of one op for one sample.

    Args:
        key: Which sample, when.
        place: The op's place in the pipeline (`Decode` is 0).
        view: Which of the sample's views.
    """

    __slots__ = ("_block", "_key", "_place", "_words")

    def __init__(self, key: SampleKey, place: int, view: int = 0) -> None:
        self._key = key
        self._place = place_of(place, view)
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

    def _more(self) -> list[int]:
        """Eight words, to be taken from the end."""
        self._words = list(_WORDS.unpack(eight_words(self._key, self._place, self._block))[::-1])
        self._block += 1
        return self._words


def place_of(place: int, view: int) -> int:
    """Return what tells the numbers of the op at `place` in a `view` from all others."""
    return place | view << 32  # above any place, so that the first view's numbers are those of a pipeline with one view


def eight_words(key: SampleKey, place: int, block: int = 0) -> bytes:
    """Return eight of the 64-bit words, little-endian, that `Draws` takes its numbers from, one after the other.

    Args:
        key: Which sample, when.
        place: From `place_of`.
        block: Which eight.
    """
    hashed = _UNKEYED.copy()  # half the time of making one with its parameters
    hashed.update(_MESSAGE.pack(key.seed & _MASK, key.pass_ & _MASK, key.index & _MASK, place, block))
    return hashed.digest()
