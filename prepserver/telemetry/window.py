"""How fast a count has grown recently: `prepserver status` shows this instead of averages since the start."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0


class Window:
    """Readings of one growing count over the last `WINDOW_S` seconds, taken about once a second."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, float]] = deque()

    def __len__(self) -> int:
        return len(self._readings)

    def mark(self, now_s: float, count: float) -> None:
        """Notes that the count is `count` now."""
        self._readings.append((now_s, count))
        while len(self._readings) > 2 and now_s - self._readings[0][0] > WINDOW_S:
            self._readings.popleft()

    @property
    def last(self) -> tuple[float, float] | None:
        """The latest reading, as (time, count)."""
        return self._readings[-1] if self._readings else None

    @property
    def per_s(self) -> float | None:
        """Growth per second; None before two readings at different times."""
        return self.per_s_of(float("inf"))

    def per_s_of(self, last_s: float) -> float | None:
        """Growth per second over the readings of the last `last_s` seconds."""
        if len(self._readings) < 2:
            return None
        t1, n1 = self._readings[-1]
        t0, n0 = next(((t, n) for t, n in self._readings if t1 - t <= last_s), (t1, n1))
        return (n1 - n0) / (t1 - t0) if t1 > t0 else None

    @property
    def span_s(self) -> float:
        """Time between the first and the last reading."""
        return self._readings[-1][0] - self._readings[0][0] if self._readings else 0.0
