"""The processes that read and transcode, and the order of what they give.

Forked, so that they have the open source as it is; each talks over a socket pair: eight bytes with the number of a
sample go out, a record comes back. No process is lost without a word: one that dies is replaced, and the sample it
was at is said to be bad. One that is left alone sees its socket close, and ends.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prepserver.pack.transcode import Transcoded

_TASK = struct.Struct("<Q")
# Sample, whether it could be had, bytes read, bytes of the text, bytes of the record.
_ANSWER = struct.Struct("<Q?QII")
_AHEAD = 2
"""Samples that a process is given at a time, so that it never waits for an answer to its answer."""
_WINDOW = 16
"""Results for each process that may wait for an earlier one that takes longer."""


class UnreadableError(Exception):
    """A sample cannot be read; the text says why, in one line without the path."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a sample.

    Attributes:
        sample: Its number.
        ok: There is a record.
        read_bytes: Length of its file.
        text: `Transcoded.how`, or why there is no record.
        record: The record; empty if there is none.
    """

    sample: int
    ok: bool
    read_bytes: int
    text: str
    record: bytes


Work = Callable[[int], tuple[int, Transcoded]]
"""Bytes read and the record of a sample, or `UnreadableError`. Runs in the forked processes."""


@dataclass(eq=False)
class _Hand:
    pid: int
    sock: socket.socket
    given: deque[int] = field(default_factory=deque)


class Crew:
    """Runs work in processes.

    Args:
        work: What they do.
        count: How many.
    """

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self._count = count
        self._selector = selectors.DefaultSelector()
        self._hands: set[_Hand] = set()
        self._again: deque[int] = deque()

    def run(self, begin: int, end: int, idle: Callable[[], None]) -> Iterator[Answer]:
        """Yield the answers of samples [begin, end) in their order.

        Args:
            begin: First sample.
            end: Behind the last.
            idle: Called a few times a second while nothing comes.
        """
        waiting: dict[int, Answer] = {}
        following, due = begin, begin
        try:
            for _ in range(min(self._count, max(end - begin, 0))):
                self._hire()
            while due < end:
                for hand in self._hands:
                    while len(hand.given) < _AHEAD and (self._again or following < end):
                        if not self._again and following >= due + _WINDOW * self._count:
                            break
                        if self._again:
                            sample = self._again.popleft()
                        else:
                            sample, following = following, following + 1
                        _give(hand, sample)
                events = self._selector.select(0.2)
                if not events:
                    idle()
                for key, _ in events:
                    answer = self._take(key.data)
                    waiting[answer.sample] = answer
                while due in waiting:
                    yield waiting.pop(due)
                    due += 1
        finally:
            self._dismiss()

    def _hire(self) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Numeric libraries have threads as soon as they are imported; a child never calls into what they do.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _serve(self._work, theirs, [ours, *(hand.sock for hand in self._hands)])
        theirs.close()
        hand = _Hand(pid, ours)
        self._hands.add(hand)
        self._selector.register(ours, selectors.EVENT_READ, hand)

    def _take(self, hand: _Hand) -> Answer:
        try:
            sample, ok, read_bytes, text_bytes, record_bytes = _ANSWER.unpack(_receive(hand.sock, _ANSWER.size))
            text = _receive(hand.sock, text_bytes).decode()
            record = _receive(hand.sock, record_bytes)
        except (EOFError, ConnectionError):
            return self._replace(hand)
        hand.given.remove(sample)
        return Answer(sample, ok, read_bytes, text, record)

    def _replace(self, hand: _Hand) -> Answer:
        """Another process for one that died; samples are taken in turn, so it died of the first it had."""
        self._selector.unregister(hand.sock)
        hand.sock.close()
        self._hands.remove(hand)
        _, status = os.waitpid(hand.pid, 0)
        ended = (
            f"signal {os.WTERMSIG(status)}"
            if os.WIFSIGNALED(status)
            else f"exit status {os.waitstatus_to_exitcode(status)}"
        )
        sample = hand.given.popleft()
        self._again.extend(hand.given)
        self._hire()
        return Answer(sample, False, 0, f"the process that packed it died ({ended})", b"")

    def _dismiss(self) -> None:
        for hand in self._hands:
            self._selector.unregister(hand.sock)
            hand.sock.close()
        for hand in self._hands:
            # It may be in the middle of a large image, of which nobody wants to know any more.
            os.kill(hand.pid, signal.SIGKILL)
            os.waitpid(hand.pid, 0)
        self._hands.clear()
        self._selector.close()


def _give(hand: _Hand, sample: int) -> None:
    hand.given.append(sample)
    try:
        hand.sock.sendall(_TASK.pack(sample))
    except (BrokenPipeError, ConnectionResetError):
        return  # it has died; its socket says so when it is read


def _serve(work: Work, sock: socket.socket, others: list[socket.socket]) -> None:
    """The life of a process of the crew; does not return."""
    status = 70  # sysexits.h: EX_SOFTWARE
    try:
        # Ctrl-C is for the first process: a jpegtran that it kills would leave a file that counts as damaged.
        os.setpgid(0, 0)
        for other in others:
            other.close()
        while task := sock.recv(_TASK.size, socket.MSG_WAITALL):
            (sample,) = _TASK.unpack(task)
            try:
                read_bytes, done = work(sample)
                ok, text, record = True, done.how.encode(), done.record
            except UnreadableError as error:
                ok, read_bytes, text, record = False, 0, str(error).encode("utf-8", "backslashreplace"), b""
            sock.sendall(_ANSWER.pack(sample, ok, read_bytes, len(text), len(record)) + text)
            sock.sendall(record)
        status = 0
    except (BrokenPipeError, ConnectionResetError):
        status = 0
    except BaseException:  # noqa: BLE001 -- nothing of the parent's may run in this process, whatever happens
        traceback.print_exc()
    finally:
        os._exit(status)


def _receive(sock: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
    return bytes(data)
