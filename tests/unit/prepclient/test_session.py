"""A session under any interleaving: batches in order, rows given back in order and never while one below is held."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from prepclient.session import Bad, Handed, Session, Totals
from prepserver.pipeline.batches import Batch, BatchLine, BatchShape
from tests.support.sessions import hand_out

CASES = st.tuples(
    st.integers(1, 40), st.integers(1, 7), st.booleans(), st.integers(1, 3), st.integers(0, 2), st.integers(0, 40)
).filter(lambda c: c[0] >= c[3] * (c[1] if c[2] else 1) and c[5] <= c[0])


def made(
    n: int, size: int, drop_last: bool, world: int, epoch: int, offset: int, rank: int
) -> tuple[Session, BatchLine]:
    start = epoch * n
    session = Session(n, epoch, start, start + offset, BatchShape(size, drop_last, rank, world))
    return session, BatchLine(n, BatchShape(size, drop_last, rank, world), start, start + offset)


def is_bad(position: int) -> bool:
    return position % 5 == 2


@given(CASES, st.data())
@settings(deadline=None, max_examples=250)
def test_any_interleaving_keeps_order_and_holds_what_is_held(
    case: tuple[int, int, bool, int, int, int], data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, case[3] - 1))
    session, expected = made(*case, rank)
    handing = made(*case, rank)[1]
    n = case[0]
    told = session.ready_upto
    staged: list[Batch] = []
    held: list[Batch] = []
    released = session.released_upto
    handed = 0
    for _ in range(data.draw(st.integers(0, 60))):
        match data.draw(
            st.sampled_from(["ready", "old", "stage", "stage", "hand_out", "hand_out", "give_back", "give_back"])
        ):
            case "ready":
                upto = told + data.draw(st.integers(0, 2 * case[1]))
                session.ready(upto, [(p, p * 10, f"r{p}") for p in range(told, upto) if is_bad(p)])
                told = upto
            case "old":
                since = data.draw(st.integers(min(released, told), told))
                session.ready(since, [(p, p * 10, f"r{p}") for p in range(released, since) if is_bad(p)])
            case "stage":
                batch = session.next_ready()
                assert session.upcoming == expected.peek()
                assert (batch is not None) == (expected.peek().stop <= told)
                if batch is not None:
                    assert session.pick_up() == batch == expected.peek()
                    expected.advance()
                    staged.append(batch)
                    held.append(batch)
            case "hand_out" if staged:
                batch, bad = hand_out(session)
                assert batch == staged.pop(0) == handing.peek()
                handing.advance()
                handed += 1
                assert bad == [Bad(p, p * 10, f"r{p}") for p in range(batch.start, batch.stop) if is_bad(p)]
            case "give_back" if held:
                batch = held.pop(data.draw(st.integers(0, len(held) - 1)))
                moved = session.give_back(batch.start)
                assert moved == (session.released_upto > released)
        assert session.released_upto >= released
        assert session.released_upto == (held[0] if held else expected.peek()).start
        assert len(session._picked_up) == len(staged)
        assert session.position == handing.position
        assert session.epoch_start == handing.epoch_start
        assert session.epoch == case[4] + (handing.epoch_start - case[4] * n) // n
        assert session.batches_left == len(handing.plan) - handing.number
        released = session.released_upto
    while held:
        session.give_back(held.pop().start)
    assert session.released_upto == expected.peek().start


def test_what_was_given_back_is_not_remembered_for_ever() -> None:
    session = Session(10, 0, 0, 0, BatchShape(2, False, 0, 1))
    for step in range(1000):
        session.ready(2 * step + 2, [(2 * step, 1, "r")])
        start = session.pick_up().start
        hand_out(session)
        session.give_back(start)
    assert not session._held
    assert len(session._bad) <= 1


@pytest.mark.parametrize("world", [1, 2])
def test_a_refused_batch_is_where_one_process_resumes(world: int) -> None:
    """Of several ranks, the others have trained on theirs."""
    session, _ = made(40, 4, False, world, 0, 0, 0)
    before, after = session.handed, Handed(BatchLine(40, BatchShape(4, False, 0, world), 0, 4 * world), Totals(1))
    assert session.to_save() is session
    session.refused = before, after
    session.handed = after
    saved = session.to_save()
    assert (saved.handed is before) == (world == 1)
    assert session.handed is after
    session.handed = Handed(after.line, Totals(2))
    assert session.to_save() is session


def test_bad_rows_wait_for_the_batch_after_the_one_given_back() -> None:
    session = Session(8, 0, 0, 0, BatchShape(4, False, 0, 1))
    session.ready(8, [(1, 11, "a"), (6, 66, "b")])
    for _ in range(2):
        session.give_back(session.pick_up().start)
    assert session.released_upto == 8
    assert hand_out(session) == (Batch(0, 4), [Bad(1, 11, "a")])
    assert hand_out(session) == (Batch(4, 8), [Bad(6, 66, "b")])


def test_a_bad_row_of_a_sibling_is_not_ours() -> None:
    session = Session(8, 0, 0, 0, BatchShape(2, False, 1, 2))
    session.ready(4, [(0, 5, "theirs"), (3, 7, "ours")])
    session.pick_up()
    assert hand_out(session) == (Batch(2, 4), [Bad(3, 7, "ours")])


def test_epochs_are_counted_as_the_training_loop_consumes() -> None:
    """Rows that are picked up ahead of it do not count."""
    session = Session(4, 3, 12, 12, BatchShape(2, False, 0, 1))
    session.ready(20, [])
    for _ in range(4):
        session.pick_up()
    assert (session.epoch, session.line.at_epoch_start, session.batches_left) == (3, True, 2)
    assert session.stands == 12
    hand_out(session)
    assert (session.epoch, session.line.at_epoch_start, session.batches_left) == (3, False, 1)
    assert session.stands == 14
    hand_out(session)
    assert (session.epoch, session.line.at_epoch_start, session.epoch_start) == (4, True, 16)


def test_a_resumed_session_is_in_the_middle_of_its_epoch() -> None:
    session = Session(10, 2, 20, 26, BatchShape(4, False, 0, 1))
    assert (session.line.at_epoch_start, session.epoch, session.batches_left, session.line.batches_per_epoch) == (
        False,
        2,
        1,
        3,
    )
    assert session.released_upto == 26


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_session_that_comes_back_goes_on_at_its_next_batch(rounds: int) -> None:
    session = Session(12, 0, 0, 0, BatchShape(2, False, 1, 2), rounds)
    assert session.upcoming == Batch(4 * rounds + 2, 4 * rounds + 4)
    assert session.place == (0, 0, rounds)
    assert session.position == 4 * rounds
