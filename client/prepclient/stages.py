"""From ready rows to the tensors that the training loop gets: on the host, or by way of a device.

Both stages hold rows only as long as they must. The host stage hands out fresh tensors and gives rows back at
once, or lends views and gives them back at the next step. The device stage (`prepclient.device`) copies ahead
on a side stream and gives rows back when a copy has completed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from prepclient.blocks import HostBlocks
from prepclient.chain import Numbers
from prepclient.device import DeviceStage
from prepclient.feed import Feed
from prepclient.finish import Finish, Finisher, RowLook
from prepclient.session import Bad, Session
from prepclient.spec import VALID
from prepserver.pipeline.batches import Batch, BatchLine

_POLL_S = 0.0005  # while copies are under way, whose rows the daemon may be waiting for
_BUSY_POLL_S = 0.005  # while the device still works: how exactly the end of that is known


class Step(NamedTuple):
    """A batch in the training loop's hands.

    Attributes:
        batch: Its rows.
        bad: Those that hold a replacement.
        line: Stands behind it, for `Session.handed`.
        fields: Each column's tensor, by its name; of several views a tuple of tensors. From a device also ``valid``,
            where its stage has that field.
        wait_ns: How long missing rows held up the training loop.
    """

    batch: Batch
    bad: list[Bad]
    line: BatchLine
    fields: dict[str, Any]
    wait_ns: int


class Stage(Protocol):
    """How a session's rows become tensors."""

    def step(self, timeout_s: float) -> Step:
        """The next batch, which the caller then enters into `Session.handed`.

        After any exception only `close` is left.

        Raises:
            PrepClientError: It will not come, or did not within `timeout_s`.
        """

    def close(self) -> None:
        """Lets go of all rows: after this, the ring may be unmapped."""


def valid_rows(batch: Batch, bad: Iterable[Bad]) -> torch.Tensor:
    """Of each row of a batch, whether it is the sample itself and no replacement."""
    valid = torch.ones(batch.stop - batch.start, dtype=torch.bool, device="cpu")
    for one in bad:
        valid[one.position - batch.start] = False
    return valid


class _Column(NamedTuple):
    """A column of more than one number a row.

    Attributes:
        look: How its rows look.
        finisher: What is computed on top.
        blocks: Memory for its batches.
    """

    look: RowLook
    finisher: Finisher
    blocks: HostBlocks

    @classmethod
    def of(cls, look: RowLook, finish: Finish, max_batch: int) -> _Column:
        finisher = Finisher(finish, look, torch.device("cpu"))
        return cls(look, finisher, HostBlocks(finisher.nbytes(max_batch), of_batch=look.views))


@dataclass(frozen=True, slots=True)
class _View:
    """One view of a column in a batch that is to come.

    Attributes:
        column: Which.
        parts: Where its rows lie.
        batch: What the training loop gets: a view of them, or memory to copy them to. None where a view is to be
            lent and they lie in pieces.
    """

    column: _Column
    parts: list[torch.Tensor]
    batch: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What can be made of a batch before its rows are there.

    Attributes:
        batch: Which.
        rings: How many rings there had been by then.
        views: Its rows of more than one number, for each column and view.
        small: Its other columns.
    """

    batch: Batch
    rings: int
    views: list[_View]
    small: dict[str, Numbers]


class HostStage:
    """Tensors in host memory.

    Args:
        session: Whose batches.
        feed: Whose rows.
        looks: How the rows look, for each column of more than one number a row.
        finish: What is computed on top of images.
        max_batch: Most rows in one batch.
        zero_copy: Lend read-only views of the ring, valid until the next step, instead of fresh tensors.
    """

    def __init__(
        self,
        session: Session,
        feed: Feed,
        looks: Sequence[RowLook],
        finish: Finish,
        max_batch: int,
        *,
        zero_copy: bool,
    ) -> None:
        self._session = session
        self._feed = feed
        columns = [_Column.of(look, finish, max_batch) for look in looks]
        self._columns = columns
        self._fields = [column for column in columns for _ in range(column.look.views)]
        self._lends = zero_copy and all(column.finisher.is_plain for column in columns)
        self._lent: Batch | None = None
        self._ahead: _Ahead | None = None
        self._views: deque[dict[str, Any]] = deque()

    def step(self, timeout_s: float) -> Step:
        """See `Stage`."""
        session, rows = self._session, self._feed.rows
        self._return_lent()
        self._ahead = None
        # What can be made before the rows are there is not made after: a process that has slept runs cold. Nor is
        # what was made taken down, which is why it is kept here.
        ahead = self._ahead = self._look_ahead()
        wait_ns = 0
        if session.next_ready() is None:
            began_ns = time.monotonic_ns()
            self._feed.wait(session, timeout_s, self._is_ready)
            wait_ns = time.monotonic_ns() - began_ns
            if (ahead.batch, ahead.rings) != (session.upcoming, rows.rings):
                ahead = self._ahead = self._look_ahead()
        batch = session.stage()
        made = iter([self._made(view) for view in ahead.views])
        fields: dict[str, Any] = {
            column.look.name: column.look.together([next(made) for _ in range(column.look.views)])
            for column in self._columns
        }
        fields |= {name: numbers.fill() for name, numbers in ahead.small.items()}
        _, bad, line = session.offer()
        if self._lends:
            self._lent = batch
            self._views.append(fields)
        elif session.give_back(batch.start):
            self._feed.release(self._session)
        return Step(batch, bad, line, fields, wait_ns)

    def _look_ahead(self) -> _Ahead:
        rows, batch = self._feed.rows, self._session.upcoming
        views = [
            _View(column, parts, self._tensor(column, parts, batch.stop - batch.start))
            for column, parts in zip(self._fields, rows.parts(batch.start, batch.stop), strict=True)
        ]
        return _Ahead(batch, rows.rings, views, rows.scalars(batch.start, batch.stop))

    def _is_ready(self) -> bool:
        if self._session.next_ready() is not None:
            return True
        if self._ahead is not None:
            # Most likely the daemon has said that the batch comes soon: done once in vain, this is quick then.
            for numbers in self._ahead.small.values():
                numbers.fill()
        return False

    def _tensor(self, column: _Column, parts: list[torch.Tensor], count: int) -> torch.Tensor | None:
        if not self._lends:
            return column.finisher.empty(count, column.blocks.take())
        return column.look.view(parts[0]) if len(parts) == 1 else None

    def _made(self, view: _View) -> torch.Tensor:
        if view.batch is None:
            # Where the ring could not be mapped twice, a batch that wraps is put together: one in many.
            return view.column.look.view(torch.cat(view.parts))
        if not self._lends:
            view.column.finisher.fill(view.batch, view.parts)
        return view.batch

    def _return_lent(self) -> None:
        if len(self._views) > 1:
            # Kept so long that the last views of it go now, and not when the training loop gets the next batch.
            self._views.popleft()
        if self._lent is not None and self._session.give_back(self._lent.start):
            self._feed.release(self._session)
        self._lent = None

    def close(self) -> None:
        """See `Stage`."""
        self._return_lent()
        self._views.clear()
        self._ahead = None


class CudaStage:
    """Tensors on a CUDA device, copied ahead of the training loop.

    Args:
        session: Whose batches.
        feed: Whose rows; its rings are page-locked.
        stage: The device's side.
    """

    def __init__(self, session: Session, feed: Feed, stage: DeviceStage) -> None:
        self._session = session
        self._feed = feed
        self._stage = stage
        self._lock()

    def _lock(self) -> None:
        for link in self._feed.rows.links:
            link.rows.lock()

    def step(self, timeout_s: float) -> Step:
        """See `Stage`."""
        self._lock()
        self._take_back()
        self._stage.delivery.ask()
        self._feed.poll(self._session)
        self._submit()
        wait_ns = 0
        if not self._stage.delivery.waiting:
            wait_ns = self._wait(timeout_s)
            self._submit()
        taken = self._stage.take()
        batch, bad, line = self._session.offer()
        return Step(batch, bad, line, taken.fields, wait_ns)

    def _wait(self, timeout_s: float) -> int:
        """Waits for the next batch's rows.

        Returns:
            For how many nanoseconds the device had nothing else to do. The host runs ahead of it: while it works off
            the steps before this one, nobody is held up.
        """
        idle_since_ns: int | None = None

        def is_ready() -> bool:
            nonlocal idle_since_ns
            self._take_back()
            if idle_since_ns is None and self._stage.delivery.caught_up:
                idle_since_ns = time.monotonic_ns()
            return self._session.next_ready() is not None

        def pace_s() -> float | None:
            if self._stage.delivery.travelling:
                return _POLL_S
            return _BUSY_POLL_S if idle_since_ns is None else None

        self._feed.wait(self._session, timeout_s, is_ready, pace_s, lambda: idle_since_ns is not None)
        return 0 if idle_since_ns is None else time.monotonic_ns() - idle_since_ns

    def _submit(self) -> None:
        rows = self._feed.rows
        while self._stage.delivery.room and (batch := self._session.next_ready()) is not None:
            scalars = rows.scalars(batch.start, batch.stop)
            small = {name: [numbers.fill()] for name, numbers in scalars.items()}
            if VALID in self._stage.small:
                small[VALID] = [valid_rows(batch, self._session.bad_of(batch))]
            self._stage.submit(batch.start, rows.parts(batch.start, batch.stop), small)
            self._session.stage()

    def _take_back(self) -> None:
        moved = [self._session.give_back(start) for start in self._stage.delivery.poll()]
        if any(moved):
            self._feed.release(self._session)

    def close(self) -> None:
        """See `Stage`."""
        # ORDER: no copy may read the ring when its feed ends the page-lock.
        self._stage.delivery.drain()
