"""``prepserver`` with faults: what a file in ``$FAULTS`` names raises once, as an error that nobody foresaw would.

Run as a script, with the arguments of the command line.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepserver.cli import main
from prepserver.daemon import control, questions, server
from prepserver.daemon.attach import Peer
from prepserver.daemon.attachments import Attachments
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.peers import Peers
from prepserver.schedule.admission import Admission
from prepserver.schedule.coordinator import Coordinator

FAULTS = Path(os.environ.get("FAULTS", "/nonexistent"))
PLACES: dict[str, tuple[Any, str]] = {
    "take in": (Peers, "add"),
    "receive": (Peer, "receive"),
    "status": (server, "snapshot"),
    "check": (questions, "check"),
    "admit": (questions.Questions, "ask"),
    "ledger": (Ledger, "attached"),
    "present": (Admission, "_present"),
    "release": (Coordinator, "_released"),
    "repeat": (Coordinator, "_rank_asks"),
    "control line": (control, "decode"),
}
"""Where each of them strikes."""

LOST = {"moved": (Attachments, "moved")}
"""What is left undone instead, as by an error between what the scheduler decides and its doing."""


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


if __name__ == "__main__":
    for fault, (owner, attribute) in {**PLACES, **LOST}.items():
        setattr(owner, attribute, faulty(fault, getattr(owner, attribute)))
    sys.exit(main())
