"""The clock of the daemon's deadlines: it stands still while the daemon itself does not run.

A whole machine's processes may be stopped and go on later: by `docker pause`, a frozen cgroup, or Ctrl-Z. The monotonic
clock runs on meanwhile, and every deadline would be over at once: busy workers would be killed, and their samples
suspected. The daemon's loop reads this clock several times a second, so a long time without a reading was such a pause.
"""

from __future__ import annotations

import time

PAUSE_S = 5.0
"""A longer time without a reading is a pause. Little in the loop takes as long, and then it does no harm."""

_read_s = time.monotonic()
_paused_s = 0.0  # sum of all pauses
_resumed_s = 0.0  # end of the last one, by `time.monotonic`


def now_s() -> float:
    """Return seconds of `time.monotonic`, less all pauses."""
    global _read_s, _paused_s, _resumed_s  # of this process, as the pauses are
    read_s = time.monotonic()
    if read_s - _read_s > PAUSE_S:
        _paused_s += read_s - _read_s
        _resumed_s = read_s
    _read_s = read_s
    return read_s - _paused_s


def since_s(monotonic_s: float) -> float:
    """Return how long ago a time of `time.monotonic` was; one before the last pause counts from that pause's end."""
    return now_s() + _paused_s - max(monotonic_s, _resumed_s)
