"""The process between the daemon and its remote workers: ``python -m prepserver.engine.bridge``, started by `launch`.

It speaks the zygote's protocol, and starts an actor of Ray for each worker that it is asked for. Two threads serve one
worker. The first reads the daemon's messages and passes them on at once, so that a second task is at the actor while
the first one runs. The second waits for blocks, copies them into the rings, and answers.

What a worker's death means is the daemon's business: here, an actor that dies ends its line, and another one is asked
for. Ray chooses the machine. The bridge itself keeps nothing: with another one, everything begins again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import prepserver
from prepserver import plugins
from prepserver.engine.block import copy_into, split
from prepserver.engine.build import build
from prepserver.memory.ring import Ring
from prepserver.protocol import work
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.layout import RingLayout
from prepserver.protocol.schema import ProtocolError
from prepserver.telemetry.logs import log_to_stderr
from prepserver.telemetry.page import SEVERAL, StatsPage
from prepserver.worker.channel import ChannelClosed, close_all, receive, send
from prepserver.worker.lifeline import die_with
from prepserver.worker.zygote import load_plugins, parser

log = logging.getLogger("prepserver.bridge")

_LOOK_S = 0.25  # how soon who waits for an actor notices that the daemon does so no longer
_LISTINGS = 4  # kept in Ray's store for workers that have yet to hear of their streams

_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until the daemon hangs up or ends."""
    arguments = parser()
    arguments.add_argument("--address", required=True, help="of the Ray cluster")
    args = arguments.parse_args(argv)
    try:
        die_with(args.parent)
    except ProcessLookupError:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the daemon decides
    log_to_stderr(args.log_level, args.log_format)
    daemon = socket.socket(fileno=args.fd)
    loaded, broken = load_plugins(args.plugin)
    try:
        ray = _connect(args.address)
    except Exception as e:  # noqa: BLE001 - whatever it is, the daemon says so and tries again later
        broken = broken or f"cannot connect to Ray at {args.address}: {type(e).__name__}: {' '.join(str(e).split())}"
    if broken:
        send(daemon, work.Ready(os.getpid(), broken=broken[:4000]))
        os._exit(1)  # at once: the daemon waits for this process when its line has closed
    log.info("connected to Ray %s at %s", ray.__version__, args.address)
    send(daemon, work.Ready(os.getpid(), plugins=loaded))
    bridge = Bridge(ray, daemon, (build(), args.plugin, plugins.codes(), args.url, args.read_deadline))
    try:
        while True:
            bridge.spawn(*receive(daemon, work.TO_ZYGOTE))
    except ChannelClosed:
        pass
    except Exception:
        log.exception("the bridge ends by a bug")
    os._exit(0)  # Ray ends the actors; its threads and ours are waited for by nobody


def _connect(address: str) -> Any:
    # Packages keep what .gitignore names, such as the compiled kernels of a checkout.
    os.environ["RAY_RUNTIME_ENV_IGNORE_GITIGNORE"] = "1"
    import ray

    ray.init(
        address=address, log_to_driver=False, logging_level=logging.WARNING,
        runtime_env={"py_modules": _modules(), "env_vars": _ENVIRONMENT, "excludes": ["__pycache__"]},
    )  # fmt: skip
    return ray


def _modules() -> list[str]:
    """This package, and those modules of plug-ins that are not installed: what Ray copies to the other machines."""
    found = {str(Path(prepserver.__file__).parent)}
    for each in plugins.loaded():
        module: ModuleType | None = sys.modules.get(getattr(each.value, "__module__", "").partition(".")[0])
        file = getattr(module, "__file__", None)
        if file is not None and not {"site-packages", "dist-packages"} & set(Path(file).parts):
            found.add(str(Path(file).parent if Path(file).name == "__init__.py" else file))
    return sorted(found)


class _LostError(Exception):
    """This worker is of no use any more; the text says why."""


class Bridge:
    """What the workers share.

    Args:
        ray: The module, connected.
        daemon: The line to the daemon.
        settings: What `prepserver.engine.actor.RowActor` is made with.

    Attributes:
        readable: Streams of which remote workers have made rows.
    """

    def __init__(self, ray: Any, daemon: socket.socket, settings: tuple[Any, ...]) -> None:
        from prepserver.engine.actor import RowActor

        self.ray = ray
        self.daemon = daemon
        self.readable: set[int] = set()
        self._settings = settings
        # Ray restarts no actor: the pool asks for another one, and knows how long to wait.
        self._actor = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(RowActor)
        self._lock = threading.Lock()
        self._rings: weakref.WeakValueDictionary[tuple[int, int], Ring] = weakref.WeakValueDictionary()
        self._listings: dict[str, Any] = {}

    def spawn(self, request: work.Spawn, fds: Sequence[int]) -> None:
        """Starts a worker."""
        remote = _Remote(self, request, *fds)
        threading.Thread(target=remote.run, name=f"worker {request.number}", daemon=True).start()

    def actor(self) -> Any:
        """Another actor, which Ray has yet to start."""
        return self._actor.remote(*self._settings)

    def ring(self, fd: int, layout: RingLayout) -> Ring:
        """A ring, which all workers of this process map once."""
        stat = os.fstat(fd)
        with self._lock:
            ring = self._rings.get((stat.st_dev, stat.st_ino))
            if ring is None:
                ring = self._rings[stat.st_dev, stat.st_ino] = Ring(fd, layout)
            return ring

    def listing(self, add: work.AddStream) -> Any:
        """The content of a stream's index file in Ray's store; None if it lies in the dataset itself."""
        if any(f"{add.index_path}/".startswith(f"{place.rstrip('/')}/") for place in add.places):
            return None
        with self._lock:
            if add.index_path not in self._listings:
                self._listings[add.index_path] = self.ray.put(np.fromfile(add.index_path, np.uint8))
                if len(self._listings) > _LISTINGS:
                    del self._listings[next(iter(self._listings))]
            return self._listings[add.index_path]


class _Remote:
    """A worker whose actor is elsewhere."""

    def __init__(self, bridge: Bridge, request: work.Spawn, sock_fd: int, page_fd: int) -> None:
        self._bridge = bridge
        self._ticket, self._number = request.ticket, request.number
        self._sock = socket.socket(fileno=sock_fd)
        self._page = StatsPage(page_fd, writable=True)
        os.close(page_fd)
        self._rings: dict[int, Ring] = {}
        self._todo: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._hung_up = False
        self._host = ""
        self._actor: Any = None

    def run(self) -> None:
        """Lives from the start of the actor to its end, or until the daemon hangs up."""
        ray, daemon = self._bridge.ray, self._bridge.daemon
        try:
            self._actor = self._bridge.actor()
            self._host, pid, kernels, why = ray.get(self._actor.about.remote())
        except Exception as e:  # noqa: BLE001 - no machine has room, or makes other rows: it is tried again, later
            self._sock.close()
            send(daemon, work.SpawnFailed(self._ticket, f"remote worker {self._number}: {_cause(e)}"[:4000]))
            return
        log.info("worker %d is an actor on %s", self._number, self._host)
        if kernels == "pure":
            log.warning("worker %d makes rows without the compiled kernels, at half the speed: %s", self._number, why)
        alive_read, alive_write = os.pipe()
        send(daemon, work.Spawned(self._ticket, pid, self._host), [alive_read])
        os.close(alive_read)
        threading.Thread(target=self._pass_on, daemon=True).start()
        status = -signal.SIGKILL
        try:
            self._serve()
        except _LostError as e:
            if not self._hung_up:
                log.error("worker %d ends: %s", self._number, e)
                self._page.fail_task()
        except ChannelClosed:
            pass
        except Exception as e:
            died = isinstance(e, ray.exceptions.RayActorError)
            if not self._hung_up:
                log.log(
                    logging.WARNING if died else logging.ERROR, "worker %d on %s ended: %s", self._number, self._host,
                    _cause(e), exc_info=not died,
                )  # fmt: skip
            if "node has died" in str(e) or isinstance(e, ray.exceptions.ObjectLostError):
                self._page.fail_task()  # the sample in hand is not to blame for a machine
            else:
                status = -signal.SIGABRT
        self._rings.clear()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # ends the other thread
        os.close(alive_write)
        send(daemon, work.Exited(self._ticket, pid, status))
        ray.kill(self._actor)  # ORDER: last, because it waits for a head that may be gone

    def _pass_on(self) -> None:
        """Reads the daemon's messages until it hangs up."""
        try:
            while True:
                message, fds = receive(self._sock, work.TO_WORKER)
                try:
                    if isinstance(message, work.AddLane):  # its number is new: no task before it has this lane
                        (fd,) = fds
                        self._rings[message.lane] = self._bridge.ring(fd, RingLayout.from_wire(message.layout))
                finally:
                    close_all(fds)
                self._todo.put((message, self._told(message)))
        except (ChannelClosed, ProtocolError, OSError):
            pass
        except Exception:
            log.exception("worker %d", self._number)
        self._hung_up = True
        self._sock.close()
        self._todo.put(None)

    def _told(self, message: Any) -> Any:
        """Tells the actor; returns what to wait for."""
        match message:
            case work.Fill(alone=False):
                return self._actor.fill.remote(encode(message))
            case work.AddStream():
                self._actor.tell.remote(encode(message), self._bridge.listing(message))
            case work.Fill() | work.AddCache() | work.DropCache():
                pass  # caches are memory of this machine
            case _:
                self._actor.tell.remote(encode(message))
        return None

    def _serve(self) -> None:
        while (item := self._todo.get()) is not None:
            match item:
                case work.DropLane(lane), _:
                    self._rings.pop(lane, None)
                case work.Fill() as task, made:
                    self._fill(task, made)
                case _:
                    pass  # for the actor alone

    def _fill(self, task: work.Fill, made: Any) -> None:
        began_ns = self._page.begin_task(task.task)
        if task.alone:
            answer, nbytes = self._one_by_one(task)
        else:
            self._page.begin_sample(task.position, SEVERAL)
            answer, nbytes = self._made(task, made)
        if isinstance(answer, work.Failed):
            self._page.fail_task()
        else:
            bad = len({row[0] for row in answer.bad})
            self._page.end_task(task.count, bad, answer.read_ns, answer.make_ns, nbytes)
            answer = replace(answer, began_ns=began_ns, at_ns=time.monotonic_ns())  # by the clock of this machine
        send(self._sock, answer)

    def _get(self, ref: Any) -> Any:
        """Waits for an answer of the actor, but not for longer than the daemon does."""
        ray = self._bridge.ray
        while not (ray.wait([ref], timeout=_LOOK_S)[0] or self._hung_up):
            pass  # `get` alone waits for as long as nobody knows that a machine is gone
        if self._hung_up:
            raise _LostError("the daemon has hung up")
        return ray.get(ref)

    def _made(self, task: work.Fill, made: Any) -> tuple[work.Filled | work.Failed, int]:
        """Waits for a block and copies it into the rings; returns the answer and the bytes of the block."""
        data, block, unreadable = self._get(made)
        if unreadable:
            if task.stream in self._bridge.readable:  # it was, elsewhere or before
                raise _LostError(unreadable)
            return work.Failed(task.task, unreadable[:4000], final=True), 0
        answer = decode(data, work.FROM_WORKER)
        if block is None:
            return answer, 0
        rings = [self._rings[lane] for lane in task.lanes]
        for ring, arrays in zip(rings, split(block, (ring.layout.fields for ring in rings), task.count), strict=True):
            copy_into(ring, task.position, arrays)
        self._bridge.readable.add(task.stream)
        return answer, len(block)

    def _one_by_one(self, task: work.Fill) -> tuple[work.Filled | work.Failed, int]:
        """Has each row made by itself, so that the page names the sample on which an actor dies."""
        found: list[work.Filled] = []
        received = 0
        indices = self._get(self._actor.indices.remote(task.stream, task.position, task.count))
        for position, index in enumerate(indices or [SEVERAL] * task.count, task.position):
            self._page.begin_sample(position, index)
            one = replace(task, position=position, count=1)
            answer, nbytes = self._made(one, self._actor.fill.remote(encode(one)))
            if isinstance(answer, work.Failed):
                return answer, 0
            found.append(answer)
            received += nbytes
        return work.Filled(
            task.task, [row for each in found for row in each.bad], sum(each.read_ns for each in found),
            sum(each.make_ns for each in found), sum(each.shared_ns for each in found),
            [sum(times) for times in zip(*(each.lanes_ns for each in found), strict=True)],
        ), received  # fmt: skip


def _cause(error: Exception) -> str:
    """The last line of what Ray says, which has the reason; before it are tracebacks."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause if isinstance(cause, Exception) else error).splitlines()]
    return next((line for line in reversed(lines) if line), type(error).__name__)


if __name__ == "__main__":
    main()
