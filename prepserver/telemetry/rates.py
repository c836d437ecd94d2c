"""How fast counts have grown over the last ten seconds: rows made, and any other count by name and number.

`prepserver status` shows these rates instead of averages since the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

Key = tuple[str, int]
"""A growing count: what is counted, and of which worker (ticket), rank (cursor), stream or lane."""

WINDOW_S = 10.0

_ROWS: Key = ("rows", 0)
_BUSY_MARKS = 10


class _Window:
    """Readings of one count over the last `WINDOW_S` seconds."""

    def __init__(self) -> None:
        self.readings: deque[tuple[float, float]] = deque()  # (time, count)

    def mark(self, now_s: float, count: float) -> None:
        self.readings.append((now_s, count))
        while len(self.readings) > 2 and now_s - self.readings[0][0] > WINDOW_S:
            self.readings.popleft()

    def per_s(self, last_s: float) -> float | None:
        """Growth per second over the last `last_s` seconds; None before two readings at different times."""
        t1, n1 = self.readings[-1]
        t0, n0 = next((t, n) for t, n in self.readings if t1 - t <= last_s)
        return (n1 - n0) / (t1 - t0) if t1 > t0 else None


class Rates:
    """Rates of all counts."""

    def __init__(self) -> None:
        self._windows: dict[Key, _Window] = {}
        self._busy: deque[tuple[float, float]] = deque(maxlen=_BUSY_MARKS)  # (seconds, rows) between two marks
        self._last: tuple[float, float] | None = None  # the last entry, kept back while work may have ended within it
        self._worked_s = float("-inf")

    def mark(self, now_s: float, rows_made: int, counts: Mapping[Key, float] | None = None) -> None:
        """Notes all counts; call it about once a second. Forgets counts that are missing."""
        rows = self._windows.get(_ROWS)
        if rows is not None and rows_made > rows.readings[-1][1]:
            self._worked(now_s, now_s - rows.readings[-1][0], rows_made - rows.readings[-1][1])
        counts = {**(counts or {}), _ROWS: rows_made}
        self._windows = {key: self._windows.get(key) or _Window() for key in counts}
        for key, count in counts.items():
            self._windows[key].mark(now_s, count)

    def _worked(self, now_s: float, seconds: float, rows: float) -> None:
        """Counts the time between two marks as busy only if there was work before and after it.

        At the edges, work may fill only a part of it.
        """
        begins = now_s - self._worked_s > WINDOW_S
        if self._last is not None and not begins:
            self._busy.append(self._last)
        self._last = None if begins else (seconds, rows)
        self._worked_s = now_s

    def per_s(self, key: Key, last_s: float = float("inf")) -> float | None:
        """Growth of a count per second, over the last `last_s` seconds at most; None if too little is known.

        It is at least 0, although a worker's count may shrink a little when a task ends.
        """
        grown = self._windows[key].per_s(last_s) if key in self._windows else None
        return max(0.0, grown) if grown is not None else None

    def span_s(self, key: Key) -> float:
        """Time between the first and the last reading that `per_s` uses."""
        window = self._windows.get(key)
        return window.readings[-1][0] - window.readings[0][0] if window is not None else 0.0

    def sums(self, number: int, prefix: str) -> dict[str, float]:
        """Growth per second of all counts of `number` whose names begin with `prefix`, by the rest of the name."""
        return {
            name.removeprefix(prefix): self.per_s((name, of)) or 0.0
            for name, of in self._windows
            if of == number and name.startswith(prefix)
        }

    @property
    def rows_per_s(self) -> float:
        """Rows filled per second; 0 if too little is known."""
        return self.per_s(_ROWS) or 0.0

    @property
    def busy_rows_per_s(self) -> float:
        """The rate in the last ten seconds in which rows were made: what to expect when a paused job continues.

        0 if too little is known, as after a ring was filled in a moment.
        """
        seconds = sum(s for s, _ in self._busy)
        return sum(rows for _, rows in self._busy) / seconds if seconds > 0 else 0.0
