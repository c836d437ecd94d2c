"""ZeroMQ's wire protocol, with libzmq as the judge in `tests/unit/daemon/test_line.py`."""

from __future__ import annotations

import contextlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepserver.protocol import zmtp
from prepserver.protocol.codec import MAX_MESSAGE_BYTES
from prepserver.protocol.schema import ProtocolError


def heard(data: bytes) -> list[bytes]:
    """The messages in `data`, without the empty one that stands for the opening."""
    parts = zmtp.received()
    found, messages = next(parts), []
    while True:
        if isinstance(found, bytes):
            messages.append(found)
            found = parts.send(b"")
            continue
        if len(data) < found:
            return messages[1:]
        step, data = data[:found], data[found:]
        found = parts.send(step)


@given(st.lists(st.binary(min_size=1, max_size=300) | st.just(b"x" * MAX_MESSAGE_BYTES), max_size=5))
def test_what_was_framed_is_heard(messages: list[bytes]) -> None:
    assert heard(zmtp.OPENING + b"".join(map(zmtp.frame, messages))) == messages


@given(st.binary(max_size=400))
def test_any_bytes_are_messages_or_a_protocol_error(noise: bytes) -> None:
    for data in (noise, zmtp.OPENING + noise):
        with contextlib.suppress(ProtocolError):
            assert all(0 < len(message) <= len(noise) for message in heard(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes(64), "not ZeroMQ"),
        (zmtp.OPENING[:10] + b"\x01" + zmtp.OPENING[11:], "not ZeroMQ"),
        (zmtp.OPENING.replace(b"NULL", b"PLAI"), "not ZeroMQ"),
        (zmtp.OPENING[:64] + zmtp.frame(b"early"), "flags 0"),
        (zmtp.OPENING + b"\x01\x01a\x00\x01b", "flags 1"),
        (zmtp.OPENING + b"\x04\x05\x04PING", "flags 4"),
        (zmtp.OPENING + b"\x00\x00", "a message of 0 bytes"),
        (zmtp.OPENING + b"\x02" + b"\xff" * 8, "a message of 18446744073709551615 bytes"),
        (zmtp.OPENING + zmtp.frame(bytes(MAX_MESSAGE_BYTES + 1)), "at most|1 to 65536"),
    ],
)
def test_what_no_client_of_ours_sends_is_named(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        heard(data)
