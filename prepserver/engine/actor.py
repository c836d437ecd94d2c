"""A remote worker: a worker's loop in an actor of Ray on another machine, which makes one block of rows at a time.

The bridge passes on the daemon's messages over a connection (`prepserver.engine.line`), on which the rows go back. One
thread receives, so that the worker sees the next messages early, and another one sends, so that the worker does not
wait for a slow network. Only listings come through Ray, which copies them to each machine once. An actor remembers no
task. It runs in Ray's process with Ray's rights: no sandbox confines it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prepserver import plugins
from prepserver.engine.block import BlockRows
from prepserver.engine.build import build, differences
from prepserver.engine.cluster import address_here
from prepserver.engine.line import IN_RAY, Address, LineClosed, TcpLine, TcpListener
from prepserver.pipeline.spec import Codes
from prepserver.protocol import work
from prepserver.protocol.layout import RingLayout
from prepserver.source import SampleError
from prepserver.source.storage import remote
from prepserver.telemetry.page import StatsPage, create_page
from prepserver.transform import hush_libtiff, path
from prepserver.worker.channel import ChannelClosed, pair, receive, send
from prepserver.worker.loop import Worker
from prepserver.worker.streams import Stream

_LISTING_S = 60.0
_SENDING = 1  # tasks whose rows may still be sent when the next one begins: each lane has two sets of arrays


class OtherBuildError(Exception):
    """This machine would make other rows than the daemon's; the text names the machine and the difference."""


class _Page(StatsPage):
    """A statistics page that also reports the sample in hand to `tell`, if that is set."""

    tell: Callable[[work.At], None] | None = None
    _at: work.At

    def begin_sample(self, position: int, index: int) -> None:
        super().begin_sample(position, index)
        if self.tell is not None:
            self._at = work.At(position, index)
            self.tell(self._at)

    def begin_step(self, lane: int) -> None:
        super().begin_step(lane)
        if self.tell is not None:
            self.tell(replace(self._at, lane=lane))


class RowActor:
    """A remote worker.

    `expected` is `build()` of the daemon's machine. `names` are plug-ins to load, and `codes` the digests of their code
    there. It reads from URLs below `urls` only, `deadline_s` at most for each read, and listens at `address`, by
    default this machine's address in the cluster.

    Raises:
        OtherBuildError: Rows would differ.
        PluginError: A plug-in cannot be loaded.
    """

    def __init__(
        self, expected: Mapping[str, str], names: Sequence[str], codes: Codes, urls: Sequence[str], deadline_s: float,
        address: str = "",
    ) -> None:  # fmt: skip
        self._host = socket.gethostname()
        found = differences(expected, build())
        plugins.only_make_rows()
        plugins.load(names)
        found += [
            f"the code of {role} plug-in {name!r} is {plugins.codes().get((role, name))} there and {code} here"
            for (role, name), code in codes.items()
            if plugins.codes().get((role, name)) != code
        ]
        if found:
            raise OtherBuildError(f"{self._host} would make other rows than this machine: {'; '.join(found)}")
        remote.configure(urls, deadline_s)
        if urls:
            remote.load()
        torch.set_num_threads(1)
        hush_libtiff()
        self._listener = TcpListener(address or address_here())
        self._daemon, self._theirs = pair()
        fd = create_page("prepserver-actor")
        self._page = _Page(fd, writable=True)
        os.close(fd)
        log = logging.getLogger("prepserver.actor")
        self._opening = BlockRows(())
        self._worker = Worker(0, self._theirs, self._page, log, rows=lambda _layout, _fds: self._opening)
        self._lanes: dict[int, BlockRows] = {}
        self._listings: dict[int, int] = {}  # stream -> a file without a name, which no death leaves behind
        self._listed = threading.Condition()
        self._sender = ThreadPoolExecutor(1)
        self._sending: deque[Future[None]] = deque()

    def about(self) -> tuple[str, int, str, str, Address, bytes]:
        """Name of this machine, pid, kernels and why these, and the address and token for `serve`. Called before it."""
        return self._host, os.getpid(), *path()[:2], self._listener.address, self._listener.token

    def keep(self, stream: int, listing: npt.NDArray[np.uint8]) -> None:
        """Keeps the content of the index file of a stream, whose `AddStream` waits for it."""
        fd = os.memfd_create("prepserver-listing", os.MFD_CLOEXEC)
        with open(fd, "wb", closefd=False) as file:
            file.write(listing.data)
        with self._listed:
            self._listings[stream] = fd
            self._listed.notify()

    def serve(self) -> None:
        """Fills rows for the bridge until it hangs up."""
        line = self._listener.accept()
        receives = threading.Thread(target=self._receive, args=(line,), daemon=True)
        receives.start()
        gc.disable()  # see `prepserver.worker.loop.run`
        gc.freeze()  # as in the zygote: looking at every object of torch and Ray takes 60 ms
        try:
            while True:
                self._worker.collect_garbage()
                message, _ = self._worker.next()
                self._handle(message, line)
        except (ChannelClosed, LineClosed):
            pass
        finally:
            line.hang_up()
            self._theirs.close()
            self._sender.shutdown()
            receives.join()
            line.close()
            self._daemon.close()
            gc.unfreeze()
            gc.enable()
            for fd in self._listings.values():
                os.close(fd)

    def _receive(self, line: TcpLine) -> None:
        """Passes the daemon's messages on to the worker, which looks for them while it fills rows."""
        try:
            while True:
                send(self._daemon, line.receive(work.TO_WORKER))
        except (LineClosed, ChannelClosed):
            pass
        finally:
            with contextlib.suppress(OSError):
                self._daemon.shutdown(socket.SHUT_WR)  # the worker ends when it has read all messages

    def _handle(self, message: Any, line: TcpLine) -> None:
        match message:
            case work.Fill():
                self._fill(message, line)
                return
            case work.AddStream(index_path=index_path) if index_path == IN_RAY:
                message = replace(message, index_path=f"/proc/self/fd/{self._listing(message.stream)}")
            case work.AddLane():
                self._opening = BlockRows(RingLayout.from_wire(message.layout).fields)
                self._lanes[message.lane] = self._opening
            case work.DropLane():
                self._lanes.pop(message.lane, None)
            case work.DropStream() if message.stream in self._listings:
                os.close(self._listings.pop(message.stream))
        self._worker.handle(message, [])

    def _listing(self, stream: int) -> int:
        with self._listed:
            if not self._listed.wait_for(lambda: stream in self._listings, _LISTING_S):
                raise TimeoutError(f"the listing of a dataset did not reach {self._host} within {_LISTING_S:.0f} s")
            return self._listings[stream]

    def _fill(self, task: work.Fill, line: TcpLine) -> None:
        began_ns = time.monotonic_ns()
        while len(self._sending) > _SENDING:
            self._sending.popleft().result()
        held_ns = time.monotonic_ns() - began_ns
        lanes = [self._lanes[lane] for lane in task.lanes]
        for rows in lanes:
            rows.begin(task.position, task.count)
        # ORDER: a sample that ends this process must be named before it is begun.
        self._page.tell = (lambda at: self._sender.submit(line.send, at).result()) if task.alone else None
        self._worker.handle(task, [])
        answer, _ = receive(self._daemon, work.FROM_WORKER)
        arrays: list[npt.NDArray[Any]] = []
        if isinstance(answer, work.Failed):
            reason = (not answer.damaged and self._unreadable(task.stream)) or f"{answer.reason} (on {self._host})"
            answer = work.Failed(task.task, reason[:4000], answer.lane, elsewhere=answer.lane is None)
        elif len({row[0] for row in answer.bad}) == task.count and (reason := self._unreadable(task.stream)):
            answer = work.Failed(task.task, reason[:4000], elsewhere=True)
        else:
            answer = replace(answer, held_ns=held_ns)
            arrays = [array for rows in lanes for array in rows.arrays.values()]
        self._sending.append(self._sender.submit(line.send, answer, arrays))

    def _unreadable(self, stream: int) -> str:
        """Why no sample of a stream can be read here; empty if some can."""
        announced = self._worker.streams[stream]
        if not isinstance(announced.opened, Stream):
            announced.opened = None  # its place may be mounted before the next task
        for place in announced.add.places:
            try:
                os.scandir(place).close()
            except OSError as e:
                return (
                    f"{self._host}, a remote worker's machine, cannot read {place}: {e.strerror}. A dataset must have "
                    "the same path on both machines, links followed"
                )
        if announced.opened is None:
            return ""
        source, why = announced.opened.source, ""
        # The empty folder of a file system that is not mounted can be opened as well.
        for index in {0, len(source) // 2, len(source) - 1}:
            try:
                source.read(index)
            except SampleError as e:
                why = f"{self._host}, a remote worker's machine, cannot read a dataset's samples: {e.reason}"
            except Exception:  # noqa: BLE001 - a plug-in raised it, or this process lacks something
                return ""
            else:
                return ""
        return why
