"""Device buffers, and the batches that come out of them.

The bytes of a batch travel from host rows, by an asynchronous copy on a side stream, to one of ``depth + 1`` device
buffers, and from there, on the consumer's stream, to the user's tensors. :mod:`prepclient.delivery` decides when memory
may be overwritten, and :mod:`prepclient.finish` computes. :class:`DeviceCopier` connects the two over an engine
(:mod:`prepclient.engine`).
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from prepclient.batchops import Drawing
from prepclient.delivery import Delivery
from prepclient.engine import CudaEngine, Engine, cuda_device
from prepclient.finish import Finish, Finisher
from prepclient.rowlook import RowLook

DRAWN = "-drawn"
"""The small field with the numbers that the ops on a batch drew. No column has this name."""

_ALIGN_BYTES = 256  # lets a GPU read each small field in full transactions


class Taken(NamedTuple):
    """A batch for the consumer: its key, and its tensors by field (a tuple of tensors for several views)."""

    key: int
    fields: dict[str, Any]


class _Packing:
    """The layout of small fields (label, index) in one block, so that one copy transfers them all."""

    def __init__(self, fields: Mapping[str, torch.dtype], max_batch: int, drawn: int) -> None:
        self._spans: dict[str, tuple[int, int, torch.dtype]] = {}
        self._drawn = drawn
        end = 0
        for name, dtype in [*fields.items(), *([(DRAWN, torch.float32)] if drawn else [])]:
            begin = math.ceil(end / _ALIGN_BYTES) * _ALIGN_BYTES
            end = begin + max_batch * dtype.itemsize * (drawn if name == DRAWN else 1)
            self._spans[name] = (begin, end, dtype)
        self.nbytes = end

    def views(self, block: torch.Tensor, n: int) -> dict[str, torch.Tensor]:
        """The first `n` elements of each field inside a block of `nbytes` bytes."""
        views = {name: block[begin:end].view(dtype) for name, (begin, end, dtype) in self._spans.items()}
        if self._drawn:
            views[DRAWN] = views[DRAWN].view(-1, self._drawn)
        return {name: view[:n] for name, view in views.items()}


class DeviceCopier:
    """Copies batches to the GPU ahead of the consumer, and tells when their host rows are free.

    One step of the consumer::

        release(copier.delivery.poll())            # rows whose copies have completed
        copier.delivery.ask()                      # the consumer has finished the current batch
        while copier.delivery.room and announced:  # copies for the next steps, up to `depth` ahead
            copier.submit(start, rows, small)
        taken = copier.take()

    While the consumer waits for an announcement and `delivery.travelling` is not 0, it keeps polling: the daemon may
    need those rows.

    The tensors are fresh and may be kept: the last computation, or a copy on the device, makes them on the consumer's
    stream (38 MB take about 20 microseconds). With ``zero_copy=True`` and nothing to compute they are the device
    buffers, which are valid for work that is queued before the next `delivery.ask`, on the stream that is current then.

    Args:
        device: ``"cuda[:i]"``.
        looks: Layout of each column with more than one number per row.
        max_batch: Largest number of rows in a batch.
        small: dtype of each field with one number per row.
        depth: Batches ahead of the consumer's. For each look the buffers take ``(depth + 1) * max_batch * look.views *
            look.nbytes`` bytes of device memory.
        finish: The last computation on images.
        zero_copy: Lend the device buffers (see above).
        engine: The device's streams and memory; None for CUDA's.
        drawing: What draws for the ops on batches; None if nothing is drawn. With it, batches that are submitted have
            the small field `DRAWN`.

    Raises:
        DeviceUnavailable: There is no such device.
        SpecError: `finish` does not fit the rows.
    """

    def __init__(
        self, device: torch.device | str, looks: Sequence[RowLook], max_batch: int, *, small: Mapping[str, torch.dtype],
        depth: int = 2, finish: Finish | None = None, zero_copy: bool = False, engine: Engine[Any] | None = None,
        drawing: Drawing | None = None,
    ) -> None:  # fmt: skip
        self.engine: Engine[Any] = CudaEngine(cuda_device(device)) if engine is None else engine
        self._looks = tuple(looks)
        self._max_batch = max_batch
        self.small = tuple(small)
        self.drawing = drawing
        self._packing = _Packing(small, max_batch, drawing.width if drawing is not None else 0)
        self.delivery = Delivery(self.engine, depth)
        # Tensors made in inference mode cannot be written to outside of it, and the user may leave it.
        with torch.inference_mode(False):
            finishers = {look: Finisher(finish or Finish(), look, self.engine.device) for look in looks}
            self._views = [(look, finishers[look]) for look in looks for _ in range(look.views)]
            self._allocate(self.delivery.slots)
        self._lends = zero_copy and all(finisher.is_plain for _, finisher in self._views)
        self._pid = os.getpid()
        self._end = weakref.finalize(self, _retire, self._pid, self.engine, self._buffers, self.delivery, self._staging)

    def _allocate(self, slots: int) -> None:
        n = self._max_batch
        self._rows = [
            [self.engine.buffer(n * look.nbytes).view(look.dtype).view(n, *look.shape) for look, _ in self._views]
            for _ in range(slots)
        ]
        self._blocks = [self.engine.buffer(self._packing.nbytes) for _ in range(slots)]
        self._buffers = [*(rows for views in self._rows for rows in views), *self._blocks]
        self._staging = [self.engine.staging(self._packing.nbytes) for _ in range(slots)]
        self._counts = [0] * slots

    def submit(
        self, key: int, dense: Sequence[Sequence[torch.Tensor]], small: Mapping[str, Sequence[torch.Tensor]]
    ) -> None:
        """Starts the copy of one batch. The dense rows must not change until `delivery.poll` returns `key`.

        `dense` has for each look and view the stored rows ``(n_i, *look.shape)``, in order; several parts if the batch
        wraps around its ring or lies in two. A batch may be empty. `small` has for each small field its parts
        ``(n_i,)``, which are copied before this returns.

        Raises:
            RuntimeError: No room, or closed. After any other error only :meth:`close` may be called.
        """
        n = sum(len(part) for part in [*dense, *small.values()][0])

        def issue(slot: int) -> None:
            self._counts[slot] = n
            if n == 0:
                return
            for rows, parts in zip(self._rows[slot], dense, strict=True):
                begin = 0
                for part in parts:
                    self.engine.copy(rows[begin : begin + len(part)], part)
                    begin += len(part)
            if self._packing.nbytes:
                staged = self._packing.views(self._staging[slot], n)
                for name, target in staged.items():
                    torch.cat(list(small[name]), out=target)
                self.engine.copy(self._blocks[slot], self._staging[slot])

        self.delivery.submit(key, issue)

    def take(self, waited_ns: int = 0) -> Taken:
        """Hands out the oldest submitted batch without blocking the host; as `Delivery.take`, also in errors."""
        key, slot = self.delivery.take(waited_ns)
        n = self._counts[slot]
        block = self._blocks[slot]
        arrived = [rows[:n] for rows in self._rows[slot]]
        if self._lends:
            seen = [look.view(rows) for (look, _), rows in zip(self._views, arrived, strict=True)]
            return Taken(key, {**self._by_column(seen), **self._packing.views(block, n)})
        batches, fresh = [finisher.empty(n) for _, finisher in self._views], torch.empty_like(block)
        small = self._packing.views(fresh, n)
        drawn: Sequence[torch.Tensor | None] = [None] * len(batches)
        known = drawn
        if self.drawing is not None:
            numbers = small.pop(DRAWN)
            drawn, stored = self.drawing.split(numbers), small
            # A clone, because the staging may be written again before an engine runs `finish`.
            known = self.drawing.split(self._packing.views(self._staging[slot], n)[DRAWN].clone())
            small = {**small, **self.drawing.unwritten(small)}

        def finish() -> None:
            fresh.copy_(block)
            for (_, finisher), batch, rows, part, same in zip(self._views, batches, arrived, drawn, known, strict=True):
                finisher.fill(batch, [rows], part, same)
            if self.drawing is not None:
                for name, soft in self.drawing.softened(stored, numbers).items():
                    small[name].copy_(soft)

        self.engine.launch(finish)
        self.delivery.read()
        return Taken(key, {**self._by_column(batches), **small})

    def _by_column(self, batches: Sequence[torch.Tensor]) -> dict[str, Any]:
        left = iter(batches)
        return {look.name: look.together([next(left) for _ in range(look.views)]) for look in self._looks}

    def reset(self) -> bool:
        """Drains and empties it, so that it can take rows of another ring.

        Returns:
            False if an error has cost a slot: it is closed then, and the caller makes another.
        """
        self.delivery.drain()
        self.delivery.discard()
        self.delivery.ask()
        if self.delivery.room == self.delivery.slots == len(self._staging):
            return True
        self.close()
        return False

    def close(self) -> list[int]:
        """Drains, and frees the device memory; returns what `Delivery.drain` does. Idempotent; a no-op in a fork.

        Raises:
            RuntimeError: The CUDA context is broken; nothing reads host rows any more in this case, either.
        """
        try:
            return self.delivery.close() if os.getpid() == self._pid else []
        finally:
            self._end()
            self._rows, self._blocks, self._buffers, self._staging = [], [], [], []


_of_parents: list[object] = []
"""Objects that a forked child keeps alive, because destroying events, streams or page-locked memory calls CUDA."""


def _retire(
    pid: int, engine: Engine[Any], buffers: list[torch.Tensor], delivery: Delivery[Any], staging: list[torch.Tensor]
) -> None:
    """Ends a copier of process `pid`; also runs when it is dropped without `close`."""
    if os.getpid() != pid:
        _of_parents.append((engine, buffers, delivery, staging))
        return
    delivery.close()
    for buffer in buffers:
        engine.retire(buffer)
