"""The process that forks all children: ``python -m prepserver.worker.zygote``, started by `launch`.

It imports what a worker needs once (about a second, 150 MiB) and then forks in milliseconds; children share its memory.
It has one thread and runs no numeric code: a process that is forked after an OpenMP region, or beside a thread with a
lock, can hang for ever.

It opens each child's pidfd before it could have reaped the child, so the descriptor cannot mean another process, passes
it to the daemon once the child is tied to the zygote, and reaps. It decides nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from prepserver.protocol import work
from prepserver.protocol.work import TO_ZYGOTE, Exited, Ready, Spawn, Spawned, SpawnFailed
from prepserver.telemetry.logs import log_to_stderr
from prepserver.worker.channel import ChannelClosed, close_all, receive, send
from prepserver.worker.lifeline import die_with
from prepserver.worker.sandbox import NETWORK_CALLS, Parts, Seal, confine, find_out, limit_data

log = logging.getLogger("prepserver.zygote")

OOM_SCORE_ADD = 500
"""If memory runs out, the kernel kills a worker (which costs a chunk) before a training job or the daemon."""

_STACK_BYTES = 512 << 10
"""Of a thread of a child: the usual 8 MiB for each of 64 would count as 512 MiB of its `worker_memory`."""

EXIT_BUG = 70  # sysexits.h: EX_SOFTWARE

_IMPORTS = (
    *("torch", "numpy.ma", "simplejpeg"),  # numpy imports numpy.ma only when some functions are first used
    *("prepserver.transform", "prepserver.worker.loop", "prepserver.worker.indexer"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until the daemon hangs up or ends."""
    args = parser().parse_args(argv)
    try:
        die_with(args.parent)
    except ProcessLookupError:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the daemon decides
    faulthandler.enable()
    log_to_stderr(args.log_level, args.log_format)
    _load()
    plugins, broken = load_plugins(args.plugin)
    broken = broken or _load_remote(args.url, args.read_deadline)
    gc.collect()
    gc.freeze()  # a child's collector would otherwise write to, and so copy, every page of the heap
    parts = Parts() if args.sandbox == "off" else find_out()
    with contextlib.suppress(ChannelClosed):
        _Zygote(socket.socket(fileno=args.fd), args.nice, args.worker_bytes, parts, args.read, bool(args.url)).serve(
            plugins, broken
        )
    # The children go with this process, by their lifelines.


def parser() -> argparse.ArgumentParser:
    """The command line that `prepserver.worker.launch.Zygote` writes."""
    parser = argparse.ArgumentParser(description="Internal to prepserver.")
    parser.add_argument("--fd", type=int, required=True, help="the line to the daemon")
    parser.add_argument("--parent", type=int, required=True, help="the daemon's pid")
    parser.add_argument("--nice", type=int, required=True)
    parser.add_argument("--log-level", default="INFO")
    parser.add_argument("--log-format", default="text")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--plugin", action="append", default=[], help="what is loaded of the owner's code")
    parser.add_argument("--read", action="append", default=[], help="a folder that children may read for it")
    parser.add_argument("--url", action="append", default=[], help="a URL below which children may read")
    parser.add_argument("--read-deadline", type=float, default=15.0, help="seconds for one such read")
    parser.add_argument("--worker-bytes", type=int, default=0, help="what a worker may allocate for itself")
    return parser


def _load() -> None:
    """Imports what children need, and prepares the heap for sharing."""
    gc.disable()  # collecting while imports make a million lasting objects would take a sixth of the time
    for name in _IMPORTS:
        importlib.import_module(name)
    sys.modules["prepserver.transform"].hush_libtiff()
    time.localtime()  # reads the time zone, which a sealed worker could not
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads of its own would take the other workers' cores
    sys.modules["torch"].set_num_threads(1)  # in each child; this process runs no parallel region


def load_plugins(names: Sequence[str]) -> tuple[work.Plugins, str]:
    """Imports the code of the daemon's owner, once for all children; returns what there is and what went wrong.

    So all workers have the same code for as long as this process lives, whatever becomes of the files.
    """
    sys.dont_write_bytecode = True  # what Python keeps is told from newer source by seconds and size only
    try:
        loaded = sys.modules["prepserver.plugins"].load(names)
    except Exception as e:
        log.exception("plug-ins")
        return [], _sendable(str(e))[:4000]
    for each in loaded:
        log.info("%s plug-in %r from %s, code %s", each.role, each.name, each.origin, each.code)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        log.warning("plug-ins have started %d threads when they were imported: workers may hang", threads - 1)
    return [(each.role, each.name, each.code, _sendable(each.origin)[-256:]) for each in loaded], ""


def _load_remote(urls: Sequence[str], deadline_s: float) -> str:
    """Says what children may read on the network, and imports what they need for that; returns what went wrong."""
    remote = sys.modules["prepserver.source.storage.remote"]
    remote.configure(urls, deadline_s)
    try:
        if urls:
            remote.load()  # starts no thread yet
            threading.stack_size(_STACK_BYTES)  # children have one thread for each read in flight
    except remote.SourceError as e:
        return f"sources.roots = {list(urls)}: {e}"
    return ""


def _sendable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()  # a path may hold bytes that are no text


class _Zygote:
    def __init__(
        self, daemon: socket.socket, nice: int, worker_bytes: int, parts: Parts, read: Sequence[str], network: bool
    ) -> None:
        self._daemon = daemon
        self._nice = nice
        self._worker_bytes = worker_bytes
        self._parts = parts
        self._read = read
        self._network = network
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (ticket, pid)
        self._untied: dict[int, int] = {}  # read end of a child's pipe -> its pidfd
        self._poll = select.poll()  # not epoll, whose descriptor each child would have to close
        self._poll.register(daemon, select.POLLIN)

    def serve(self, plugins: work.Plugins, broken: str) -> NoReturn:
        # Chosen here once; every child inherits the choice.
        path = sys.modules["prepserver.transform"].path()
        sys.modules["prepserver.checksum"].load()
        sandbox, missing = str(self._parts), self._parts.missing
        send(self._daemon, Ready(os.getpid(), path.name, path.reason[:4000], sandbox, missing, plugins, broken))
        while True:
            ready = {fd for fd, _ in self._poll.poll()}
            for fd in ready - {self._daemon.fileno()}:
                if fd in self._untied:
                    self._tied(fd)
                elif fd in self._children:
                    self._reap(fd)
            # ORDER: last, because a new descriptor may get the number of one that was closed in this round.
            if self._daemon.fileno() in ready:
                self._spawn()

    def _spawn(self) -> None:
        request, fds = receive(self._daemon, TO_ZYGOTE)
        sock_fd, page_fd = fds
        zygote_pid = os.getpid()
        try:
            untied, tied = os.pipe()
        except OSError as e:
            close_all(fds)
            send(self._daemon, SpawnFailed(request.ticket, f"pipe: {e.strerror}"))
            return
        # The child would write buffered text a second time.
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as e:
            os.close(untied)
            send(self._daemon, SpawnFailed(request.ticket, f"fork: {e.strerror}"))
            return
        finally:
            if os.getpid() == zygote_pid:
                close_all([*fds, tied])
        if pid == 0:
            self._daemon.detach()  # closed by number below, so that the object does not close that number later
            self._become(request, zygote_pid, sock_fd, page_fd)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (request.ticket, pid)
        self._poll.register(pidfd, select.POLLIN)
        self._untied[untied] = pidfd
        self._poll.register(untied, select.POLLIN)

    def _tied(self, untied: int) -> None:
        """A child has closed its end of the pipe: it is tied to this process, or has ended.

        The daemon hears of it only now: a child that is stopped before it is tied could outlive the daemon.
        """
        pidfd = self._untied.pop(untied)
        self._poll.unregister(untied)
        os.close(untied)
        ticket, pid = self._children[pidfd]
        send(self._daemon, Spawned(ticket, pid), [pidfd])

    def _reap(self, pidfd: int) -> None:
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        if ended is None:
            return
        for untied in [fd for fd, of in self._untied.items() if of == pidfd]:
            self._tied(untied)
        ticket, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        send(self._daemon, Exited(ticket, pid, status))

    def _become(self, request: Spawn, zygote_pid: int, sock_fd: int, page_fd: int) -> NoReturn:
        """Runs the child to its end; never returns into the zygote's frames."""
        status = EXIT_BUG
        try:
            die_with(zygote_pid)
            _restrict(self._nice)
            # ORDER: after the tie, because closing the zygote's pipe reports that the tie is made.
            _close_all_but({0, 1, 2, sock_fd, page_fd})
            # Already imported by `_load`; at the top of the module the imports would precede the tie to the daemon.
            seal, calls = Seal(self._parts, self._read, self._network), NETWORK_CALLS if self._network else frozenset()
            if request.kind == "worker":
                from prepserver.worker import loop

                limit_data(self._worker_bytes)
                confine(self._parts, calls)
                status = loop.run(request.number, socket.socket(fileno=sock_fd), page_fd, seal)
            else:
                from prepserver.worker import indexer

                os.close(page_fd)
                limit_data(indexer.MOST_BYTES)
                confine(self._parts, indexer.CALLS | calls)
                status = indexer.run(socket.socket(fileno=sock_fd), seal)
        except ProcessLookupError:
            pass  # the zygote has ended
        except BaseException:
            log.exception("%s %d ended by a bug", request.kind, request.number)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.flush()
            os._exit(status)


def _restrict(nice: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would hold the rings
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + OOM_SCORE_ADD)))
    if nice:
        with contextlib.suppress(OSError):
            os.nice(nice)


def _close_all_but(keep: set[int]) -> None:
    # Above all other children's lines: a copy of a line would hide its end of file.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


if __name__ == "__main__":
    main()
