"""ZeroMQ's wire protocol (ZMTP 3.0, https://rfc.zeromq.org/spec/23/), for an end that is a plain socket.

libzmq at the other end, a DEALER, sees a ROUTER that uses the NULL mechanism. Messages have one part.
"""

from __future__ import annotations

from collections.abc import Generator

from prepserver.protocol.codec import MAX_MESSAGE_BYTES
from prepserver.protocol.schema import ProtocolError

_LONG = 2  # the frame's size takes eight bytes
_COMMAND = 4  # the frame is a command, not a message
_GREETING_BYTES = 64
_MECHANISM = slice(12, 32)
_NULL = b"NULL".ljust(20, b"\0")
_READY = b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"

OPENING = b"\xff" + bytes(8) + b"\x7f\x03\0" + _NULL + bytes(32) + bytes([_COMMAND, len(_READY)]) + _READY
"""What each end sends first. Messages follow when the other end's opening has arrived: libzmq takes none before."""


def frame(message: bytes) -> bytes:
    """The frame of `message`."""
    size = len(message)
    head = bytes([0, size]) if size < 256 else bytes([_LONG]) + size.to_bytes(8)
    return head + message


def received() -> Generator[int | bytes, bytes, None]:
    """Parses what the other end sends.

    Yields:
        A number: read this many bytes, and send them to the generator. Or a message: send anything, to continue. The
        first message is empty and means that the opening has arrived.

    Raises:
        ProtocolError: The other end speaks something else, or a message is empty, has several parts or too many bytes.
    """
    greeting = yield _GREETING_BYTES
    if greeting[:1] != b"\xff" or greeting[9] != 0x7F or greeting[10] < 3 or greeting[_MECHANISM] != _NULL:
        raise ProtocolError("this is not ZeroMQ's protocol (ZMTP 3, mechanism NULL)")
    yield from _frame(_COMMAND)
    yield b""
    while True:
        yield (yield from _frame(0))


def _frame(expected: int) -> Generator[int, bytes, bytes]:
    flags, size = yield 2
    if flags & ~_LONG != expected:
        raise ProtocolError(f"a ZeroMQ frame with the flags {flags}: messages have one part, and commands come first")
    if flags & _LONG:
        size = int.from_bytes(bytes([size]) + (yield 7))
    if not 0 < size <= MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {size} bytes; 1 to {MAX_MESSAGE_BYTES} are read")
    return (yield size)
