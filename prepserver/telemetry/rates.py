"""How fast counts have grown over the last ten seconds: rows made, and whatever else is given by name and number."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from prepserver.telemetry.window import Window

Key = tuple[str, int]
"""A growing count: what is counted, and of which worker (ticket), rank (cursor), stream or lane."""

_BUSY_MARKS = 10


class Rates:
    """See the module."""

    def __init__(self) -> None:
        self._rows = Window()
        self._others: dict[Key, Window] = {}
        self._busy: deque[tuple[float, float]] = deque(maxlen=_BUSY_MARKS)

    def mark(self, now_s: float, rows_made: int, counts: Mapping[Key, float] | None = None) -> None:
        """Notes all counts; call it about once a second. A count that is missing is forgotten."""
        last = self._rows.last
        if last is not None and rows_made > last[1]:
            self._busy.append((now_s - last[0], rows_made - last[1]))
        self._rows.mark(now_s, rows_made)
        counts = counts or {}
        self._others = {key: self._others[key] if key in self._others else Window() for key in counts}
        for key, count in counts.items():
            self._others[key].mark(now_s, count)

    def per_s(self, key: Key, last_s: float = float("inf")) -> float | None:
        """Growth of another count, over the last `last_s` seconds at most; None if too little is known.

        It is at least 0, though a worker's count of a task that it has in hand may be a little more than in the end.
        """
        window = self._others.get(key)
        grown = window.per_s_of(last_s) if window is not None else None
        return max(0.0, grown) if grown is not None else None

    def span_s(self, key: Key) -> float:
        """Time between the first and the last reading that `per_s` uses."""
        window = self._others.get(key)
        return window.span_s if window is not None else 0.0

    def sums(self, number: int, prefix: str) -> dict[str, float]:
        """Growth per second of all counts of `number` whose names begin with `prefix`, by the rest of the name."""
        return {
            name[len(prefix) :]: window.per_s or 0.0
            for (name, of), window in self._others.items()
            if of == number and name.startswith(prefix)
        }

    @property
    def rows_per_s(self) -> float:
        """Rows filled per second; 0 if too little is known."""
        return self._rows.per_s or 0.0

    @property
    def busy_rows_per_s(self) -> float:
        """The rate in the last ten seconds in which rows were made: what to expect when a paused job goes on."""
        seconds = sum(s for s, _ in self._busy)
        return sum(rows for _, rows in self._busy) / seconds if seconds > 0 else 0.0
