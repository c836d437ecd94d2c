"""From ready rows to the tensors that the training loop gets: on the host, or by way of a device.

Both stages hold rows only as long as they must. The host stage hands out fresh tensors and gives rows back at
once, or lends views and gives them back at the next step. The device stage (`prepclient.device`) copies ahead
on a side stream and gives rows back when a copy has completed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch

from prepclient.blocks import HostBlocks
from prepclient.chain import RingChain
from prepclient.device import DeviceStage
from prepclient.feed import Feed
from prepclient.finish import Finish, Finisher, RowLook
from prepclient.pinning import HostPin
from prepclient.rows import Rows
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
        self._lends = zero_copy and all(column.finisher.is_plain for column in columns)
        self._lent: Batch | None = None

    def step(self, timeout_s: float) -> Step:
        """See `Stage`."""
        session = self._session
        self._return_lent()
        wait_ns = 0
        if session.next_ready() is None:
            began_ns = time.monotonic_ns()
            self._feed.wait(session, timeout_s, lambda: session.next_ready() is not None)
            wait_ns = time.monotonic_ns() - began_ns
        batch = session.stage()
        rows = self._feed.rows
        parts = iter(rows.parts(batch.start, batch.stop))
        fields: dict[str, Any] = {
            column.look.name: column.look.together([self._made(column, next(parts)) for _ in range(column.look.views)])
            for column in self._columns
        }
        fields |= rows.scalars(batch.start, batch.stop)
        _, bad, line = session.offer()
        if self._lends:
            self._lent = batch
        elif session.give_back(batch.start):
            self._feed.release(session)
        return Step(batch, bad, line, fields, wait_ns)

    def _made(self, column: _Column, parts: list[torch.Tensor]) -> torch.Tensor:
        if self._lends:
            # Where the ring could not be mapped twice, a batch that wraps is put together: one in many.
            return column.look.view(parts[0] if len(parts) == 1 else torch.cat(parts))
        batch = column.finisher.empty(sum(map(len, parts)), column.blocks.take())
        column.finisher.fill(batch, parts)
        return batch

    def _return_lent(self) -> None:
        if self._lent is not None and self._session.give_back(self._lent.start):
            self._feed.release(self._session)
        self._lent = None

    def close(self) -> None:
        """See `Stage`."""
        self._return_lent()


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A page-locked ring."""

    rows: Rows
    pin: HostPin


class CudaStage:
    """Tensors on a CUDA device, copied ahead of the training loop.

    Args:
        session: Whose batches.
        feed: Whose rows; its ring is page-locked.
        stage: The device's side.
    """

    def __init__(
        self,
        session: Session,
        feed: Feed,
        stage: DeviceStage,
    ) -> None:
        self._session = session
        self._feed = feed
        self._stage = stage
        self._driver = stage.pin_driver()
        self._pins: dict[int, _Pinned] = {}
        first = feed.rows.links[0]
        self._rings = first.number + 1  # how many are followed
        try:
            self._rows = RingChain(self._pinned(first.rows))
        except BaseException:
            self.close()
            raise

    def step(self, timeout_s: float) -> Step:
        """See `Stage`."""
        for pinned in self._pins.values():
            pinned.pin.warn_once()
        self._take_back()
        self._stage.advance()
        self._feed.poll(self._session)
        self._submit()
        wait_ns = 0
        if not self._stage.waiting:
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
            if idle_since_ns is None and self._stage.caught_up:
                idle_since_ns = time.monotonic_ns()
            return self._session.next_ready() is not None

        def pace_s() -> float | None:
            if self._stage.travelling:
                return _POLL_S
            return _BUSY_POLL_S if idle_since_ns is None else None

        self._feed.wait(self._session, timeout_s, is_ready, pace_s, lambda: idle_since_ns is not None)
        return 0 if idle_since_ns is None else time.monotonic_ns() - idle_since_ns

    def _pinned(self, shown: Rows) -> Rows:
        """A second mapping of a ring, to write, which is page-locked from now on."""
        rows, mapping = self._feed.map_writable(shown)
        pin = HostPin(
            mapping.address, mapping.nbytes, self._driver, keep=mapping, cuts=rows.cut_bytes,
            absent_from=mapping.absent_from,
        )  # fmt: skip
        self._pins[id(rows)] = _Pinned(rows, pin)
        pin.start()
        return rows

    def _follow(self) -> None:
        """Does for this chain what has happened to the feed's: a ring more, or one less."""
        # By their numbers: the feed may have let go of a ring that this chain still begins with, and a ring may begin
        # where another one did that was never reached.
        for link in self._feed.rows.links:
            if link.number >= self._rings:
                self._unpin(self._rows.add(link.start, self._pinned(link.rows)))
        self._rings = self._feed.rows.rings
        if len(self._rows.links) > 1:
            self._unpin(self._rows.forget_below(self._session.released_upto))

    def _unpin(self, gone: list[Rows]) -> None:
        # Rows go back only when their copies have completed: nothing reads a ring that is let go.
        for rows in gone:
            self._pins.pop(id(rows)).pin.close()

    def _submit(self) -> None:
        self._follow()
        while self._stage.room and (batch := self._session.next_ready()) is not None:
            small = {name: [column] for name, column in self._rows.scalars(batch.start, batch.stop).items()}
            if VALID in self._stage.small:
                small[VALID] = [valid_rows(batch, self._session.bad_of(batch))]
            self._stage.submit(batch.start, self._rows.parts(batch.start, batch.stop), small)
            self._session.stage()

    def _take_back(self) -> None:
        moved = [self._session.give_back(start) for start in self._stage.poll()]
        if any(moved):
            self._feed.release(self._session)

    def close(self) -> None:
        """See `Stage`."""
        # ORDER: no copy may read the ring when its lock goes, and the lock goes before the mapping.
        try:
            self._stage.drain()
        finally:
            for pinned in self._pins.values():
                pinned.pin.close()
            self._pins.clear()
