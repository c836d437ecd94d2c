"""The process between the daemon and its remote workers: ``python -m prepserver.engine.bridge``, started by `launch`.

It speaks the zygote's protocol, and starts an actor of Ray for each worker that it is asked for. Two threads serve each
worker. The first passes the daemon's messages on at once, so that the actor has its next task while it works on one.
The second receives rows from the actor's line (`prepserver.engine.line`) into the rings, and answers.

The daemon decides what a worker's death means. Here, an actor that dies ends its line, and the daemon asks for another
worker. Ray chooses the machine, and says why an actor is gone. The bridge keeps no state: a new bridge begins from
nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prepserver import plugins
from prepserver.engine.block import runs
from prepserver.engine.build import build
from prepserver.engine.cluster import connect
from prepserver.engine.line import IN_RAY, Address, LineClosed, TcpLine
from prepserver.memory.passing import close_all
from prepserver.memory.ring import Ring
from prepserver.protocol import work
from prepserver.protocol.layout import RingLayout
from prepserver.telemetry.page import NO_LANE, SEVERAL, StatsPage
from prepserver.worker.channel import ChannelClosed, receive, send
from prepserver.worker.zygote import begin, load_plugins

log = logging.getLogger("prepserver.bridge")

_LOOK_S = 0.25  # how often a wait for Ray checks whether the daemon has hung up
_REASON_S = 60.0  # how long to wait for Ray's reason for the end of an actor: it finds a dead machine in 15 s
_LISTINGS = 4  # kept in Ray's store for workers that have yet to hear of their streams


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until the daemon hangs up or ends."""
    try:
        daemon, prepare = begin(argv)
    except (ProcessLookupError, ChannelClosed):
        return
    address = prepare.ray_address
    loaded, broken = load_plugins(prepare.plugins)
    try:
        ray = connect(address)
    except Exception as e:  # noqa: BLE001 - the daemon reports it and tries again later
        broken = broken or f"cannot connect to Ray at {address}: {type(e).__name__}: {' '.join(str(e).split())}"
    if broken:
        send(daemon, work.Ready(broken=broken[:4000]))
        os._exit(1)  # at once: the daemon waits for this process when its line has closed
    log.info("connected to Ray %s at %s", ray.__version__, address)
    send(daemon, work.Ready(plugins=loaded))
    settings = (build(), prepare.plugins, plugins.codes(), prepare.url_roots, prepare.read_deadline_s)
    bridge = Bridge(ray, daemon, settings)
    try:
        while True:
            bridge.spawn(*receive(daemon, work.TO_ZYGOTE))
    except ChannelClosed:
        pass
    except Exception:
        log.exception("the bridge ends by a bug")
    os._exit(0)  # without waiting for Ray's threads and ours; Ray ends the actors


class Bridge:
    """The state that workers share: the connected module `ray`, and the line to the daemon.

    `settings` is what `prepserver.engine.actor.RowActor` is made with.
    """

    def __init__(self, ray: Any, daemon: socket.socket, settings: tuple[Any, ...]) -> None:
        from prepserver.engine.actor import RowActor

        self.ray = ray
        self.daemon = daemon
        self._settings = settings
        # Ray must not restart actors: the pool asks for another worker, and knows how long to wait.
        options = {"num_cpus": 1, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        self._actor = ray.remote(max_concurrency=2, **options)(RowActor)  # `keep` beside `serve`
        self._lock = threading.Lock()
        self._rings: weakref.WeakValueDictionary[tuple[int, int], Ring] = weakref.WeakValueDictionary()
        self._listings: dict[tuple[int, int, int], Any] = {}  # by file, because a rebuilt one has the same name

    def spawn(self, request: work.Spawn, fds: Sequence[int]) -> None:
        """Starts a worker."""
        remote = _Remote(self, request, *fds)
        threading.Thread(target=remote.run, name=f"worker {request.number}", daemon=True).start()

    def actor(self) -> Any:
        """A new actor, which Ray has yet to start."""
        return self._actor.remote(*self._settings)

    def ring(self, fd: int, layout: RingLayout) -> Ring:
        """A ring, mapped once for all workers of this process."""
        stat = os.fstat(fd)
        with self._lock:
            ring = self._rings.get((stat.st_dev, stat.st_ino))
            if ring is None:
                ring = self._rings[stat.st_dev, stat.st_ino] = Ring(fd, layout)
            return ring

    def listing(self, add: work.AddStream) -> Any:
        """The content of a stream's index file in Ray's store; None if it lies in the dataset itself, or is gone."""
        if any(f"{add.index_path}/".startswith(f"{place.rstrip('/')}/") for place in add.places):
            return None
        with self._lock, contextlib.suppress(FileNotFoundError):  # a damaged one is removed; the actor will miss it
            stat = os.stat(add.index_path)
            key = stat.st_dev, stat.st_ino, stat.st_mtime_ns
            if key not in self._listings:
                self._listings[key] = self.ray.put(np.fromfile(add.index_path, np.uint8))
                if len(self._listings) > _LISTINGS:
                    del self._listings[next(iter(self._listings))]
            return self._listings[key]
        return None


class _Remote:
    """One remote worker, as the bridge serves it."""

    def __init__(self, bridge: Bridge, request: work.Spawn, sock_fd: int, page_fd: int) -> None:
        self._bridge = bridge
        self._ticket, self._number = request.ticket, request.number
        self._sock = socket.socket(fileno=sock_fd)
        self._page = StatsPage(page_fd, writable=True)
        os.close(page_fd)
        self._rings: dict[int, Ring] = {}
        self._todo: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._hung_up = False
        self._host = ""
        self._actor: Any = None
        self._served: Any = None  # Ray's handle of `serve`: ready when the actor has ended
        self._line: TcpLine

    def run(self) -> None:
        """Lives from the start of the actor to its end, or until the daemon hangs up."""
        ray, daemon = self._bridge.ray, self._bridge.daemon
        try:
            self._actor = self._bridge.actor()
            self._host, pid, kernels, why, address, token = ray.get(self._actor.about.remote())
            self._served = self._actor.serve.remote()
            self._line = _connect_to(self._host, address, token)
            try:
                alive_read, alive_write = os.pipe()
            except OSError:
                self._line.close()
                raise
        except Exception as e:  # noqa: BLE001 - no machine has room, or it makes other rows: the pool tries again later
            self._sock.close()
            send(daemon, work.Exited(self._ticket, None, f"remote worker {self._number}: {_cause(e)}"[:4000]))
            if self._served is not None:
                ray.kill(self._actor)
            return
        log.info("worker %d is an actor on %s", self._number, self._host)
        if kernels == "pure":
            log.warning("worker %d makes rows without the compiled kernels, at half the speed: %s", self._number, why)
        send(daemon, work.Spawned(self._ticket, pid, self._host), [alive_read])
        os.close(alive_read)
        passes_on = threading.Thread(target=self._pass_on, daemon=True)
        passes_on.start()
        status = -signal.SIGKILL
        try:
            self._serve()
        except ChannelClosed:
            pass
        except LineClosed as e:
            status = self._why_gone(e)
        except Exception:
            log.exception("worker %d", self._number)
        self._rings.clear()
        self._line.hang_up()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # ends the other thread
        os.close(alive_write)
        send(daemon, work.Exited(self._ticket, status))
        ray.kill(self._actor)  # ORDER: late, because it waits for a head that may be gone
        passes_on.join()
        self._line.close()
        self._sock.close()

    def _why_gone(self, closed: LineClosed) -> int:
        """Asks Ray why the line has closed; returns the exit status that lays the blame where it belongs."""
        ray = self._bridge.ray
        until_s = time.monotonic() + _REASON_S
        why: Exception = closed
        try:
            while not self._hung_up and time.monotonic() < until_s:
                if ray.wait([self._served], timeout=_LOOK_S)[0]:
                    ray.get(self._served)
                    break
        except Exception as e:  # noqa: BLE001 - it is the reason
            why = e
        if self._hung_up:
            return -signal.SIGKILL
        died = isinstance(why, ray.exceptions.RayActorError)
        log.log(
            logging.WARNING if died else logging.ERROR, "worker %d on %s ended: %s", self._number, self._host,
            _cause(why), exc_info=None if died or why is closed else why,
        )  # fmt: skip
        # If neither the actor nor the head can be reached, it is unknown whether the actor has died.
        if why is closed or "node has died" in str(why) or isinstance(why, ray.exceptions.ActorUnavailableError):
            self._page.fail_task()  # the sample in hand is not to blame for a machine, or a network
            return -signal.SIGKILL
        return -signal.SIGABRT

    def _pass_on(self) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._line, select.POLLRDHUP)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if self._line.fileno() in ready:
                    poll.unregister(self._line)
                    self._todo.put(LineClosed("end of file"))  # the actor may die while it has no task
                if self._sock.fileno() not in ready:
                    continue
                message, fds = receive(self._sock, work.TO_WORKER)
                try:
                    if isinstance(message, work.AddLane):  # its number is new: no task before it has this lane
                        (fd,) = fds
                        self._rings[message.lane] = self._bridge.ring(fd, RingLayout.from_wire(message.layout))
                finally:
                    close_all(fds)
                if isinstance(message, work.Fill | work.DropLane):
                    self._todo.put(message)
                if not isinstance(message, work.AddCache | work.DropCache):  # caches are memory of this machine
                    self._tell(message)
        except ChannelClosed:
            pass
        except Exception:
            log.exception("worker %d", self._number)
        self._hung_up = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._line.hang_up()
        self._todo.put(None)

    def _tell(self, message: Any) -> None:
        if isinstance(message, work.AddStream) and (listing := self._bridge.listing(message)) is not None:
            self._actor.keep.remote(message.stream, listing)
            message = replace(message, index_path=IN_RAY)
        with contextlib.suppress(LineClosed):  # which the other thread finds, too
            self._line.send(message)

    def _serve(self) -> None:
        while (item := self._todo.get()) is not None:
            match item:
                case work.DropLane(lane):
                    self._rings.pop(lane, None)
                case work.Fill():
                    self._fill(item)
                case _:
                    raise item

    def _fill(self, task: work.Fill) -> None:
        began_ns = self._page.begin_task(task.task)
        if not task.alone:  # otherwise the actor reports the sample in hand
            self._page.begin_sample(task.position, SEVERAL)
        while isinstance(answer := self._line.receive(work.FROM_ACTOR), work.At):
            self._page.begin_sample(answer.position, answer.index)
            if answer.lane != NO_LANE:
                self._page.begin_step(answer.lane)
        if isinstance(answer, work.Failed):
            self._page.fail_task()
        else:
            # A slow network has its own deadline, and the sample made last is not to blame for it.
            self._page.begin_sample(task.position, SEVERAL)
            into = [run for lane in task.lanes for run in runs(self._rings[lane], task.position, task.count)]
            received = sum(map(self._line.receive_rows, into))
            bad = len({row[0] for row in answer.bad})
            self._page.end_task(task.count, bad, answer.read_ns, answer.make_ns, received, answer.held_ns)
            answer = replace(answer, began_ns=began_ns, at_ns=time.monotonic_ns())  # by the clock of this machine
        send(self._sock, answer)


def _connect_to(host: str, address: Address, token: bytes) -> TcpLine:
    try:
        return TcpLine.to(address, token)
    except OSError as e:
        raise ConnectionError(
            f"no connection from here to {host} at {address[0]}:{address[1]}: {e}. This machine must reach all TCP "
            "ports of the machines with CPUs"
        ) from e


def _cause(error: Exception) -> str:
    """The last line of Ray's error, which has the reason; tracebacks come before it."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause if isinstance(cause, Exception) else error).splitlines()]
    return next((line for line in reversed(lines) if line), type(error).__name__)


if __name__ == "__main__":
    main()
