"""The processes that read and transcode samples, and the order of their answers.

They are forked, so they share the open source. Each has a socket pair: it receives the eight-byte number of a sample
and sends back a record. A process that dies is replaced, and the sample that it had in hand is reported as bad. A
process whose parent dies sees its socket close, and ends.
"""

from __future__ import annotations

import contextlib
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
# Sample, whether there is a record, bytes read, bytes of the text, bytes of the record.
_ANSWER = struct.Struct("<Q?QII")
_AHEAD = 2  # samples queued per process, so that it never waits for the next one
_WINDOW = 16  # results per process that may wait for an earlier, slower sample


class UnreadableError(Exception):
    """A sample cannot be read; the text says why, in one line without the path."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result for one sample."""

    sample: int  # its number
    ok: bool  # whether there is a record
    read_bytes: int  # bytes read for it
    text: str  # `Transcoded.how`, or why there is no record
    record: bytes


Work = Callable[[int], tuple[int, Transcoded]]
"""Returns the bytes read and the record of a sample, or raises `UnreadableError`. Runs in the forked processes."""


@dataclass(eq=False)
class _Hand:
    pid: int
    sock: socket.socket
    given: deque[int] = field(default_factory=deque)


class Crew:
    """Runs `work` in `count` processes."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self._count = count
        self._selector = selectors.DefaultSelector()
        self._hands: set[_Hand] = set()
        self._again: deque[int] = deque()

    def run(self, begin: int, end: int, idle: Callable[[], None]) -> Iterator[Answer]:
        """Yield the answers of samples [begin, end) in order; call `idle` a few times a second while none comes."""
        waiting: dict[int, Answer] = {}
        following, due = begin, begin
        try:
            for _ in range(min(self._count, max(end - begin, 0))):
                self._hire()
            while due < end:
                last = min(end, due + _WINDOW * self._count)
                for hand in self._hands:
                    while len(hand.given) < _AHEAD and (self._again or following < last):
                        if self._again:
                            sample = self._again.popleft()
                        else:
                            sample, following = following, following + 1
                        _give(hand, sample)
                events = self._selector.select(0.2)
                if not events:
                    idle()
                for key, _ in events:
                    if (answer := self._take(key.data)) is not None:
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
            # Numeric libraries start threads when they are imported; a child never uses what those do.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _serve(self._work, theirs, [ours, *(hand.sock for hand in self._hands)])
        theirs.close()
        hand = _Hand(pid, ours)
        self._hands.add(hand)
        self._selector.register(ours, selectors.EVENT_READ, hand)

    def _take(self, hand: _Hand) -> Answer | None:
        try:
            sample, ok, read_bytes, text_bytes, record_bytes = _ANSWER.unpack(_receive(hand.sock, _ANSWER.size))
            text = _receive(hand.sock, text_bytes).decode()
            record = _receive(hand.sock, record_bytes)
        except (EOFError, ConnectionError):
            return self._replace(hand)
        hand.given.remove(sample)
        return Answer(sample, ok, read_bytes, text, record)

    def _replace(self, hand: _Hand) -> Answer | None:
        """Replace a process that died. It takes samples in turn, so its first one killed it, if it had any."""
        self._selector.unregister(hand.sock)
        hand.sock.close()
        self._hands.remove(hand)
        _, status = os.waitpid(hand.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        ended = f"signal {-code}" if code < 0 else f"exit status {code}"
        self._hire()
        if not hand.given:
            return None
        sample, *others = hand.given
        self._again.extend(others)
        return Answer(sample, False, 0, f"the process that packed it died ({ended})", b"")

    def _dismiss(self) -> None:
        for hand in self._hands:
            self._selector.unregister(hand.sock)
            hand.sock.close()
        for hand in self._hands:
            # It may be busy with a large image, which is no longer needed.
            os.kill(hand.pid, signal.SIGKILL)
            os.waitpid(hand.pid, 0)
        self._hands.clear()
        self._selector.close()


def _give(hand: _Hand, sample: int) -> None:
    hand.given.append(sample)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died, which `_take` notices
        hand.sock.sendall(_TASK.pack(sample))


def _serve(work: Work, sock: socket.socket, others: list[socket.socket]) -> None:
    status = 70  # sysexits.h: EX_SOFTWARE
    try:
        # Keeps Ctrl-C from this process: the file in hand would count as damaged.
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
    except BaseException:  # noqa: BLE001 -- the parent's code must never run in this process
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
