"""``prepserver`` with faults: what a file in ``$FAULTS`` names raises once, as an error that nobody foresaw would.

Run as a script, with the arguments of the command line.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prepserver.cli import main
from prepserver.daemon import line, questions, server
from prepserver.daemon.attachments import Attachments
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.peers import Peers
from prepserver.schedule.admission import Admission
from prepserver.schedule.coordinator import Coordinator

FAULTS = Path(os.environ.get("FAULTS", "/nonexistent"))
PLACES: dict[str, tuple[Any, str]] = {
    "take in": (Peers, "add"),
    "status": (server, "snapshot"),
    "check": (questions, "check"),
    "admit": (questions.Questions, "ask"),
    "ledger": (Ledger, "attached"),
    "present": (Admission, "_present"),
    "release": (Coordinator, "_released"),
    "line": (line, "decode"),
}
"""Where each of them strikes."""

LOST = {"moved": (Attachments, "moved")}
"""What is left undone instead, as by an error between what the scheduler decides and its doing."""


AFTER = {"admitted": (Admission, "attach")}
"""Where they strike at the end, once all is decided."""

RECEIVE = (line.Line, "receive")
"""Where ``receive`` strikes: with a message in hand. Of other clients, a part of one may come at any time."""


def faulty(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
    """`do`, which raises if its fault is ordered, before it does anything."""

    @functools.wraps(do)
    def done(*arguments: Any, **more: Any) -> Any:
        if (FAULTS / name).exists():
            (FAULTS / name).unlink()
            if name in LOST:
                return None
            raise RuntimeError(f"a fault: {name}")
        return do(*arguments, **more)

    return done


def faulty_with_a_message(do: Callable[..., Any]) -> Callable[..., Any]:
    """`do`, which raises if the fault ``receive`` is ordered and a whole message has arrived."""

    @functools.wraps(do)
    def done(*arguments: Any) -> Any:
        message = do(*arguments)
        faulty("receive", lambda: None)()
        return message

    return done


def faulty_at_its_end(name: str, do: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """`do`, which raises if its fault is ordered, when it has done everything."""

    @functools.wraps(do)
    def done(*arguments: Any) -> Iterator[Any]:
        yield from do(*arguments)
        faulty(name, lambda: None)()

    return done


if __name__ == "__main__":
    for fault, (owner, attribute) in {**PLACES, **LOST}.items():
        setattr(owner, attribute, faulty(fault, getattr(owner, attribute)))
    for fault, (owner, attribute) in AFTER.items():
        setattr(owner, attribute, faulty_at_its_end(fault, getattr(owner, attribute)))
    setattr(*RECEIVE, faulty_with_a_message(getattr(*RECEIVE)))
    sys.exit(main())
