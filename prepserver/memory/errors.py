"""The errors of shared memory."""

from __future__ import annotations


class SegmentError(RuntimeError):
    """A descriptor is not the expected segment, or cannot be mapped."""


class MemoryShort(RuntimeError):
    """A ring of `asked_bytes` does not fit into `free_bytes`."""

    def __init__(self, asked_bytes: int, free_bytes: int, limit: str) -> None:
        super().__init__(
            f"a ring of {asked_bytes / 2**20:.1f} MiB was asked for and {max(0, free_bytes) / 2**20:.1f} MiB "
            f"are free: {limit}"
        )
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes
