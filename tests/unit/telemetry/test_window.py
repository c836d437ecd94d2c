"""The growth of a count over the last ten seconds."""

from __future__ import annotations

from prepserver.telemetry.window import Window


def test_nothing_is_known_before_two_readings_at_two_times() -> None:
    window = Window()
    assert window.per_s is None
    window.mark(1.0, 5)
    window.mark(1.0, 7)
    assert window.per_s is None


def test_growth_before_the_window_does_not_count() -> None:
    window = Window()
    for second in range(40):
        window.mark(float(second), 1000.0 * min(second, 20))
    assert window.per_s == 0.0
    assert window.last == (39.0, 20_000.0)
    assert len(window) == 11
