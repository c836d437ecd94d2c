"""An attachment: it attaches, detaches, keeps its place, and comes back after a restart of its daemon."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from dataclasses import replace
from typing import Any

from prepclient.batch_makers import BatchMakers
from prepclient.checkpoint import place_of
from prepclient.descriptors import check_descriptors
from prepclient.errors import InvalidSpec, NoServer, PrepClientError, ServerGone, SourceChanged
from prepclient.feed import Feed, ListingIdentity, ResumePoint, Service, free_closed_rings
from prepclient.forks import check_copies, check_process, check_trains, is_forked
from prepclient.inline import InlineFeed
from prepclient.places import find_runtime_dir, is_served, places
from prepclient.private import private_daemon, running_daemon
from prepclient.progress import ScanProgress
from prepclient.rows import MappedRing
from prepclient.served import ServedFeed
from prepclient.session import Handed, Session, Totals
from prepclient.spec import Spec
from prepclient.steps import BatchMaker, Step
from prepclient.threads import in_one_thread

log = logging.getLogger("prepclient")

_RETRY_FIRST_S = 0.02  # a daemon that starts listens within a second or two
_RETRY_MOST_S = 0.2  # asking costs one connect


class Attachment:
    """A client's connection to a stream of rows, which it can leave and come back to.

    Each time it attaches, it makes a new session, feed and batch maker.
    """

    def __init__(self, spec: Spec, service: Service, makers: BatchMakers) -> None:
        self.spec = spec
        self.service = service
        self._makers = makers
        self.session: Session | None = None  # None while not attached
        self.feed: Feed | None = None  # None while not attached
        self._maker: BatchMaker | None = None
        self.start = ResumePoint()  # where the next attachment begins
        self._goes_on_at = -1  # how many batches were handed out when `goes_on` was set
        self.began: int | None = None  # ``start`` of `PrepClient.stats`
        self.listing: ListingIdentity | None = None  # the listing whose samples `start` counts
        self._pid = os.getpid()  # the process that attached
        self._private = running_daemon(service.workers, service.plugins, spec.source.stores)
        self._was_served = False
        self._leave: weakref.finalize[[int, list[Any]], Attachment] | None = None  # runs without a `close`, too
        self._begun: Handed | None = None  # where the last step began; if `handed` is still this one, the step failed
        self._past = Totals()  # totals of earlier attachments

    @property
    def totals(self) -> Totals:
        """What the training loop has received in total."""
        return self.session.handed.totals if self.session is not None else self._past

    @property
    def goes_on(self) -> bool:
        """Whether the next `iter` continues the epoch instead of beginning another one.

        The next batch resets it, and `iter` does not, because some frameworks call `iter` only to test it.
        """
        return self._goes_on_at == self.totals.batches

    @goes_on.setter
    def goes_on(self, value: bool) -> None:
        self._goes_on_at = self.totals.batches if value else -1

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to."""
        return self.session.epoch if self.session is not None else self.start.epoch

    @property
    def rank(self) -> int:
        """This rank of the job."""
        return self.spec.shape.shard.index if self.spec.is_apart else self.spec.shape.rank

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.spec.shape.world_size

    @property
    def place(self) -> ResumePoint:
        """Where the next attachment would begin: the first batch not handed out."""
        return self.start if self.session is None else place_of(self.session)

    def check_process(self) -> None:
        """See `forks.check_process`."""
        if self.session is not None:
            check_process(self._pid)

    # -- attach and detach ------------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether it has handed out a part of an epoch since it attached."""
        session = self.session
        return session is not None and self.totals.batches != self._past.batches and not session.line.at_epoch_start

    def spec_of_group(self) -> Spec | None:
        """The spec with the ranks of a process group that is newer than the client, if any; errors as `PrepClient`."""
        is_alone = self.world_size == 1 and not self.spec.is_apart
        now = self.spec.at_present(is_apart=self._private is not None) if is_alone else self.spec
        return None if now is self.spec else now

    def take_ranks(self, spec: Spec) -> None:
        """Detaches, so that the client attaches again as one of several ranks.

        The next attachment begins at the same position if the epoch `goes_on`, else at the epoch's beginning.
        What this process has read alone does not count: other ranks may not have read it.
        """
        at, position = self.place, None
        if self.goes_on:
            position = at.position if at.checkpoint is None else at.checkpoint  # of all ranks
        self.start = ResumePoint(at.epoch) if position is None else ResumePoint(at.epoch, position, at.epoch_start)
        self.detach()
        self.spec = spec  # after that: a client with several ranks keeps them

    def come(self) -> Session:
        """Attaches unless attached; raises `PrepClientError` if it cannot."""
        if self.session is None:
            try:
                self._attach()
            except (NoServer, ServerGone) as e:
                if self._was_served:  # the daemon may be restarting
                    self._come_back(e)
                else:
                    self._await_start(e)
        assert self.session is not None
        return self.session

    def _await_start(self, missing: NoServer | ServerGone) -> None:
        """Waits up to `connect_s` for a daemon that is starting, if `missing` says that none was there."""
        if not isinstance(missing.__cause__, FileNotFoundError | ConnectionError):
            raise missing
        wait_s, searched = self.service.connect_s, " or ".join(map(str, places(self.service.runtime_dir)))
        if wait_s > 0:
            log.warning("waiting up to %g s (connect_s) for a prepserver daemon to start in %s", wait_s, searched)
        try:
            self._attach_within(wait_s)
        except NoServer as e:
            # `from None`: sixty lines about each failed attempt would hide this message.
            raise NoServer(f"{e}. None started in {searched} within connect_s = {wait_s:g}") from None

    def _come_back(self, gone: PrepClientError) -> None:
        """Waits until the daemon is back, and attaches at the next batch; raises `ServerGone` after `reconnect_s`."""
        wait_s = self.service.reconnect_s
        if wait_s <= 0:
            raise gone
        log.warning("%s. Waiting up to %g s (reconnect_s) for it to come back", str(gone), wait_s)
        began_s = time.monotonic()
        try:
            self._attach_within(wait_s)
        except (NoServer, ServerGone):
            raise ServerGone(f"{gone}; none came back within reconnect_s = {wait_s:g}") from None
        log.warning("the daemon is back after %.1f s; continuing with the next batch", time.monotonic() - began_s)

    def _attach_within(self, wait_s: float) -> None:
        """Attaches as soon as a daemon listens; raises `NoServer` or `ServerGone` if none does within `wait_s`."""
        deadline_s = time.monotonic() + wait_s
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                return self._attach()
            except (NoServer, ServerGone):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise
            time.sleep(min(pause_s, left_s))
            pause_s = min(_RETRY_MOST_S, 1.5 * pause_s)

    def _attach(self) -> None:
        check_trains()
        check_copies(self._pid)
        start = replace(self.start, first=self.service.joining.first)
        self._pid = os.getpid()
        try:
            self.feed = self._make_feed(start)
        except InvalidSpec as e:
            if e.field == "position" and self.listing is not None:  # the listing is another one, with fewer samples
                raise self._changed(self.spec.source.location, f"it had {self.listing.samples} samples; {e}") from e
            raise
        parts: list[Any] = [self.feed]
        self._leave = weakref.finalize(self, _leave, os.getpid(), parts)
        try:
            self._check_listing(self.feed.listing)
            samples, epoch_start = self.feed.listing.samples, self.feed.epoch_start
            self._note_start(start, epoch_start, samples)
            self.session = session = Session(
                samples, start.epoch, epoch_start, self.feed.position, self.spec.shape, start.rounds, self._past
            )
            self._maker = self._makers.make(session, self.feed)
            parts.append(self._maker)
            self.feed.attach(session)
            self._was_served = not self.service.inline
        except ValueError as e:
            self.detach()
            raise InvalidSpec(str(e)) from e
        except BaseException:
            self.detach()
            raise

    def _make_feed(self, start: ResumePoint) -> Feed:
        check_descriptors()
        free_closed_rings()
        service, map_rows = self.service, self._makers.map_rows()
        with contextlib.closing(ScanProgress(self.spec.source.location)) as progress:
            if service.inline:
                return InlineFeed(self.spec, start, progress, map_rows, service.plugins)
            if service.workers is not None and self.find_shard():
                if self._private is None:
                    self._tell_of_ranks()
                self._private = private_daemon(service.workers, service.plugins, self.spec.source.stores)
                runtime_dir = self._private.runtime_dir
            else:
                runtime_dir = find_runtime_dir(service.runtime_dir)
                service.refuse_plugins(f"One runs in {runtime_dir}")
            return ServedFeed(runtime_dir, self.spec, start, service, progress, map_rows or MappedRing.map)

    def find_shard(self) -> bool:
        """Whether this rank has a private daemon, or starts one: then it reads a shard, as no other rank uses that."""
        service = self.service
        if service.workers is None or (self._private is None and is_served(service.runtime_dir)):
            return False
        if self.session is None:
            self.spec = self.spec.at_present(is_apart=True)
        return True

    def _tell_of_ranks(self) -> None:
        """Tells once what the private daemon of one process means for a job of several ranks."""
        shape, local = self.spec.shape, self.spec.local_ranks
        ranks = shape.world_size if local is None else local[1]
        if self.spec.is_apart:
            log.info(
                "workers = %s: this rank has a daemon of its own, and reads shard %d of %d",
                self.service.workers, shape.shard.index, shape.shard.count,
            )  # fmt: skip
        elif ranks > 1:
            log.warning(
                "workers = %s: the private daemon of this process waits for all %d ranks of the job on this machine. "
                "If they are other processes, no batch comes: start one daemon for all of them, `prepserver start -d`",
                self.service.workers, ranks,
            )  # fmt: skip

    def _note_start(self, start: ResumePoint, epoch_start: int, samples: int) -> None:
        began = epoch_start - start.epoch * self.spec.shape.shard.positions(samples)
        if began != self.began:
            log.info(
                "epoch %d begins at position %d; Joining(start=%d) gives the same order again",
                start.epoch, epoch_start, began,
            )  # fmt: skip
        self.began = began

    def _check_listing(self, now: ListingIdentity) -> None:
        """Raises `SourceChanged` if `start` is a position in another listing, whose samples it counts."""
        was, place, start = self.listing, self.spec.source.location, self.start
        if was is not None and not was.agrees(now):
            numbers = was.difference(now)
            if start.position is not None:
                file = "a file of an op, or " if self.spec.pipeline.files else ""
                what = f"{file}the code of a plug-in{',' * bool(file)}" if was.code != now.code else place
                raise self._changed(what, numbers)
            log.warning("%s has changed: %s; epoch %d reads the new samples", place, numbers, start.epoch)
        self.listing = now

    def _changed(self, what: str, numbers: str) -> SourceChanged:
        epoch = self.start.epoch
        return SourceChanged(
            f"{what} has changed since epoch {epoch} of this job began, or is another one: {numbers}. To resume "
            f"at the same place, restore it; to use the new one, call set_epoch({epoch + 1}), or leave out "
            f"load_state_dict and call set_epoch({epoch}) to begin epoch {epoch} again"
        )

    def detach(self) -> None:
        """Detaches; the next attachment begins at `start`, which the caller sets."""
        self._past = self.totals
        self.session = self._maker = self.feed = None
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def close(self) -> None:
        """Detaches, frees everything, and keeps its place."""
        self.start = self.place
        self.detach()
        self._makers.close()
        self._private = None  # the daemon ends with the last client that holds it
        self._was_served = False

    # -- one step ---------------------------------------------------------------------------------------

    def step(self) -> Step:
        """The next batch; the caller hands it out by replacing ``session.handed``.

        If an exception comes before that, the next step attaches again and gives the same batch.
        """
        self.check_process()
        if self.session is not None and self.session.handed is self._begun:
            self.start = self.place
            self.detach()
        self.come()  # needed after an error, too
        return in_one_thread(self._step) if is_forked() else self._step()

    def _step(self) -> Step:
        while True:
            assert self._maker is not None
            assert self.session is not None
            self._begun = self.session.handed
            try:
                return self._maker.step(self.service.timeout_s)
            except ServerGone as gone:
                self._detach_in_epoch()
                self._come_back(gone)
            except PrepClientError:
                self._detach_in_epoch()
                raise

    def _detach_in_epoch(self) -> None:
        """Detaches after an error; the next use attaches at the same batch."""
        self.start = self.place
        self.goes_on = self.goes_on or self.session is not None
        self.detach()


def _leave(pid: int, parts: list[Any]) -> None:
    """Closes the batch maker, if there is one, and then the feed. A forked child does not touch its parent's device."""
    with contextlib.ExitStack() as closing:
        for part in parts if os.getpid() == pid else parts[:1]:
            closing.callback(part.close)
