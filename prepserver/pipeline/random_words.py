"""Counter-based randomness: words that depend only on (seed, pass, sample, op's place, view).

So any process can make a row again, by itself, with the same random parameters. BLAKE2b (RFC 7693) over the counter
costs one compression for eight words, about two microseconds; numpy's scalar generators cost tens, and their streams
may change between releases. Workers draw with them for their ops, and clients for ops on batches.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

_MESSAGE = struct.Struct("<QQQQQ")
_MASK = (1 << 64) - 1
_DOMAIN = b"prepserver-draw1"  # BLAKE2b's 16-byte personalisation: nothing else has these numbers
_UNKEYED = hashlib.blake2b(digest_size=64, person=_DOMAIN)  # before any message


@dataclass(slots=True)  # one for each sample: a frozen one takes three times as long to make
class SampleKey:
    """What a sample's random numbers depend on."""

    seed: int  # the order's seed
    pass_: int  # number of complete passes over the source
    index: int  # the sample's place in the source


def op_key(place: int, view: int) -> int:
    """Return a number that is unique to the op at `place` in a `view`."""
    return place | view << 32  # so the first view's numbers are those of a pipeline with one view


def eight_words(key: SampleKey, place: int, block: int = 0) -> bytes:
    """Return the eight 64-bit words, little-endian, of a `block` of `Draws`; `place` is from `op_key`."""
    hashed = _UNKEYED.copy()  # half the time of making one with its parameters
    hashed.update(_MESSAGE.pack(key.seed & _MASK, key.pass_ & _MASK, key.index & _MASK, place, block))
    return hashed.digest()
