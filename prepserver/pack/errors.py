"""Why packing ends without a packed dataset."""

from __future__ import annotations


class PackError(Exception):
    """Packing cannot begin or go on; the text says what to do. With `usage`, the arguments are wrong."""

    def __init__(self, reason: str, usage: bool = False) -> None:
        super().__init__(reason)
        self.usage = usage
