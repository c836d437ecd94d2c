"""The life of an attachment: it attaches, detaches, keeps its place, and returns after a restart of its daemon."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from dataclasses import replace
from typing import Any

from prepclient.descriptors import check_descriptors
from prepclient.errors import InvalidSpec, NoServer, PrepClientError, ServerGone, SourceChanged
from prepclient.feed import Feed, Listing, Start
from prepclient.forks import check_copies, check_process, resume_threads, stop_threads
from prepclient.inline import InlineFeed
from prepclient.places import candidates, find_runtime_dir, listens
from prepclient.private import PrivateDaemon, private_daemon
from prepclient.progress import ScanProgress
from prepclient.rows import Rows
from prepclient.served import ServedFeed
from prepclient.service import Service
from prepclient.session import Handed, Session, Totals
from prepclient.spec import Spec
from prepclient.stage import Stage, Step
from prepclient.stages import Staging

log = logging.getLogger("prepclient")

_RETRY_FIRST_S = 0.02  # a daemon that starts listens within a second or two
_RETRY_MOST_S = 0.2  # asking costs one connect


class Attachment:
    """A place on a stream of rows; while attached, also a session, its feed and its stage, replaced at each change.

    Args:
        spec: The checked request.
        service: What makes the rows.
        staging: Makes tensors of the rows.

    Attributes:
        session: None while not attached.
        feed: None while not attached.
        start: Where the next attachment begins.
        goes_on: Whether the next loop continues at `start`, even in the middle of an epoch.
        began: ``start`` of `PrepClient.stats`.
        listing: The listing whose samples `start` counts.
        allow_changed: Whether to restart the epoch of `start` if the listing has changed.
    """

    def __init__(self, spec: Spec, service: Service, staging: Staging) -> None:
        self._spec = spec
        self._service = service
        self._staging = staging
        self.session: Session | None = None
        self.feed: Feed | None = None
        self._stage: Stage | None = None
        self.start = Start()
        self.goes_on = False
        self.began: int | None = None
        self.listing: Listing | None = None
        self.allow_changed = False
        self._pid = os.getpid()  # process that attached
        self._private: PrivateDaemon | None = None
        self._was_served = False
        self._leave: weakref.finalize[[int, list[Any]], Attachment] | None = None  # also runs without a `close`
        self._begun: Handed | None = None  # where the last step began; it failed if `handed` is still this
        self._past = Totals()  # of earlier attachments

    @property
    def totals(self) -> Totals:
        """What the training loop has received in total."""
        return self.session.handed.totals if self.session is not None else self._past

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to."""
        return self.session.epoch if self.session is not None else self.start.epoch

    @property
    def place(self) -> Start:
        """Where the next attachment would begin: the first batch not handed out."""
        session = self.session
        if session is None:
            return self.start
        epoch_start, position, rounds = session.place
        return Start(session.epoch, position, epoch_start, rounds, session.position)

    @property
    def plugins(self) -> tuple[str, ...]:
        """See `Service`."""
        return self._service.plugins

    def check_process(self) -> None:
        """See `forks.check_process`."""
        if self.session is not None:
            check_process(self._pid)

    # -- attach and detach ------------------------------------------------------------------------------

    def come(self) -> Session:
        """Attaches unless attached.

        Raises:
            PrepClientError: It cannot attach.
        """
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
        """Waits for a daemon that may be starting: its socket is missing, nothing listens, or it ends in mid-question.

        Raises:
            NoServer, ServerGone: None started within `connect_s`.
        """
        if not isinstance(missing.__cause__, FileNotFoundError | ConnectionError):
            raise missing
        wait_s, places = self._service.connect_s, candidates(self._service.runtime_dir)
        searched = " or ".join(map(str, places))
        if wait_s > 0:
            log.warning("waiting up to %g s (connect_s) for a prepserver daemon to start in %s", wait_s, searched)
        try:
            self._attach_within(wait_s)
        except NoServer as e:
            raise NoServer(f"{e}. None started in {searched} within connect_s = {wait_s:g}") from e

    def _come_back(self, gone: PrepClientError) -> None:
        """Waits until the daemon is back, and goes on at the next batch.

        Raises:
            ServerGone: None came back within `reconnect_s`.
        """
        wait_s = self._service.reconnect_s
        if wait_s <= 0:
            raise gone
        log.warning("%s. Waiting up to %g s (reconnect_s) for it to come back", str(gone), wait_s)
        began_s = time.monotonic()
        try:
            self._attach_within(wait_s)
        except (NoServer, ServerGone) as e:
            raise ServerGone(f"{gone}; none came back within reconnect_s = {wait_s:g}") from e
        log.warning("the daemon is back after %.1f s; going on where it stopped", time.monotonic() - began_s)

    def _attach_within(self, wait_s: float) -> None:
        """Attaches as soon as there is a daemon.

        Raises:
            NoServer, ServerGone: None was there at the deadline, or one was there and ended.
        """
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
        check_copies(self._pid)
        start = replace(self.start, first=self._service.joining.first)
        self._pid = os.getpid()
        self.feed = self._make_feed(start)
        parts: list[Any] = [self.feed]
        self._leave = weakref.finalize(self, _leave, os.getpid(), parts)
        try:
            self._check_listing(start, self.feed.listing)
            epoch_start = self.feed.epoch_start
            self._note_start(start, epoch_start, self.feed.listing.samples)
            session = Session(
                self.feed.listing.samples, start.epoch, epoch_start, self.feed.position, self._spec.shape,
                start.rounds, self._past,
            )  # fmt: skip
            self.session = session
            self._stage = self._staging.stage(session, self.feed)
            parts.append(self._stage)
            self.feed.attach(session)
            self._was_served = not self._service.inline
        except _Changed:
            self.detach()
            self.start, self.listing, self.goes_on = Start(start.epoch), None, False
            self._attach()
        except ValueError as e:
            self.detach()
            raise InvalidSpec(str(e)) from e
        except BaseException:
            self.detach()
            raise

    def _make_feed(self, start: Start) -> Feed:
        check_descriptors()
        service, map_rows = self._service, self._staging.map_rows()
        with contextlib.closing(ScanProgress(self._spec.source.place)) as progress:
            if service.inline:
                return InlineFeed(self._spec, start, progress, map_rows, service.plugins)
            runtime_dir = find_runtime_dir(service.runtime_dir)
            if service.workers is not None and (self._private is not None or not listens(runtime_dir)):
                self._warn_of_ranks()
                self._private = private_daemon(service.workers, service.plugins, self._spec.source.stores)
                runtime_dir = self._private.runtime_dir
            else:
                service.refuse_plugins(f"One runs in {runtime_dir}")
            return ServedFeed(
                runtime_dir, self._spec, start, prefetch=service.prefetch, timeout_s=service.timeout_s,
                joining=service.joining, cache=service.cache, on_scanning=progress, map_rows=map_rows or Rows.map,
            )  # fmt: skip

    def _warn_of_ranks(self) -> None:
        """Logs once that a private daemon of one process would wait for the ranks of others."""
        shape, local = self._spec.shape, self._spec.local_ranks
        ranks = shape.world_size if local is None else local[1]
        if ranks > 1 and self._private is None:
            log.warning(
                "workers = %s: the private daemon of this process waits for all %d ranks of the job on this machine. "
                "If they are other processes, no batch comes: start one daemon for all of them, `prepserver start -d`",
                self._service.workers, ranks,
            )  # fmt: skip

    def _note_start(self, start: Start, epoch_start: int, samples: int) -> None:
        began = epoch_start - start.epoch * self._spec.shape.shard.positions(samples)
        if began != self.began:
            log.info(
                "epoch %d begins at position %d: Joining(start=%d) asks for that again", start.epoch, epoch_start, began
            )
        self.began = began

    def _check_listing(self, start: Start, now: Listing) -> None:
        """Positions count the samples of one listing and mean nothing in another.

        Raises:
            SourceChanged: `start` is a position in another one.
        """
        was, place = self.listing, self._spec.source.place
        if was is not None and not was.agrees(now):
            numbers = f"{was.samples} samples (listing {was.content[:12]}), now {now.samples} ({now.content[:12]})"
            if start.position is not None:
                if self.allow_changed:
                    raise _Changed
                code = (
                    "a file of an op, or the code of a plug-in,"
                    if self._spec.pipeline.files
                    else "the code of a plug-in"
                )
                what = code if was.code != now.code else place
                raise SourceChanged(
                    f"{what} has changed since epoch {start.epoch} of this job began, or is another one: it had "
                    f"{numbers}. To resume at the same place, restore the dataset; to use the new one, call "
                    f"set_epoch({start.epoch + 1}), or load_state_dict(state, allow_changed=True) to restart "
                    f"epoch {start.epoch}"
                )
            log.warning("%s has changed: it had %s; epoch %d reads the new samples", place, numbers, start.epoch)
        self.listing = now
        self.allow_changed = False

    def detach(self) -> None:
        """Detaches; the next attachment begins at `start`."""
        self._past = self.totals
        self.session = self._stage = self.feed = None
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()

    def close(self) -> None:
        """Detaches, frees everything, and keeps its place."""
        self.start = self.place
        self.detach()
        self._staging.close()
        self._private = None  # it ends with the last client that uses it
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
        self.come()  # again, after an error of the transport
        # No context manager: an exception at its end would keep this frame, and with it lent memory.
        threads = stop_threads()
        step = self._step()
        resume_threads(threads)
        return step

    def _step(self) -> Step:
        while True:
            assert self._stage is not None
            assert self.session is not None
            self._begun = self.session.handed
            try:
                return self._stage.step(self._service.timeout_s)
            except ServerGone as gone:
                self._detach_in_epoch()
                self._come_back(gone)
            except PrepClientError:
                self._detach_in_epoch()
                raise

    def _detach_in_epoch(self) -> None:
        """Detaches after an error; the next use attaches again at the same sample."""
        self.start = self.place
        self.goes_on = self.goes_on or self.session is not None
        self.detach()


class _Changed(Exception):
    """The dataset differs from the checkpoint's, and the user allows that."""


def _leave(pid: int, parts: list[Any]) -> None:
    """Closes a stage, if there is one, and then its feed. A forked child does not touch its parent's device."""
    with contextlib.ExitStack() as closing:
        for part in parts if os.getpid() == pid else parts[:1]:
            closing.callback(part.close)
