"""A ring of rows with the most impatient server there can be, and a client's loop over it, in one thread.

The server refills a row at the moment that it is released, and says so. Every row's bytes name its position,
so a batch that was read too late, or in two halves, is known by its bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from prepclient.device import DeviceCopier
from tests.support.fake_device import FakeDevice

SHAPE = (2, 2, 3)
Step: TypeAlias = Callable[[FakeDevice], None]
Fields: TypeAlias = dict[str, Any]


def row_of(position: int, view: int = 0) -> torch.Tensor:
    """The right bytes of a position."""
    first = torch.tensor([position % 251, (position // 251 + 50 * view) % 256], dtype=torch.uint8)
    return first.repeat(6).view(SHAPE)


class FakeRing:
    """Positions [released, released + rows) are always full.

    Args:
        rows: Rows of the ring.
        batch: Rows of a batch, used by :meth:`run`.
        views: Of each sample.
    """

    def __init__(self, rows: int, batch: int, views: int = 1) -> None:
        self.rows, self.batch = rows, batch
        self.images = [torch.zeros((rows, *SHAPE), dtype=torch.uint8) for _ in range(views)]
        self.labels = torch.zeros(rows, dtype=torch.int64)
        self.released = 0
        self.submitted = 0
        self._filled = 0
        # First and last position, what the user was handed, what a kernel of the user's then read of it.
        self.seen: list[tuple[int, int, Fields, Fields]] = []
        self._begins: deque[int] = deque()
        self._fill()

    def _fill(self) -> None:
        while self._filled < self.released + self.rows:
            row = self._filled % self.rows
            for view, images in enumerate(self.images):
                images[row] = row_of(self._filled, view)
            self.labels[row] = self._filled
            self._filled += 1

    def release(self, ends: list[int]) -> None:
        """The client gives back all rows below each of these positions, in order."""
        for end in ends:
            assert self.released < end <= self.submitted
            self.released = end
        self._fill()

    def may_submit(self, n: int) -> bool:
        """Whether the next `n` positions are full."""
        return self.submitted + n <= self._filled

    def submit(self, copier: DeviceCopier, n: int) -> None:
        """Submits the next `n` positions as one or two slices of the ring; their end is the key."""
        begin, end = self.submitted, self.submitted + n
        first = min(n, self.rows - begin % self.rows)
        slices = [slice(begin % self.rows, begin % self.rows + first), slice(0, n - first)]
        slices = slices[: 1 + (n > first)]
        labels = [self.labels[part] for part in slices]
        small = {"label": labels, "index": [part + 10_000 for part in labels]}
        copier.submit(end, [[images[part] for part in slices] for images in self.images], small)
        self.submitted = end
        self._begins.append(begin)

    def take(self, copier: DeviceCopier, device: FakeDevice) -> None:
        """Takes a batch and queues a kernel of the user's that reads it."""
        key, fields = copier.take()
        read: Fields = {}
        device.launch(lambda: read.update({name: _copy(value) for name, value in fields.items()}))
        self.seen.append((self._begins.popleft(), key, fields, read))

    def forget(self) -> None:
        """The client discards the batches that it has not taken."""
        self._begins.clear()

    def run(self, copier: DeviceCopier, device: FakeDevice, batches: int, step: Step) -> None:
        """A client's whole loop; `step` lets the device go on once per batch."""
        for _ in range(batches):
            self.release(copier.delivery.poll())
            copier.delivery.ask()
            while copier.delivery.room and self.may_submit(self.batch):
                self.submit(copier, self.batch)
            self.take(copier, device)
            step(device)

    def count_wrong(self, *, kept: bool = False) -> int:
        """Batches whose kernels read anything but the right bytes, once the device has run empty.

        Args:
            kept: Look at the tensors that were handed out instead, as they are now.
        """
        return sum(not _is_right(b, e, fields if kept else read) for b, e, fields, read in self.seen)


def _copy(value: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor | tuple[torch.Tensor, ...]:
    return tuple(view.clone() for view in value) if isinstance(value, tuple) else value.clone()


def _is_right(begin: int, end: int, fields: Fields) -> bool:
    positions = range(begin, end)
    views = fields["image"] if isinstance(fields["image"], tuple) else (fields["image"],)
    return (
        all(torch.equal(got, _images(positions, view)) for view, got in enumerate(views))
        and fields["label"].tolist() == list(positions)
        and fields["index"].tolist() == [position + 10_000 for position in positions]
    )


def _images(positions: range, view: int) -> torch.Tensor:
    return torch.stack([row_of(position, view) for position in positions]).permute(0, 3, 1, 2)
