"""A memfd mapped writable and shared, as a client maps a ring: for tests and for the process they start."""

from __future__ import annotations

import mmap
import os
from types import TracebackType

import torch


class Segment:
    """One mapping of a memfd; `bytes` is a uint8 tensor over all of it."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd, self.nbytes = fd, nbytes
        self.mapping = mmap.mmap(fd, nbytes, mmap.MAP_SHARED)
        self.bytes = torch.frombuffer(self.mapping, dtype=torch.uint8)
        self.address = self.bytes.data_ptr()

    @classmethod
    def create(cls, nbytes: int) -> Segment:
        fd = os.memfd_create("prepserver-test", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        made = cls(fd, nbytes)
        made.bytes.fill_(1)
        return made

    def __enter__(self) -> Segment:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The mapping goes with its last tensor: a close here would fail while a test still holds one.
        os.close(self.fd)
