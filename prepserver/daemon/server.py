"""The daemon's loop: sockets and processes on one side, the scheduler on the other.

One thread, one epoll. A callback takes what has arrived, asks the scheduler what follows, and does it.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from prepserver.audit import logfile
from prepserver.config import ConfigError, Settings
from prepserver.daemon import jobs as jobs_room
from prepserver.daemon import quarantine
from prepserver.daemon.access import Access, Denied
from prepserver.daemon.attach import Listener, Peer
from prepserver.daemon.complaints import Complaints
from prepserver.daemon.control import Control
from prepserver.daemon.descriptors import MOST_CLIENTS
from prepserver.daemon.gpus import Gpus
from prepserver.daemon.jobs import Attachment, Jobs, Refusal
from prepserver.daemon.ledger import Ledger, rows_of
from prepserver.daemon.listings import Listings
from prepserver.daemon.notify import Notifier
from prepserver.daemon.peers import FIRST_WORD_S, Crowded, Peers
from prepserver.daemon.poll import Poll
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.reload import reload
from prepserver.daemon.rings import Rings
from prepserver.daemon.runtime_dir import Door, RuntimeDir
from prepserver.daemon.status import Rates, counts, snapshot
from prepserver.memory.budget import machine_free_bytes
from prepserver.protocol import work
from prepserver.protocol.messages import (
    AskStatus,
    AskStop,
    Attach,
    Bye,
    Fault,
    Hello,
    Ready,
    Refused,
    Release,
    Scanning,
    Status,
    Stopping,
    Sync,
    Welcome,
)
from prepserver.protocol.schema import ProtocolError
from prepserver.schedule.actions import (
    Action,
    Announce,
    DropLane,
    DropStream,
    GoesAlone,
    Joined,
    KillWorker,
    Move,
    QuarantineSample,
    Submit,
)
from prepserver.schedule.scheduler import CRASH_STRIKES, KILL_STRIKES, ReleaseError, Scheduler, Suspect
from prepserver.schedule.stream import BadRow, Cursor, Took

log = logging.getLogger(__name__)

_END_WORDS = {
    CRASH_STRIKES: "workers crashed on it, or were at it for longer than sample_timeout_s",
    KILL_STRIKES: "workers were killed while they were at it, by the kernel out of memory or by somebody",
}
_TICK_S = 0.2
_FAILED_TASKS_MOST = 3  # in a row: then the lane's or stream's jobs are told instead of trying for ever
_BAD_ROWS_MOST = 1000  # in one announcement: 64 of them with a reason, 48 KiB in all
_REASON_BYTES = 400
_BAD_SAID_MOST = 10_000
_LAST_WORDS = 1000
_LEAVING_S = 5.0  # how long a newcomer waits for the memory of a job that has just left
_ACCEPTED_AT_ONCE = 16
KILL_S = 3.0
"""After the drain: the longest that ending the processes takes."""

P = ParamSpec("P")


def _at_word_of(
    do: Callable[Concatenate[Daemon, Peer, P], None],
) -> Callable[Concatenate[Daemon, Peer, P], None]:
    """What is done at the word of one peer: an error that nobody foresaw costs this one its connection, others nothing.

    Not so for what nobody asked for, such as a tick or a worker's answer: there it ends the daemon, and so does one in
    letting the peer go.
    """

    @functools.wraps(do)
    def done(daemon: Daemon, peer: Peer, /, *arguments: P.args, **more: P.kwargs) -> None:
        try:
            do(daemon, peer, *arguments, **more)
        except Exception as e:  # noqa: BLE001 - that is what it is for
            daemon.fail(peer, e)

    return done


class Daemon:
    """A running daemon.

    Args:
        settings: What it was started with.
        runtime_dir: Its place, locked.
        workers: Worker processes.
        memory_bytes: Budget for rings.
        cache_dir: Where listings are kept.
        lifeline: A process with which the daemon ends, at once.
        state_dir: Where quarantined samples and the jobs' logs are kept; None for `cache_dir`.
        door: Who may connect to the sockets that the daemon makes.
        attach_socket: One that listens already (socket activation), which then is not made here.
        reread: Reads the settings again, for SIGHUP; without it that signal means stop.
        most_clients: Connections that it has descriptors for.
    """

    def __init__(
        self,
        settings: Settings,
        runtime_dir: RuntimeDir,
        workers: int,
        memory_bytes: int,
        cache_dir: Path,
        lifeline: int | None = None,
        state_dir: Path | None = None,
        *,
        door: Door = Door(),  # noqa: B008 - frozen
        attach_socket: socket.socket | None = None,
        reread: Callable[[], Settings] | None = None,
        most_clients: int = MOST_CLIENTS,
    ) -> None:
        self._settings = settings
        self._dir = runtime_dir
        self._door = door
        self._passed = attach_socket
        self._reread = reread
        self._access = Access.of(settings, os.getuid())
        self._started_s = time.monotonic()
        self._poll = Poll()
        self._scheduler = Scheduler(settings.chunk_rows)
        self._rings = Rings(memory_bytes)
        self._rates = Rates()
        self._gpus = Gpus()
        self._notifier = Notifier()
        self._pool = WorkerPool(
            self._poll, self, workers, settings.sample_timeout_s, settings.nice, settings.log_level, settings.sandbox,
            settings.plugins, settings.plugin_read,
        )  # fmt: skip
        self._jobs = Jobs(
            self._scheduler, self._rings, self._pool.broadcast, workers, self._rows_per_s, self._access, self._do
        )  # fmt: skip
        self._listings = Listings(self._pool, cache_dir, time.monotonic)
        self._state_dir = state_dir if state_dir is not None else cache_dir
        self._quarantine = Quarantine(self._state_dir / quarantine.FOLDER)
        self._ledger = Ledger(self._state_dir / logfile.FOLDER)
        self._short: list[tuple[Peer, jobs_room.Asked, work.Indexed, float]] = []  # wait for memory
        self._peers: Peers[Peer] = Peers(most_clients, os.getuid())
        self._complaints = Complaints(log)
        self._listener: Listener | None = None
        self._control: Control | None = None
        self._failed_in_a_row: Counter[tuple[int, int | None]] = Counter()  # by stream, and lane if one is to blame
        self._bad_said: set[tuple[int, str]] = set()
        self._last_end = ""  # of a worker, in words
        self._stops = 0
        self._stop_by_s = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._lifeline_fd = -1 if lifeline is None else os.pidfd_open(lifeline)

    # -- life ---------------------------------------------------------------------------------------

    def run(self, ready: Callable[[], None] = lambda: None) -> bool:
        """Serves until it is told to stop (SIGTERM, SIGINT, `prepserver stop`).

        Args:
            ready: Called when clients may attach.

        Returns:
            Whether everything ended; False if a process could not be killed.

        Raises:
            ZygoteError: The workers' parent does not start.
            NotConfined: See `WorkerPool.start`.
            PluginsBroken: Likewise.
            PluginsChanged: See there.
            OSError: The sockets cannot be made.
        """
        self._watch_signals()
        try:
            self._pool.start()
            self._listener = Listener(self._dir.attach_socket, self._door, self._passed)
            self._control = Control(self._dir.control_socket, self._peers.most, self._poll)
            self._poll.watch(self._listener.fileno(), self._accept)
            log.info(
                "ready in %s: %d workers, %d MiB for rings, up to %d connections, sandbox: %s",
                self._dir.path, len(self._pool.seats), self._rings.budget_bytes >> 20, self._peers.most,
                self._pool.sandbox["parts"],
            )  # fmt: skip
            if self._lifeline_fd >= 0:
                self._poll.watch(self._lifeline_fd, self._lifeline_ended)
            ready()
            self._notifier.send(READY="1", STATUS=f"{len(self._pool.seats)} workers, no jobs")
            self._loop()
        finally:
            clean = self._close()
        return clean

    def _loop(self) -> None:
        next_tick_s = 0.0
        next_mark_s = 0.0
        while not (self._stops and (not self._jobs.attachments or time.monotonic() >= self._stop_by_s)):
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + _TICK_S
                self._pool.tick(now_s)
                self._jobs.tick(now_s)
                self._listings.tick()
                self._rings.forget_free()
                short, self._short = self._short, []
                for question in short:
                    self.admit(*question)
                self._complaints.tick(now_s)
                for silent in self._peers.overdue(now_s):
                    self._drop_silent(silent, f"nothing was asked within {FIRST_WORD_S:g} s")
                for worker in self._scheduler.overdue(now_s, self._settings.sample_timeout_s):
                    self._pool.end_if_idle(worker)
            if now_s >= next_mark_s:
                next_mark_s = now_s + 1.0
                self._rates.mark(now_s, counts(self._scheduler, self._jobs, self._pool))
                self._sign_of_life()
            assert self._control is not None
            self._read_control()
            # what was answered just now may have made it due again
            self._poll.run_once(0.0 if self._control.is_due else max(0.0, next_tick_s - time.monotonic()))

    def _sign_of_life(self) -> None:
        if self._notifier.watchdog_s is not None:
            self._notifier.send(
                WATCHDOG="1",
                STATUS=f"{self._pool.up} workers, {len(self._jobs.attachments)} jobs, "
                f"{self._rates.rows_per_s:.0f} rows/s",
            )

    def _watch_signals(self) -> None:
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        # The handler itself does nothing: the byte wakes the loop, which acts between two callbacks.
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._poll.watch(self._wake_read.fileno(), self._signalled)

    def _signalled(self) -> None:
        for number in self._wake_read.recv(64):
            if number == signal.SIGHUP and self._reread is not None:
                self._reload(self._reread)
            elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._stop(signal.Signals(number).name)

    def _reload(self, reread: Callable[[], Settings]) -> None:
        self._notifier.send(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
        try:
            reloaded = reload(self._settings, reread())
        except ConfigError as e:
            log.error("reload: %s. Everything stays as it was", e)
        else:
            self._settings = reloaded.settings
            self._access = self._jobs.access = Access.of(reloaded.settings, os.getuid())
            if "log_level" in reloaded.now:
                logging.getLogger().setLevel(reloaded.settings.log_level.upper())
            if "memory_bytes" in reloaded.now:
                half = (machine_free_bytes()[0] + self._rings.held_bytes) // 2
                self._rings.budget_bytes = reloaded.settings.memory_bytes or half
            log.info("reloaded: %s", ", ".join(reloaded.now) or "nothing has changed")
            if reloaded.at_restart:
                log.warning("reload: needs a restart to take effect: %s", ", ".join(reloaded.at_restart))
        self._notifier.send(READY="1")

    def _lifeline_ended(self) -> None:
        self._poll.forget(self._lifeline_fd)
        for _ in range(2):  # there is nobody left to drain for
            self._stop("the process that this daemon belongs to has ended")

    def _stop(self, why: str) -> None:
        self._stops += 1
        now_s = time.monotonic()
        if self._stops > 1:
            log.info("stopping at once (%s again)", why)
            self._stop_by_s = now_s
            return
        log.info("stopping (%s): %d jobs may finish within %g s", why, len(self._jobs.attachments), self._drain_s)
        self._stop_by_s = now_s + self._drain_s
        # TimeoutStopSec is the unit's, drain_s is ours: systemd is told how long ours is.
        patience_us = int((self._drain_s + KILL_S + 2) * 1e6)
        self._notifier.send(STOPPING="1", EXTEND_TIMEOUT_USEC=str(patience_us))
        if self._listener is not None:
            self._poll.forget(self._listener.fileno())
            self._listener.close()
            self._dir.remove_attach_socket()

    @property
    def _drain_s(self) -> float:
        return self._settings.drain_s

    def _close(self) -> bool:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it is ending; the interpreter would bring the defaults back
        if self._listener is not None:
            self._listener.close()
        for peer in self._peers:
            self._drop(peer)
        if self._control is not None:
            self._control.close()
        clean = self._pool.close(KILL_S)
        self._rings.close()
        self._gpus.close()
        self._ledger.close()
        self._complaints.close()
        self._poll.close()
        if self._lifeline_fd >= 0:
            os.close(self._lifeline_fd)
        self._wake_read.close()
        self._wake_write.close()
        if clean:
            log.info("stopped")
        else:
            log.error("stopped, but a worker waits inside the kernel and ends when its storage answers")
        return clean

    # -- the attach socket --------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTED_AT_ONCE):
            peer = self._listener.accept()
            if peer is None:
                return
            self._take_in(peer)

    @_at_word_of
    def _take_in(self, peer: Peer) -> None:
        try:
            while (silent := self._peers.in_the_way_of(peer)) is not None:
                self._drop_silent(silent, "others need the place of a client that asks nothing: try again later")
        except Crowded as e:
            self._complaints.warn(peer.uid, "pid %d (uid %d) turned away: %s", peer.pid, peer.uid, e)
            peer.turn_away(str(e))
            return
        self._peers.add(peer)
        self._poll.watch(peer.fileno(), lambda: self._read_peer(peer))
        if peer.pidfd >= 0:
            self._poll.watch(peer.pidfd, lambda: self._died(peer))
        self._read_peer(peer)  # its question is mostly there already

    @_at_word_of
    def _drop_silent(self, peer: Peer, text: str) -> None:
        """Hangs up on a peer that has asked nothing, unless its question has come meanwhile."""
        if peer.has_said_more():
            self._read_peer(peer)
        else:
            peer.send(Refused("busy", text))
            self._drop(peer)

    @_at_word_of
    def _read_peer(self, peer: Peer) -> None:
        try:
            message = peer.receive()
        except BlockingIOError:
            return
        except ProtocolError as e:
            self._complaints.warn(peer.uid, "pid %d (uid %d) on the attach socket: %s", peer.pid, peer.uid, e)
            peer.send(Refused("protocol", str(e)[:4000]))
            self._drop(peer)
            return
        self._peers.asked(peer)
        match message:
            case Attach():
                self._asked(peer, message)
            case AskStatus():
                self._send_status(peer)
            case AskStop():
                self._asked_to_stop(peer)
            case Release() if peer.cursor in self._jobs.attachments:
                self._heard(peer, message)
            case Bye(upto) if peer.cursor is not None:
                self._ledger.left(peer.cursor, upto)
                self._drop(peer)
            case None:
                self._drop(peer)
            case _:
                peer.send(Refused("protocol", f"{type(message).__name__} of one who has not attached"))
                self._drop(peer)

    @_at_word_of
    def _died(self, peer: Peer) -> None:
        # Up to its last word, which may be there still; as many as fit a connection. A child of it may talk on.
        for _ in range(_LAST_WORDS):
            if peer.cursor is None or not peer.has_said_more():
                break
            self._read_peer(peer)
        self._drop(peer)

    def _asked(self, peer: Peer, attach: Attach) -> None:
        try:
            if self._stops:
                raise Refusal("stopping", "the daemon is stopping; start it again with `prepserver start`")
            asked = jobs_room.check(attach, self._pool.codes)
            reading = self._access.reading(peer.uid, asked.source["source"])
        except Refusal as e:
            self._refuse(peer, e)
            return
        except Denied as e:
            self._refuse(peer, Refusal("permission", str(e)))
            return
        self._listings.want(asked.source, _Admission(self, peer, asked), peer.uid, reading)

    @_at_word_of
    def admit(self, peer: Peer, asked: jobs_room.Asked, listing: work.Indexed, give_up_s: float | None = None) -> None:
        """The source of a question is listed: the job gets its place, if its client is still there.

        Where memory is short while a job's ring is on its way out, the question is asked again a little later: a
        script that is started anew must not be refused for the ring of its own last run.
        """
        if peer.fileno() < 0:
            return
        self._recall_quarantine(listing.digest)
        try:
            welcome, fd, actions = self._jobs.admit(peer, asked, listing)
        except Refusal as e:
            now_s = time.monotonic()
            until_s = now_s + _LEAVING_S if give_up_s is None else give_up_s
            if e.message.code == "memory" and self._rings.are_leaving and now_s < until_s:
                self._short.append((peer, asked, listing, until_s))
            else:
                self._refuse(peer, e)
            return
        except OSError as e:  # out of descriptors, say: those that are here go on
            self._refuse(peer, Refusal("busy", f"the daemon cannot take another job now: {e}"))
            return
        self._enter_in_ledger(peer, asked, listing, welcome)
        try:
            assert self._control is not None
            line = self._control.open(welcome.job_id)
        except OSError as e:
            self._do(actions)
            self._refuse(peer, Refusal("busy", f"the daemon cannot take another job now: {e}"))
            return
        sent = peer.send(welcome, fd, line)
        os.close(line)
        self._do(actions)
        if not sent:
            self._drop(peer)
            return
        attach = asked.attach
        log.info(
            "job %r rank %d/%d (pid %d): %d samples, from position %d, lane %s", attach.job, attach.rank,
            attach.world_size, peer.pid, listing.samples, welcome.position, self._jobs.attachments[welcome.job_id].lane,
        )  # fmt: skip

    def _recall_quarantine(self, source: str) -> None:
        """What is known of a source's samples from before. Not while a job reads it: its rows must not change."""
        if all(stream.source != source for stream in self._scheduler.streams.values()):
            for key in [key for key in self._scheduler.quarantined if key[0] == source]:
                del self._scheduler.quarantined[key]
            for entry in self._quarantine.of(source):
                self._scheduler.quarantine(source, [entry.index], entry.pipeline)

    def _enter_in_ledger(self, peer: Peer, asked: jobs_room.Asked, listing: work.Indexed, welcome: Welcome) -> None:
        cursor = self._scheduler.cursor(welcome.job_id)
        rows = rows_of(asked.attach, asked.source, asked.pipeline.to_wire(), listing)
        self._ledger.attached(
            welcome.job_id, peer.uid, asked.attach, rows, welcome.epoch_start, welcome.position,
            cursor.released, int(welcome.layout["rows"]),
        )  # fmt: skip

    def refuse(self, peer: Peer, code: str, text: str) -> None:
        """Ends a question with the reason why not."""
        if peer.fileno() >= 0:
            self._refuse(peer, Refusal(code, text))

    def _refuse(self, peer: Peer, refusal: Refusal) -> None:
        self._complaints.warn(peer.uid, "pid %d (uid %d) refused: %s", peer.pid, peer.uid, refusal.message.text)
        peer.send(refusal.message)
        self._drop(peer)

    def fail(self, peer: Peer, error: Exception) -> None:
        """Ends a connection for an error that is ours. One that has attached will come back, to the very same rows."""
        what = f"{type(error).__name__}: {error}"
        self._complaints.error(peer.uid, error, "pid %d (uid %d) loses its connection: %s", peer.pid, peer.uid, what)
        text = f"an error in the daemon, of which its log has more; please report it: {what}"[:4000]
        peer.send(Refused("internal", text))
        self._drop(peer)

    def _send_status(self, peer: Peer) -> None:
        state = "stopping" if self._stops else "running"
        found = snapshot(
            started_s=self._started_s, runtime_dir=str(self._dir.path), state=state, scheduler=self._scheduler,
            jobs=self._jobs, pool=self._pool, rings=self._rings, rates=self._rates, gpus=self._gpus,
            state_dir=str(self._state_dir),
        )  # fmt: skip
        data = json.dumps(found).encode()
        try:
            fd = os.memfd_create("prepserver-status", os.MFD_CLOEXEC)
        except OSError as e:
            self._refuse(peer, Refusal("busy", f"no state to be had now: {e}"))
            return
        try:
            os.write(fd, data)
            peer.send(Status(len(data)), fd)
        finally:
            os.close(fd)
        self._drop(peer)

    def _asked_to_stop(self, peer: Peer) -> None:
        if not self._access.may_stop(peer.uid):
            self._refuse(
                peer, Refusal("permission", f"only uid {os.getuid()} and root may stop this daemon, not uid {peer.uid}")
            )
            return
        peer.send(Stopping(os.getpid(), self._drain_s + KILL_S))
        self._drop(peer)
        self._stop("prepserver stop")

    def _drop(self, peer: Peer) -> None:
        """Ends a connection, and with it the attachment that it leases."""
        fd = peer.fileno()
        if fd < 0:
            return
        if peer.cursor is not None and peer.cursor in self._jobs.attachments:
            attach = self._jobs.attachments[peer.cursor].attach
            log.info("job %r rank %d (pid %d) is gone", attach.job, attach.rank, peer.pid)
            self._ledger.left(peer.cursor)
            self._do(self._jobs.leave(peer.cursor))
            assert self._control is not None
            self._control.shut(peer.cursor)
        self._poll.forget(fd)
        if peer.pidfd >= 0:
            self._poll.forget(peer.pidfd)
        self._peers.remove(peer)
        peer.close()

    # -- the control lines ------------------------------------------------------------------------

    def _read_control(self) -> None:
        assert self._control is not None
        for received in self._control.receive() if self._control.is_due else ():
            self._heard(self._jobs.attachments[received.cursor].peer, received.message)

    @_at_word_of
    def _heard(self, peer: Peer, message: Any) -> None:
        assert peer.cursor is not None
        attachment = self._jobs.attachments[peer.cursor]
        try:
            match message:
                case Exception():
                    raise message
                case Hello():
                    attachment.connected = True
                    self._announce(self._scheduler.repeat(attachment.cursor))
                case Release(upto, wait_ns, batches):
                    self._released(attachment, upto, wait_ns, batches)
                    if attachment.is_owed or peer.is_owed:  # it reads again
                        self._announce(self._scheduler.repeat(attachment.cursor))
                case Sync(upto, wait_ns, batches):
                    attachment.connected = True
                    self._released(attachment, upto, wait_ns, batches)
                    self._announce(self._scheduler.repeat(attachment.cursor))
                    self._cursor(attachment).asks()
                case _:
                    assert isinstance(message, Bye)
                    self._ledger.left(attachment.cursor, message.upto)
                    self._drop(peer)
        except (ProtocolError, ReleaseError) as e:
            self._complaints.warn(peer.uid, "job %r (pid %d): %s", attachment.attach.job, peer.pid, e)
            peer.send(Fault("protocol", str(e)[:4000]))
            self._drop(peer)

    def _released(self, attachment: Attachment, upto: int, wait_ns: int, batches: int) -> None:
        self._cursor(attachment).says(wait_ns, batches)
        self._do(self._scheduler.release(attachment.cursor, upto))
        self._ledger.released(attachment.cursor, upto)

    def _cursor(self, attachment: Attachment) -> Cursor:
        return self._scheduler.cursor(attachment.cursor)

    # -- what the scheduler wants -------------------------------------------------------------------

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Submit(worker, task, stream, lanes, position, count):
                    self._pool.send(worker, work.Fill(task, stream, list(lanes), position, count))
                case Announce():
                    self._announce(action)
                case Move() | Joined() | GoesAlone():
                    self._rearrange(action)
                case KillWorker(worker):
                    self._pool.end(worker)
                case DropLane(lane):
                    self._jobs.drop_lane(lane)
                case DropStream(stream):
                    self._failed_in_a_row = Counter({k: n for k, n in self._failed_in_a_row.items() if k[0] != stream})
                    self._jobs.drop_stream(stream)
                case QuarantineSample():
                    self._put_away(action)

    def _put_away(self, sample: QuarantineSample) -> None:
        source, index, pipeline = sample.source, sample.index, sample.pipeline
        ops = self._jobs.ops_of(pipeline)
        where = f" for pipeline {pipeline[:12]} ({ops})" if pipeline else ""
        log.error("sample %d killed workers repeatedly and is quarantined%s", index, where)
        self._quarantine.add(source, index, self._last_end, self._jobs.dataset_of(source), pipeline, ops)
        self._jobs.quarantine(source, index, pipeline)
        self._end_those_at(source, index)

    def _end_those_at(self, source: str, index: int) -> None:
        """A worker that has just begun with a sample on which others died would be the next."""
        for worker, task_id in self._pool.at_sample(index):
            task = self._scheduler.task(task_id)
            stream = self._scheduler.streams.get(task.stream) if task is not None else None
            if stream is not None and stream.source == source:
                self._pool.end(worker)

    def _rearrange(self, action: Move | Joined | GoesAlone) -> None:
        """Jobs part and meet."""
        match action:
            case Move():
                self._jobs.moved(action)
            case Joined():
                self._jobs.joined(action)
            case GoesAlone(stream, why):
                log.info("stream %d goes on alone: %s", stream, why)

    def _announce(self, announce: Announce) -> None:
        attachment = self._jobs.attachments.get(announce.cursor)
        if attachment is None or not attachment.connected:
            return
        if attachment.moves != self._cursor(attachment).moves:
            # An error came between what the scheduler decided and its doing. The old ring's rows are others now.
            log.error("job %r was not told of its new ring, and must attach anew", attachment.attach.job)
            attachment.peer.hang_up()
            return
        if attachment.is_owed:  # something was lost on the way, and this may not hold it
            announce = self._scheduler.repeat(announce.cursor)
        # ORDER: what counts a move comes after it.
        attachment.is_owed = not (attachment.peer.send_kept() and self._tell(attachment, announce))
        if not attachment.is_owed:
            # The client waits, the log's reader does not: it comes second, as its thread wants this interpreter.
            self._ledger.announced(announce.cursor, announce.upto, announce.bad)

    @staticmethod
    def _tell(attachment: Attachment, announce: Announce) -> bool:
        """The short way: from this process to that one, with no thread of libzmq's to be woken on either side.

        Returns:
            False where the client has not read for so long that its connection is full. Nothing is kept for it: it is
            told everything when it reads again.
        """
        bad = [(position, index, _cut(reason)) for position, index, reason in announce.bad]
        while len(bad) > _BAD_ROWS_MOST:  # a folder full of bad files must not make a message too large
            if not attachment.peer.send(Ready(0, bad[:_BAD_ROWS_MOST], attachment.moves)):
                return False
            bad = bad[_BAD_ROWS_MOST:]
        return attachment.peer.send(Ready(announce.upto, bad, attachment.moves))

    def _rows_per_s(self) -> float:
        # before anything was measured: what a core decodes of ordinary photos
        return self._rates.busy_rows_per_s or 500.0 * len(self._pool.seats)

    # -- what the pool tells ------------------------------------------------------------------------

    def setup_messages(self) -> Iterable[tuple[Any, Sequence[int]]]:
        """See `PoolEvents`."""
        return self._jobs.setup_messages()

    def worker_up(self, worker: int) -> None:
        """See `PoolEvents`."""
        self._do(self._scheduler.worker_up(worker))

    def worker_lost(self, worker: int, suspect: Suspect | None, strikes: int, stuck: bool) -> None:
        """See `PoolEvents`."""
        self._last_end = "a worker hung on it for good" if stuck else _END_WORDS.get(strikes, "")
        if stuck:
            self._do(self._scheduler.worker_stuck(worker, suspect, strikes))
        else:
            self._do(self._scheduler.worker_lost(worker, suspect, strikes))

    def task_done(self, worker: int, message: work.Filled | work.Failed) -> None:
        """See `PoolEvents`."""
        task = self._scheduler.task(message.task)
        if isinstance(message, work.Filled):
            if task is not None:
                self._rates.count(task.chunk.count)
                for lane in (None, *task.chunk.lanes) if self._failed_in_a_row else ():
                    self._failed_in_a_row.pop((task.stream, lane), None)
            bad = [BadRow(position, index, reason, tuple(lanes)) for position, index, reason, lanes in message.bad]
            for row in bad:
                self._say_once(row)
                if task is not None and task.stream in self._scheduler.streams:
                    self._quarantine.name(self._scheduler.streams[task.stream].source, row.index, row.reason)
            took = Took(message.read_ns + message.make_ns, message.read_ns + message.shared_ns, tuple(message.lanes_ns))
            self._do(self._scheduler.task_done(worker, message.task, bad, took))
            self._do(self._scheduler.give_out())
            return
        log.error("a worker could not run a task: %s", message.reason)
        if task is not None:
            failed = task.stream, message.lane
            self._failed_in_a_row[failed] += 1
            if self._failed_in_a_row[failed] >= _FAILED_TASKS_MOST:
                self._give_up(*failed, message.reason)
        self._do(self._scheduler.task_failed(worker, message.task))

    def _say_once(self, row: BadRow) -> None:
        """Logs a bad sample the first time: it comes again in every pass."""
        said = (row.index, row.reason)
        if said not in self._bad_said:
            if len(self._bad_said) < _BAD_SAID_MOST:
                self._bad_said.add(said)
            log.warning("bad sample %d: %s", row.index, row.reason)

    def _give_up(self, stream: int, lane: int | None, reason: str) -> None:
        """Tells the jobs of a lane, or of a whole stream, that cannot be filled, and ends them."""
        code, what = ("source", "these rows") if lane is None else ("spec", "the rows of this pipeline")
        text = f"the workers cannot make {what}: {reason}"[:4000]
        for attachment in [a for a in self._jobs.attachments.values() if a.stream == stream]:
            if lane in (None, self._cursor(attachment).lane):
                attachment.peer.send(Refused(code, text, None if lane is None else "pipeline"))
                self._drop(attachment.peer)


def _cut(reason: str) -> str:
    """A reason as an announcement carries it: its size counts in bytes, its end says more than its beginning."""
    data = reason.encode(errors="replace")
    return reason if len(data) <= _REASON_BYTES else "..." + data[-_REASON_BYTES:].decode(errors="ignore")


class _Admission:
    """A question that waits for its source to be listed."""

    def __init__(self, daemon: Daemon, peer: Peer, asked: jobs_room.Asked) -> None:
        self._daemon = daemon
        self._peer = peer
        self._asked = asked

    @property
    def is_gone(self) -> bool:
        """See `Waiting`."""
        return self._peer.fileno() < 0

    def scanning(self, samples: int) -> None:
        """See `Waiting`."""
        if self._peer.fileno() >= 0:
            self._peer.send(Scanning(samples))

    def listed(self, listing: work.Indexed) -> None:
        """See `Waiting`."""
        self._daemon.admit(self._peer, self._asked, listing)

    def unlistable(self, reason: str) -> None:
        """See `Waiting`."""
        self._daemon.refuse(self._peer, "source", reason)
