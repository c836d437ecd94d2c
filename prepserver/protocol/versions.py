"""Which releases work together.

A client speaks one protocol, the one of its release. A daemon serves its own and that of the minor release before it,
so that jobs go on while the daemon is upgraded. docs/protocol.md says what may change within a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from prepserver import __version__
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.messages import Hello
from prepserver.protocol.schema import Grows, ProtocolError, Word

PROTOCOL = 4
"""Increased when a peer of the previous number could misread a message, a ring's layout or which rows a batch has."""

OLDEST = 4  # the oldest protocol that a daemon serves


@dataclass(frozen=True, slots=True)
class _Early(Grows):
    """The first message of clients before there was `Hello`."""

    version: Word


_FIRST = {"Hello": Hello, "Attach": _Early, "AskStatus": _Early, "AskStop": _Early}


def hello() -> bytes:
    """The first message of a client of this release."""
    return encode(Hello(PROTOCOL, __version__))


def greeting(said: bytes) -> Hello:
    """A client's first message; raises `ProtocolError` if it is none, or of a release before there was `Hello`."""
    first = decode(said, _FIRST)
    if isinstance(first, Hello):
        return first
    raise ProtocolError(
        f"the client (prepserver {first.version}) is of a release before protocol {OLDEST}, the oldest that this "
        f"daemon (prepserver {__version__}) serves: install {__version__} for the job, too"
    )


def mismatch(hello: Hello) -> str:
    """Why this daemon serves no rows to a client, and what to do; empty if it does."""
    if OLDEST <= hello.protocol <= PROTOCOL:
        return ""
    if hello.protocol < OLDEST:
        todo = f"install {__version__} for the job, too"
    else:
        todo = (
            "upgrade the daemon first, by `prepserver start --replace` of the newer release. A daemon keeps the "
            "release with which it was started"
        )
    return (
        f"the client (prepserver {hello.version}) speaks protocol {hello.protocol}, this daemon (prepserver "
        f"{__version__}) speaks {PROTOCOL} and serves {OLDEST} to {PROTOCOL}: {todo}"
    )


def too_old(said: str) -> str:
    """Why a daemon that refuses `Hello` cannot serve this client."""
    return (
        f"the daemon is of a release before protocol {OLDEST}, the oldest that this client (prepserver {__version__}, "
        f"protocol {PROTOCOL}) can use: stop it with its own `prepserver stop`, and start {__version__} (it said: "
        f"{said})"
    )
