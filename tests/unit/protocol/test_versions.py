"""Who is served, who is told what, and which fields a peer of another release may add."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from prepserver import __version__
from prepserver.protocol import messages, versions
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.messages import Attach, Bye, Hello, Ready, Release
from prepserver.protocol.schema import ProtocolError
from prepserver.protocol.versions import OLDEST, PROTOCOL, greeting, mismatch

ATTACH: dict[str, Any] = {
    "job": "j", "source": {}, "shuffle": "full", "seed": 1, "pipeline": [], "batch_size": 4, "drop_last": False,
    "rank": 0, "world_size": 1,
}  # fmt: skip


def later(message: Any, **fields: Any) -> bytes:
    """The message as a later release may send it."""
    return bytes(msgpack.packb({**msgpack.unpackb(encode(message)), **fields}))


def test_the_release_before_is_served_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "PROTOCOL", 6)
    monkeypatch.setattr(versions, "OLDEST", 5)
    assert [n for n in range(1, 9) if not mismatch(Hello(n, "9"))] == [5, 6]


@pytest.mark.parametrize(
    ("protocol", "todo"),
    [(OLDEST - 1, f"install {__version__} for the job, too"), (PROTOCOL + 1, "`prepserver start --replace`")],
)
def test_a_mismatch_names_both_releases_and_what_to_do(protocol: int, todo: str) -> None:
    said = mismatch(Hello(protocol, "9.8"))
    for part in ("prepserver 9.8", f"protocol {protocol}", f"prepserver {__version__}", f"speaks {PROTOCOL}", todo):
        assert part in said


@pytest.mark.parametrize("name", ["Attach", "AskStatus", "AskStop"])
def test_the_first_release_says_no_hello_and_is_told(name: str) -> None:
    with pytest.raises(ProtocolError, match=rf"prepserver 0\.1\.0.*prepserver {__version__}.* install"):
        greeting(msgpack.packb({"t": name, "protocol": [1, 1], "version": "0.1.0", **ATTACH}))


def test_a_client_says_its_release_and_names_an_old_daemon() -> None:
    assert greeting(versions.hello()) == Hello(PROTOCOL, __version__)
    for part in (f"protocol {OLDEST}", f"prepserver {__version__}", f"protocol {PROTOCOL}", "no such message"):
        assert part in versions.too_old("no such message")


def test_a_hello_may_grow() -> None:
    assert greeting(later(Hello(7, "9"), token=b"x")) == Hello(7, "9")


@pytest.mark.parametrize("said", [b"", b"\xc1", encode(Bye(3)), msgpack.packb({"t": "Hello", "version": "9"})])
def test_what_is_no_greeting_is_refused(said: bytes) -> None:
    with pytest.raises(ProtocolError):
        greeting(said)


def test_what_is_new_in_news_and_progress_is_ignored() -> None:
    assert decode(later(Ready(64), heat=3), messages.FROM_DAEMON) == Ready(64)
    assert decode(later(Release(64), heat=3), messages.TO_DAEMON) == Release(64)


def test_a_question_is_obeyed_as_a_whole_or_refused() -> None:
    """A field that an older daemon ignored could be the one that says which rows are asked for."""
    with pytest.raises(ProtocolError, match="Attach: unknown field 'order'"):
        decode(later(Attach(**ATTACH), order="new"), messages.TO_DAEMON)


def test_fields_of_default_value_are_not_sent() -> None:
    """So a client that does not use a new field is served by a daemon that does not know it."""
    assert msgpack.unpackb(encode(Attach(**ATTACH, rounds=2))) == {"t": "Attach", **ATTACH, "rounds": 2}
