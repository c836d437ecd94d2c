"""ZeroMQ's wire protocol (ZMTP 3.0, https://rfc.zeromq.org/spec/23/), for an end that is a plain socket.

libzmq at the other end, a DEALER, sees a ROUTER that uses the NULL mechanism. Messages have one part.
"""

from __future__ import annotations

from collections.abc import Generator

from prepserver.protocol.codec import MAX_MESSAGE_BYTES
from prepserver.protocol.schema import ProtocolError

_LONG = 2  # its size takes eight bytes
_COMMAND = 4  # no message
_GREETING_BYTES = 64
_MECHANISM = slice(12, 32)
_NULL = b"NULL".ljust(20, b"\0")
_READY = b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"

OPENING = b"\xff" + bytes(8) + b"\x7f\x03\0" + _NULL + bytes(32) + bytes([_COMMAND, len(_READY)]) + _READY
"""What is sent first. Messages follow once the other end's opening has come: libzmq takes none before."""


def frame(message: bytes) -> bytes:
    """`message` as it is sent."""
    size = len(message)
    head = bytes([0, size]) if size < 256 else bytes([_LONG]) + size.to_bytes(8)
    return head + message


def received() -> Generator[int | bytes, bytes, None]:
    """Takes apart what the other end sends.

    Yields:
        A number: so many bytes are to be read next, and sent to it. Or a message; the first one is empty and says that
        the opening has come. Anything is to be sent to it then.

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
