"""What runs on other machines: a worker's code, in an actor of Ray, which makes one block of rows after the other.

An actor keeps what it was told of streams and lanes, as a worker does, and remembers no task. It runs in Ray's process
with Ray's rights: nothing confines it here.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prepserver import plugins
from prepserver.engine.block import BlockRows, block_bytes, split
from prepserver.engine.build import build, differences
from prepserver.pipeline.spec import Codes
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.layout import RingLayout
from prepserver.protocol.work import FROM_WORKER, TO_WORKER, AddLane, AddStream, DropLane, DropStream, Failed, Fill
from prepserver.source import SampleError
from prepserver.source.storage import remote
from prepserver.telemetry.page import StatsPage, create_page
from prepserver.transform import hush_libtiff, path
from prepserver.worker.channel import pair, receive
from prepserver.worker.loop import Worker
from prepserver.worker.streams import Stream

Block = npt.NDArray[np.uint8]


class OtherBuildError(Exception):
    """This machine would make other rows than the daemon's; the text names the machine and the difference."""


class RowActor:
    """A remote worker. Its methods run one after the other.

    Args:
        expected: `build()` of the daemon's machine.
        names: Plug-ins to load.
        codes: Digests of the code of those plug-ins there.
        urls: URLs below which it may read.
        deadline_s: Longest time for one such read.

    Raises:
        OtherBuildError: Rows would differ.
        PluginError: A plug-in cannot be loaded.
    """

    def __init__(
        self, expected: Mapping[str, str], names: Sequence[str], codes: Codes, urls: Sequence[str], deadline_s: float
    ) -> None:
        self._host = socket.gethostname()
        found = differences(expected, build())
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
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        fd = create_page("prepserver-actor")
        page = StatsPage(fd, writable=True)
        os.close(fd)
        self._answers, self._line = pair()
        log = logging.getLogger("prepserver.actor")
        self._opening = BlockRows(())
        self._worker = Worker(0, self._line, page, log, rows=lambda _layout, _fds: self._opening)
        self._lanes: dict[int, BlockRows] = {}
        self._room = np.empty(0, np.uint8)
        self._listings: dict[int, int] = {}  # stream -> a file without a name, which no death leaves behind

    def about(self) -> tuple[str, int, str, str]:
        """Name of this machine, pid, kernels and why these. Called once, before all else."""
        gc.disable()  # see `prepserver.worker.loop.run`
        return self._host, os.getpid(), *path()[:2]

    def close(self) -> None:
        """Closes what it holds; Ray just ends the process."""
        for sock in (self._answers, self._line):
            sock.close()
        for fd in self._listings.values():
            os.close(fd)

    def tell(self, data: bytes, listing: Any = None) -> None:
        """Takes a message of the daemon that is no task; `listing` is the content of a stream's index file."""
        message = decode(data, TO_WORKER)
        if isinstance(message, AddStream) and listing is not None:
            fd = self._listings[message.stream] = os.memfd_create("prepserver-listing", os.MFD_CLOEXEC)
            with open(fd, "wb", closefd=False) as file:
                file.write(listing)
            message = replace(message, index_path=f"/proc/self/fd/{fd}")
        if isinstance(message, DropLane):
            self._lanes.pop(message.lane, None)
        if isinstance(message, DropStream) and message.stream in self._listings:
            os.close(self._listings.pop(message.stream))
        if isinstance(message, AddLane):
            self._opening = BlockRows(RingLayout.from_wire(message.layout).fields)
            self._lanes[message.lane] = self._opening
        self._worker.handle(message, [])

    def indices(self, stream: int, position: int, count: int) -> list[int]:
        """The samples of some positions; none if the source cannot be opened."""
        opened = self._worker.open(stream)
        return opened.order.indices(position, count) if isinstance(opened, Stream) else []

    def fill(self, data: bytes) -> tuple[bytes, Block | None, str]:
        """Runs a task.

        Returns:
            The answer of a worker, the block (None if the task failed), and why this machine is of no use for the
            stream; empty if it is.
        """
        task = decode(data, TO_WORKER)
        assert isinstance(task, Fill)
        lanes = [self._lanes[lane] for lane in task.lanes]
        nbytes = block_bytes((rows.fields for rows in lanes), task.count)
        if nbytes > len(self._room):
            self._room = np.empty(nbytes, np.uint8)
        block = self._room[:nbytes]  # used again: Ray has copied it when the next call begins
        for rows, arrays in zip(lanes, split(block, (rows.fields for rows in lanes), task.count), strict=True):
            rows.begin(task.position, arrays)
        self._worker.handle(task, [])
        answer, _ = receive(self._answers, FROM_WORKER)
        self._worker.collect_garbage()
        if isinstance(answer, Failed):
            answer = replace(answer, reason=f"{answer.reason} (on {self._host})"[:4000])
            return encode(answer), None, self._unreadable(task.stream)
        nothing = len({row[0] for row in answer.bad}) == task.count
        return encode(answer), block, self._unreadable(task.stream) if nothing else ""

    def _unreadable(self, stream: int) -> str:
        """Why nothing of a stream can be read here; empty if something can."""
        for place in self._worker.streams[stream].add.places:
            try:
                os.scandir(place).close()
            except OSError as e:
                return (
                    f"{self._host}, a remote worker's machine, cannot read {place}: {e.strerror}. A dataset must lie "
                    "there under the same path as here, links followed; or start the daemon without --engine ray"
                )
        opened = self._worker.open(stream)
        if not isinstance(opened, Stream):
            return ""
        source, why = opened.source, ""
        # An empty folder in the place of a file system that is not mounted can be read.
        for index in {0, len(source) // 2, len(source) - 1}:
            try:
                source.read(index)
            except SampleError as e:
                why = f"{self._host}, a remote worker's machine, reads nothing of a dataset: {e.reason}"
            else:
                return ""
        return why
