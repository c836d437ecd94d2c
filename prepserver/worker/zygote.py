"""The process that forks all children: ``python -m prepserver.worker.zygote``, started by `launch`.

It imports what a worker needs once (about a second, 150 MiB) and then forks in milliseconds; children share its memory.
It has one thread and runs no numeric code: a process that is forked after an OpenMP region, or beside a thread that
holds a lock, can hang for ever.

It opens each child's pidfd before it reaps the child, so the descriptor cannot mean another process, and passes it to
the daemon once the child is tied to the zygote. It decides nothing.
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

from prepserver.memory.passing import close_all
from prepserver.protocol import work
from prepserver.protocol.work import TO_ZYGOTE, Exited, Ready, Spawn, Spawned
from prepserver.telemetry.logs import log_to_stderr
from prepserver.worker.channel import ChannelClosed, receive, send
from prepserver.worker.lifeline import die_with, leave_ends_to_parent
from prepserver.worker.sandbox import NETWORK_CALLS, Parts, Seal, confine, find_out, limit_data

log = logging.getLogger("prepserver.zygote")

OOM_SCORE_ADD = 500
"""If memory runs out, the kernel kills a worker (which costs a chunk) before a training job or the daemon."""

_STACK_BYTES = 512 << 10
"""Of a thread of a child: the usual 8 MiB for each of 64 would count as 512 MiB of its `worker_memory`."""

_IMPORTS = (
    *("torch", "numpy.ma", "simplejpeg"),  # numpy imports numpy.ma only when some functions are first used
    *("prepserver.transform", "prepserver.worker.loop", "prepserver.worker.indexer"),
)


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until the daemon hangs up or ends."""
    try:
        daemon, prepare = begin(argv)
    except (ProcessLookupError, ChannelClosed):
        return
    faulthandler.enable()
    _load()
    plugins, broken = load_plugins(prepare.plugins)
    broken = broken or _load_remote(prepare.url_roots, prepare.read_deadline_s)
    gc.collect()
    gc.freeze()  # a child's collector would otherwise write to, and so copy, every page of the heap
    parts = Parts() if prepare.sandbox == "off" else find_out()
    with contextlib.suppress(ChannelClosed):
        _Zygote(daemon, prepare, parts).serve(plugins, broken)
    # The children go with this process, by their lifelines.


def begin(argv: Sequence[str] | None) -> tuple[socket.socket, work.Prepare]:
    """Ties this process, which `prepserver.worker.launch.Zygote` has started, to the daemon; returns the line to it.

    Raises:
        ProcessLookupError, ChannelClosed: The daemon has ended.
    """
    parser = argparse.ArgumentParser(description="Internal to prepserver.")
    parser.add_argument("--fd", type=int, required=True, help="the line to the daemon")
    parser.add_argument("--parent", type=int, required=True, help="the daemon's pid")
    args = parser.parse_args(argv)
    die_with(args.parent)
    leave_ends_to_parent()
    daemon = socket.socket(fileno=args.fd)
    prepare, _ = receive(daemon, work.TO_NEW_ZYGOTE)
    log_to_stderr(prepare.log_level, prepare.log_format)
    return daemon, prepare


def _load() -> None:
    """Imports what children need, and prepares the heap for sharing."""
    gc.disable()  # collecting while imports make a million lasting objects would take a sixth of the time
    for name in _IMPORTS:
        importlib.import_module(name)
    sys.modules["prepserver.transform"].hush_libtiff()
    time.localtime()  # reads the time zone, which a sealed worker could not
    sys.modules["torch"].set_num_threads(1)  # in each child; this process runs no parallel region


def load_plugins(names: Sequence[str]) -> tuple[work.Plugins, str]:
    """Imports the code of the daemon's owner, once for all children; returns the plug-ins, and an error or "".

    All workers have the same code for as long as this process lives, even if the files change.
    """
    sys.dont_write_bytecode = True  # Python notices newer source only by the time in seconds and the size
    plugins = sys.modules["prepserver.plugins"]
    plugins.only_make_rows()
    try:
        loaded = plugins.load(names)
    except Exception as e:
        shown = e.__cause__ if isinstance(e, plugins.PluginError) else e  # of the plug-in's code, or of ours
        if shown is not None:
            log.error("plug-ins", exc_info=shown)
        return [], _sendable(str(e))[:4000]
    for each in loaded:
        log.info("%s plug-in %r from %s, code %s", each.role, each.name, each.origin, each.code)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        log.warning("plug-ins started %d threads when they were imported: workers may hang", threads - 1)
    return [(each.role, each.name, each.code, _sendable(each.origin)[-256:]) for each in loaded], ""


def _load_remote(urls: Sequence[str], deadline_s: float) -> str:
    """Sets what children may read on the network, and imports what they need for it; returns an error or ""."""
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
    def __init__(self, daemon: socket.socket, prepare: work.Prepare, parts: Parts) -> None:
        self._daemon = daemon
        self._prepare = prepare
        self._parts = parts
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (ticket, pid)
        self._untied: dict[int, int] = {}  # read end of a child's pipe -> its pidfd
        self._poll = select.poll()  # not epoll, whose descriptor each child would have to close
        self._poll.register(daemon, select.POLLIN)

    def serve(self, plugins: work.Plugins, broken: str) -> NoReturn:
        # The kernels are chosen here once; every child inherits the choice.
        path = sys.modules["prepserver.transform"].path()
        sys.modules["prepserver.checksum"].load()
        sandbox, missing = str(self._parts), self._parts.missing
        send(self._daemon, Ready(path.name, path.reason[:4000], sandbox, missing, plugins, broken))
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
            send(self._daemon, Exited(request.ticket, None, f"pipe: {e.strerror}"))
            return
        # Otherwise the child would write buffered text a second time.
        with contextlib.suppress(OSError):  # the disk may be full, or stdout closed
            sys.stdout.flush()
            sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as e:
            os.close(untied)
            send(self._daemon, Exited(request.ticket, None, f"fork: {e.strerror}"))
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
        """Reports a child that has closed its end of the pipe: it is tied to this process, or has ended.

        The daemon hears of it only now, because a child that is stopped before it is tied could outlive the daemon.
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
        ticket, _ = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        send(self._daemon, Exited(ticket, status))

    def _become(self, request: Spawn, zygote_pid: int, sock_fd: int, page_fd: int) -> NoReturn:
        """Runs the child to its end; never returns into the zygote's frames."""
        status = os.EX_SOFTWARE
        try:
            die_with(zygote_pid)
            _restrict(self._prepare.nice)
            # ORDER: after the tie, because closing the zygote's pipe reports that the tie is made.
            _close_all_but({0, 1, 2, sock_fd, page_fd})
            # Already imported by `_load`; at the top of the module the imports would precede the tie to the daemon.
            network = bool(self._prepare.url_roots)
            seal = Seal(self._parts, self._prepare.plugin_read, network)
            calls = NETWORK_CALLS if network else frozenset()
            if request.kind == "worker":
                from prepserver.worker import loop

                limit_data(self._prepare.worker_bytes)
                confine(self._parts, calls)
                status = loop.run(request.number, socket.socket(fileno=sock_fd), page_fd, seal)
            else:
                from prepserver.worker import indexer

                os.close(page_fd)
                limit_data(indexer.MOST_BYTES if self._prepare.worker_bytes else 0)  # a plug-in's dataset may be large
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
    # Above all, the lines of other children: a copy of a line would hide its end of file.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


if __name__ == "__main__":
    main()
