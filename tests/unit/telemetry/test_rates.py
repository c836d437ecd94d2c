"""Rows per second over a window of ten seconds."""

from __future__ import annotations

from prepserver.telemetry.rates import Rates


def test_nothing_is_known_before_the_second_mark() -> None:
    rates = Rates()
    assert rates.rows_per_s == 0.0
    rates.mark(5.0, 100)
    assert rates.rows_per_s == 0.0


def test_the_rate_is_what_came_between_first_and_last_mark() -> None:
    rates = Rates()
    rates.mark(1.0, 7)
    rates.mark(3.0, 57)
    assert rates.rows_per_s == 25.0


def test_what_is_older_than_the_window_is_forgotten() -> None:
    rates = Rates()
    for second in range(30):
        rates.mark(float(second), 1000 * min(second, 10) + 7 * max(0, second - 10))
    assert rates.rows_per_s == 7.0
    assert rates.span_s(("rows", 0)) == 10


def test_marks_at_one_moment_divide_by_nothing() -> None:
    rates = Rates()
    rates.mark(2.0, 0)
    rates.mark(2.0, 5)
    assert rates.rows_per_s == 0.0


def test_after_a_long_silence_the_rate_spans_it() -> None:
    rates = Rates()
    rates.mark(0.0, 0)
    rates.mark(1000.0, 100)
    assert rates.rows_per_s == 0.1


def test_the_rate_of_work_leaves_pauses_out() -> None:
    rates = Rates()
    for second in range(60):
        rates.mark(float(second), 300 * min(second, 5))
    assert rates.rows_per_s == 0.0
    assert rates.busy_rows_per_s == 300.0
    for second in range(60, 80):
        rates.mark(float(second), 1500 + 100 * (second - 59))
    assert rates.busy_rows_per_s == 100.0


def test_the_rate_of_work_is_nothing_before_the_first_row() -> None:
    rates = Rates()
    rates.mark(1.0, 0)
    rates.mark(2.0, 0)
    assert rates.busy_rows_per_s == 0.0


def test_marks_between_which_work_began_or_ended_show_no_rate() -> None:
    """A ring was filled in a moment, in the middle of a second; a job that attaches then would see a slow pool."""
    rates = Rates()
    for second, rows in enumerate((0, 20, 1020, 1030, 1030, 1030)):
        rates.mark(float(second), rows)
        assert rates.busy_rows_per_s == (1000.0 if second >= 3 else 0.0)


def test_a_count_taken_too_high_gives_no_rate_below_nothing() -> None:
    rates = Rates()
    rates.mark(1.0, 0, {("busy", 1): 5.0})
    rates.mark(3.0, 0, {("busy", 1): 4.999})
    assert rates.per_s(("busy", 1)) == 0.0
