"""The feed over a daemon's ring: it attaches, reads announcements, and gives rows back."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepclient.chain import RingChain
from prepclient.errors import BatchTimeout, MemoryRefused, PrepClientError, ProtocolViolation, ServerBusy
from prepclient.feed import Feed, ListingIdentity, ResumePoint, Service, Until
from prepclient.rows import MappedRing
from prepclient.session import Session, Totals
from prepclient.spec import Spec
from prepclient.transport import Connection, ask, ask_status, unexpected
from prepserver.memory.errors import SegmentError
from prepserver.protocol.layout import RingLayout, ring_fields
from prepserver.protocol.messages import SYNC_AFTER_S, Attach, Moved, Ready, Release, Sync, Welcome
from prepserver.protocol.schema import ProtocolError

log = logging.getLogger("prepclient")

_STOPPED_S = 5.0
"""If `wait` looks at the clock after so long, this process was stopped (SIGSTOP, `docker pause`), perhaps with the
daemon: that time does not count. Otherwise it looks after `SYNC_AFTER_S` at the latest."""

_SAY_AFTER_S = 30.0
_SAY_JOINING_AFTER_S = 1.0
_LEAST_WAIT_S = 0.0005
_BUSY_FIRST_S = 0.1
_BUSY_MOST_S = 2.0
_STATUS_S = 1.0


def _admitted(
    runtime_dir: Path, attach: Attach, timeout_s: float, on_scanning: Callable[[int], None]
) -> tuple[Connection, Welcome]:
    deadline_s = time.monotonic() + timeout_s
    pause_s = _BUSY_FIRST_S
    while True:
        try:
            connection, answer = ask(runtime_dir, attach, timeout_s, on_scanning)
            if isinstance(answer, Welcome):
                return connection, answer
            connection.close()
            raise unexpected(answer)
        except ServerBusy as e:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise ServerBusy(f"{e}; it was still busy after timeout_s = {timeout_s:g}") from None
            if pause_s == _BUSY_FIRST_S:
                log.warning("%s. Trying again for up to %g s (timeout_s)", str(e), timeout_s)
        # Random, so that refused clients do not retry in step.
        time.sleep(min(left_s, pause_s * random.uniform(0.5, 1.0)))
        pause_s = min(_BUSY_MOST_S, 1.5 * pause_s)


def _question(spec: Spec, start: ResumePoint, service: Service) -> Attach:
    shape = spec.shape
    return Attach(
        job=spec.job[:256], source=spec.source.to_wire(), pipeline=spec.pipeline.to_wire(),
        shuffle=spec.shuffle, seed=spec.seed, batching=shape.batching,
        batch_size=shape.batch_size, drop_last=shape.drop_last, prefetch=service.prefetch, cache=service.cache,
        rank=shape.rank, world_size=shape.world_size, local_ranks=spec.local_ranks,
        num_shards=shape.shard.count, shard_index=shape.shard.index,
        epoch=start.epoch, position=start.position, epoch_start=start.epoch_start, rounds=start.rounds,
        first=start.first, join_wait_s=service.joining.longest_wait_s(service.timeout_s), lag=service.joining.lag,
    )  # fmt: skip


class ServedFeed(Feed):
    """A feed over the ring of the daemon in `runtime_dir`.

    `service` says what else to ask of the daemon, and how long to wait for its answers. While the daemon lists the
    source, `on_scanning` is called with the number of samples found so far.

    Raises:
        PrepClientError: The daemon does not admit this job.
    """

    def __init__(
        self, runtime_dir: Path, spec: Spec, start: ResumePoint, service: Service, on_scanning: Callable[[int], None],
        map_rows: Callable[[int, RingLayout], MappedRing] = MappedRing.map,
    ) -> None:  # fmt: skip
        self._runtime_dir = runtime_dir
        attach = _question(spec, start, service)
        self._connection, welcome = _admitted(runtime_dir, attach, service.timeout_s, on_scanning)
        self._pid = os.getpid()
        self._session: Session | None = None
        self._job_id = welcome.job_id
        self._map_rows = map_rows
        self._end = weakref.finalize(self, self._connection.close)
        self._end.atexit = False  # at exit the kernel closes the connection
        self._fields = ring_fields(spec.pipeline.fields)
        with contextlib.ExitStack() as on_error:
            on_error.callback(self._end)
            try:
                rows = self._map(welcome.ring, welcome.layout)
            except SegmentError as e:
                raise MemoryRefused(f"the daemon's ring cannot be mapped: {e}") from e
            except ProtocolError as e:
                raise ProtocolViolation(f"from the daemon: {e}") from e
            on_error.pop_all()
        self.rows = RingChain(rows)
        self.listing = ListingIdentity(welcome.samples, welcome.content_digest, welcome.source_digest, welcome.code)
        self.num_classes, self.classes = welcome.num_classes, welcome.classes
        self.epoch_start = welcome.epoch_start
        self.position = welcome.position
        self._alone_upto = welcome.alone_upto
        if welcome.ahead > rows.layout.rows:
            log.info("joining a running stream at its next block, which begins in %d rows", welcome.ahead)

    def attach(self, session: Session) -> None:
        """See `Feed`."""
        self._session = session

    def poll(self, session: Session) -> None:
        """See `Feed`."""
        while self._take(session, 0.0):
            pass

    def wait(self, session: Session, timeout_s: float, until: Until) -> None:
        """See `Feed`."""
        if until.is_met():
            return
        began_s = looked_s = time.monotonic()
        sync_s = began_s + SYNC_AFTER_S
        say_s = began_s + _SAY_AFTER_S
        while True:
            now_s = time.monotonic()
            if (stopped_s := now_s - looked_s) > _STOPPED_S:
                began_s, sync_s, say_s = began_s + stopped_s, sync_s + stopped_s, say_s + stopped_s
            looked_s = now_s
            if now_s - began_s > timeout_s:
                raise BatchTimeout(self._what_is_missing(session, timeout_s))
            if self._alone_upto and now_s - began_s > _SAY_JOINING_AFTER_S:
                self._say_joining(session)
            if not until.holds_up():
                sync_s = now_s + SYNC_AFTER_S
            if now_s >= sync_s:
                self._connection.send(Sync(session.released_upto))
                sync_s = now_s + SYNC_AFTER_S
            if now_s >= say_s:
                log.warning("%s", self._what_is_missing(session, now_s - began_s))
                say_s = now_s + _SAY_AFTER_S
            pause_s = min(sync_s, say_s, began_s + timeout_s) - now_s
            pace = until.pace_s()
            self._take(session, max(_LEAST_WAIT_S, pause_s if pace is None else min(pause_s, pace)))
            if until.is_met():
                return

    def _say_joining(self, session: Session) -> None:
        """Warns once that the job waits for the shared stream."""
        if session.ready_upto <= self._alone_upto < session.upcoming.stop:
            log.warning(
                "this job reads a separate stream, and now waits at row %d for the stream that it will share (once; "
                "with Joining(wait_s=0) it would neither wait nor share)", session.ready_upto,
            )  # fmt: skip
            self._alone_upto = 0

    def _take(self, session: Session, timeout_s: float) -> bool:
        match self._connection.receive(timeout_s):
            case None:
                return False
            case Ready(upto, bad):
                session.ready(upto, bad)
            case Moved() as moved:
                self._move(moved)
            case other:
                raise unexpected(other)
        return True

    def _move(self, moved: Moved) -> None:
        try:
            self.rows.add(moved.start, self._map(moved.ring, moved.layout))
        except (SegmentError, ProtocolError) as e:
            raise ProtocolViolation(f"the daemon's new ring cannot be used: {e}") from e

    def _map(self, ring: int, wire: dict[str, Any]) -> MappedRing:
        layout = RingLayout.from_wire(wire)
        if layout.fields != self._fields:
            raise ProtocolError(f"a ring of {layout.fields}; the pipeline makes rows of {self._fields}")
        fd = self._connection.take(ring)
        try:
            return self._map_rows(fd, layout)
        finally:
            os.close(fd)  # the mapping keeps the memory

    def _what_is_missing(self, session: Session, waited_s: float) -> str:
        found = (
            f"no batch for {waited_s:.0f} s, although the daemon in {self._runtime_dir} runs: the stream's rows before "
            f"{session.ready_upto} are ready, and this job needs later ones; "
        )
        if self.about_job(session.handed.totals).get("waits_for") == "ranks":
            return found + (
                "this job waits for its other ranks, which have not attached or take no batches. A client that one "
                "rank uses alone, to evaluate for example, takes sharding=Sharding(rank=0, world_size=1)"
            )
        return found + (
            "`prepserver status` shows whether its workers are busy, and whether this job waits for a slower job"
        )

    def release(self, session: Session) -> None:
        """See `Feed`."""
        totals = session.handed.totals
        self.rows.forget_below(session.released_upto)
        # If a Release cannot be sent now, nothing is lost: the next one covers it.
        self._connection.send(
            Release(session.released_upto, totals.wait_ns, totals.batches, totals.copy_ns, totals.own_ns)
        )

    def about_job(self, totals: Totals, since_ns: int | None = None) -> dict[str, Any]:
        """See `Feed`. Asks the daemon, which takes a few milliseconds."""
        try:
            found = ask_status(self._runtime_dir, _STATUS_S, since_ns)
            job = next((dict(job) for job in found["jobs"] if job["id"] == self._job_id), {})
            return job | ({"chunks": found["chunks"]} if since_ns is not None and job else {})
        except (PrepClientError, LookupError, TypeError, ValueError) as e:
            log.debug("the daemon does not say how this job is doing: %s", e)  # a loop must not fail for statistics
            return {}

    def close(self) -> None:
        """See `Feed`."""
        # In a forked child the connection belongs to the parent, and a Bye would end the parent's job.
        if self._session is not None and os.getpid() == self._pid:
            self._connection.leave(self._session.stands)
        self._session = None
        self._end()
        super().close()
