"""A batch maker turns ready rows into the training loop's tensors, one batch per step: on the host, or on a device.

Both kinds release rows as early as possible. On the host it copies rows to fresh tensors and releases them at once, or
lends views and releases them at the next step. On a device it lets `prepclient.device` copy ahead on a side stream
and releases rows when their copy has completed.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from prepclient.batchops import Drawing
from prepclient.blocks import HostBlocks
from prepclient.device import DRAWN, DeviceCopier
from prepclient.engine import Engine
from prepclient.feed import Feed, Until
from prepclient.finish import Finish, Finisher, drawing_of
from prepclient.rowlook import RowLook
from prepclient.rows import MappedRing
from prepclient.session import Session
from prepclient.spec import Spec
from prepclient.steps import VALID, BatchMaker, Copied, Step, Trim, valid_rows
from prepserver.pipeline.batches import Batch
from prepserver.protocol.layout import RingLayout

_POLL_S = 0.0005  # while copies are under way, because the daemon may need their rows
_BUSY_POLL_S = 0.005  # while the device is busy; the measured wait is this precise


class _Column(NamedTuple):
    """A column with more than one number per row: its layout, its last computation, and memory for its batches."""

    look: RowLook
    finisher: Finisher
    blocks: HostBlocks

    @classmethod
    def of(cls, look: RowLook, finish: Finish, max_batch: int) -> _Column:
        finisher = Finisher(finish, look, torch.device("cpu"))
        return cls(look, finisher, HostBlocks(finisher.nbytes(max_batch), of_batch=look.views))


class _Ahead(NamedTuple):
    """A batch before its rows are ready."""

    fields: dict[str, Any]  # tensors of its columns, by name
    unmade: list[tuple[Finisher, list[torch.Tensor], torch.Tensor]]  # what computes them, from which rows, into what
    read_scalars: Callable[[], dict[str, torch.Tensor]]


class HostBatchMaker:
    """Tensors in host memory; with `zero_copy`, read-only views of the ring that are valid until the next step."""

    def __init__(
        self, session: Session, feed: Feed, looks: Sequence[RowLook], finish: Finish, max_batch: int, *,
        zero_copy: bool, trims: Mapping[str, str], drawing: Drawing | None,
    ) -> None:  # fmt: skip
        self._session = session
        self._drawing = drawing
        self._feed = feed
        self._trim = Trim(trims)
        self._columns = [_Column.of(look, finish, max_batch) for look in looks]
        self._lends = zero_copy and all(column.finisher.is_plain for column in self._columns)
        self._lent: Batch | None = None

    def step(self, timeout_s: float) -> Step:
        """See `BatchMaker`."""
        session, since_ns = self._session, time.monotonic_ns()
        self._return_lent()
        wait_ns = 0
        rows, batch = self._feed.rows, session.upcoming
        # ORDER: prepared before the wait, because the first use of torch after a long sleep takes a while.
        ahead, links = self._ahead(batch), rows.links[:]
        if session.next_ready() is None:
            began_ns = time.monotonic_ns()
            self._feed.wait(session, timeout_s, Until(lambda: session.next_ready() is not None))
            wait_ns = time.monotonic_ns() - began_ns
            if rows.links != links:  # the job has moved to another ring
                ahead = self._ahead(batch)
        ready_ns = time.monotonic_ns()
        session.pick_up()
        scalars = ahead.read_scalars()
        drawn: Iterator[torch.Tensor | None] = itertools.repeat(None)
        if self._drawing is not None:
            numbers = self._drawing(batch.start, session.line.n, scalars)
            drawn = iter(self._drawing.split(numbers))
            scalars |= self._drawing.softened(scalars, numbers)
        for (finisher, parts, made), its_numbers in zip(ahead.unmade, drawn, strict=False):
            finisher.fill(made, parts, its_numbers)
        fields = ahead.fields
        fields |= scalars
        self._trim.look(batch, scalars)
        self._trim.cut(batch, fields)
        _, bad, line = session.offer()
        if self._lends:
            self._lent = batch
        elif session.give_back(batch.start):
            self._feed.release(session)
        now_ns = time.monotonic_ns()
        copied = Copied(batch.start, ready_ns, now_ns)
        return Step(batch, bad, line, fields, ready_ns, wait_ns, now_ns - since_ns - wait_ns, copied=(copied,))

    def _ahead(self, batch: Batch) -> _Ahead:
        rows = self._feed.rows
        fields: dict[str, Any] = {}
        unmade: list[tuple[Finisher, list[torch.Tensor], torch.Tensor]] = []
        pieces = iter(rows.parts(batch.start, batch.stop))
        for look, finisher, blocks in self._columns:
            views: list[torch.Tensor] = []
            for parts in itertools.islice(pieces, look.views):
                # A batch that wraps is copied if the ring is not mapped twice; few do.
                if self._lends and len(parts) == 1:
                    views.append(look.view(parts[0]))
                else:
                    views.append(finisher.empty(batch.stop - batch.start, blocks.take()))
                    unmade.append((finisher, parts, views[-1]))
            fields[look.name] = look.together(views)
        return _Ahead(fields, unmade, rows.scalars_later(batch.start, batch.stop))

    def _return_lent(self) -> None:
        if self._lent is not None and self._session.give_back(self._lent.start):
            self._feed.release(self._session)
        self._lent = None

    def close(self) -> None:
        """See `BatchMaker`."""
        self._return_lent()


class CudaBatchMaker:
    """Tensors on a CUDA device, copied ahead of the training loop; the feed's rings are page-locked."""

    def __init__(self, session: Session, feed: Feed, copier: DeviceCopier, trims: Mapping[str, str]) -> None:
        self._trim = Trim(trims)
        self._session = session
        self._feed = feed
        self._copier = copier
        self._asked_ns: deque[int] = deque()  # when the copies under way were submitted, oldest first
        self._copied: list[Copied] = []
        self._lock()

    def _lock(self) -> None:
        for link in self._feed.rows.links:
            link.rows.lock()

    def step(self, timeout_s: float) -> Step:
        """See `BatchMaker`."""
        since_ns = time.monotonic_ns()
        self._lock()
        self._take_back()
        self._copier.delivery.ask()
        self._feed.poll(self._session)
        self._submit()
        wait_ns = 0
        if not self._copier.delivery.waiting:
            wait_ns = self._wait(timeout_s)
            self._submit()
        ready_ns = time.monotonic_ns()
        taken = self._copier.take(wait_ns)
        batch, bad, line = self._session.offer()
        self._trim.cut(batch, taken.fields)
        # Two parts remain after the wait for rows. `copy_ns` is how long late copies held up the device; events report
        # it a few steps later. The rest is the device's work on earlier steps, for which the host, running ahead, may
        # have waited anywhere.
        copy_ns = self._copier.delivery.late_ns()
        held_ns = time.monotonic_ns() - since_ns - wait_ns
        copied, self._copied = self._copied, []
        return Step(batch, bad, line, taken.fields, ready_ns, wait_ns, copy_ns, held_ns - copy_ns, copied)

    def _wait(self, timeout_s: float) -> int:
        """Waits for the next batch's rows; returns for how many nanoseconds the device was idle meanwhile.

        The host runs ahead, so missing rows hold up the loop only once the device has finished all earlier steps.
        """
        idle_since_ns: int | None = None

        def is_ready() -> bool:
            nonlocal idle_since_ns
            self._take_back()
            if idle_since_ns is None and self._copier.delivery.caught_up:
                idle_since_ns = time.monotonic_ns()
            return self._session.next_ready() is not None

        def pace_s() -> float | None:
            if self._copier.delivery.travelling:
                return _POLL_S
            return _BUSY_POLL_S if idle_since_ns is None else None

        self._feed.wait(self._session, timeout_s, Until(is_ready, pace_s, lambda: idle_since_ns is not None))
        return 0 if idle_since_ns is None else time.monotonic_ns() - idle_since_ns

    def _submit(self) -> None:
        rows = self._feed.rows
        while self._copier.delivery.room and (batch := self._session.next_ready()) is not None:
            scalars = rows.scalars(batch.start, batch.stop)
            self._trim.look(batch, scalars)
            small = {name: [column] for name, column in scalars.items()}
            if self._copier.drawing is not None:
                small[DRAWN] = [self._copier.drawing(batch.start, self._session.line.n, scalars)]
            if VALID in self._copier.small:
                small[VALID] = [valid_rows(batch, self._session.bad_of(batch))]
            self._asked_ns.append(time.monotonic_ns())
            self._copier.submit(batch.start, rows.parts(batch.start, batch.stop), small)
            self._session.pick_up()

    def _take_back(self) -> None:
        freed = self._copier.delivery.poll()
        now_ns = time.monotonic_ns()
        self._copied += [Copied(start, self._asked_ns.popleft(), now_ns) for start in freed]
        moved = [self._session.give_back(start) for start in freed]
        if any(moved):
            self._feed.release(self._session)

    def close(self) -> None:
        """See `BatchMaker`."""
        # ORDER: no copy may read the ring when its feed ends the page-lock.
        self._copier.delivery.drain()


class BatchMakers:
    """Makes the batch maker of each attachment of a client."""

    def __init__(
        self, spec: Spec, device: torch.device, looks: Sequence[RowLook], finish: Finish, *, zero_copy: bool,
        has_valid: bool,
    ) -> None:  # fmt: skip
        self._drawing = drawing_of(spec.seed, looks, finish, spec.pipeline.first_view)
        # dtypes, in a batch, of the columns that `looks` describe
        self.dtypes = [Finisher(finish, look, torch.device("cpu")).dtype for look in looks]
        self.device = device
        self.engine: Engine[Any] | None = None  # None for CUDA's
        self._looks = looks
        self._finish = finish
        self._zero_copy = zero_copy
        self._trims = spec.pipeline.trims
        self._max_batch = spec.shape.batch_size  # no batch is larger
        self._small = {field.name: getattr(torch, field.dtype) for field in spec.pipeline.fields if not field.shape}
        if has_valid:
            self._small[VALID] = torch.bool
        self._copier: DeviceCopier | None = None

    def map_rows(self) -> Callable[[int, RingLayout], MappedRing] | None:
        """What maps rings for the device, None for the CPU; raises `DeviceUnavailable` if there is no such device."""
        if self.device.type == "cpu":
            return None
        if self._copier is None or not self._copier.reset():
            self._copier = DeviceCopier(
                self.device, self._looks, self._max_batch, finish=self._finish, small=self._small,
                zero_copy=self._zero_copy, engine=self.engine, drawing=self._drawing,
            )  # fmt: skip
        return partial(MappedRing.map_pinned, driver=self._copier.engine.pin_driver())

    def make(self, session: Session, feed: Feed) -> BatchMaker:
        """The one of a new attachment. Call it after `map_rows`, once the previous one is closed."""
        if self._copier is not None:
            return CudaBatchMaker(session, feed, self._copier, self._trims)
        return HostBatchMaker(
            session, feed, self._looks, self._finish, self._max_batch, zero_copy=self._zero_copy, trims=self._trims,
            drawing=self._drawing,
        )  # fmt: skip

    def close(self) -> None:
        """Frees the device memory. Idempotent."""
        copier, self._copier = self._copier, None
        if copier is not None:
            copier.close()
