"""A cache in tests' hands: in memory, or in a file."""

from __future__ import annotations

import os
from pathlib import Path

from prepserver.cache.store import Book, Shape, Store, write_numbers
from prepserver.memory.segment import create_segment

EXTENT_BYTES = 1 << 16


class Cache:
    """One cache.

    Args:
        samples: Of its source.
        nbytes: How much it may hold.
        path: Its file; None for memory.
    """

    def __init__(self, samples: int, nbytes: int = 32 << 20, path: Path | None = None) -> None:
        self.shape = Shape(samples, EXTENT_BYTES)
        self.path = path
        if path is None:
            self.fd = create_segment("test-cache", self.shape.head_bytes + nbytes)
        else:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT)
            os.ftruncate(self.fd, self.shape.head_bytes)
        write_numbers(self.fd, self.shape, b"k" * 32)
        self.book = Book(self.fd, self.shape)
        self.book.allow(nbytes)

    def store(self, seat: int = 0) -> Store:
        """A worker's view."""
        return Store(self.fd, self.shape, seat, self.path is not None)

    def close(self) -> None:
        """Ends it."""
        os.close(self.fd)
