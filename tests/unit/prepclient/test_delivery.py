"""The release discipline by itself: slots, order, and when a host row counts as free."""

from __future__ import annotations

import pytest

from prepclient.delivery import Delivery
from tests.support.fake_device import FakeDevice, FakeEvent


def started(depth: int = 2, batches: int = 0) -> tuple[FakeDevice, Delivery[FakeEvent], list[int]]:
    """A delivery with some batches submitted, and the slots that they went to."""
    device, slots = FakeDevice(), list[int]()
    delivery = Delivery(device, depth)
    for key in range(batches):
        delivery.submit(key, slots.append)
    return device, delivery, slots


def test_a_batch_is_free_when_its_copy_has_completed() -> None:
    """It is not free when its copy is issued."""
    device, delivery, _ = started(batches=2)
    assert delivery.poll() == []
    assert device.step("copies")
    assert delivery.poll() == [0]
    assert delivery.travelling == 1
    device.run("copies")
    assert delivery.poll() == [1]
    assert delivery.poll() == []
    assert delivery.travelling == 0


def test_taking_a_batch_frees_no_row() -> None:
    _device, delivery, _ = started(batches=1)
    assert delivery.take() == (0, 0)
    assert delivery.poll() == []


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_there_is_room_for_depth_batches_beside_the_one_in_hand(depth: int) -> None:
    _device, delivery, slots = started(depth, batches=depth + 1)
    assert delivery.slots == depth + 1
    assert sorted(slots) == list(range(depth + 1))
    assert delivery.room == 0
    delivery.take()
    assert (delivery.room, delivery.waiting) == (0, depth)
    delivery.advance()
    assert delivery.room == 1


def test_submitting_without_room_says_how_many_buffers_there_are() -> None:
    _device, delivery, slots = started(depth=1, batches=2)
    with pytest.raises(RuntimeError, match="all 2 device buffers are in use"):
        delivery.submit(9, slots.append)
    assert len(slots) == 2


def test_taking_implies_that_the_batch_in_hand_is_done_with() -> None:
    _device, delivery, _ = started(depth=1, batches=2)
    assert delivery.take() == (0, 0)
    assert delivery.take() == (1, 1)
    assert delivery.room == 1


def test_taking_from_nothing_is_an_error() -> None:
    _device, delivery, _ = started()
    with pytest.raises(RuntimeError, match="no batch was submitted"):
        delivery.take()


def test_a_copy_into_a_used_slot_waits_for_the_consumers_reads() -> None:
    device, delivery, slots = started(depth=1, batches=2)
    reads: list[str] = []
    delivery.take()
    device.launch(lambda: reads.append("read"))
    delivery.advance()
    device.run("copies")
    delivery.submit(2, slots.append)
    device.run("copies")
    assert delivery.poll() == [0, 1]
    device.run("consumer")
    assert reads == ["read"]
    device.run("copies")
    assert delivery.poll() == [2]


def test_a_slot_copied_out_is_refilled_behind_that_copy_alone() -> None:
    device, delivery, slots = started(depth=1, batches=2)
    device.run("copies")
    delivery.take()
    delivery.read()
    device.run("consumer")
    device.launch(lambda: None)  # the user's step, which reads only its own tensors
    delivery.advance()
    delivery.submit(2, slots.append)
    device.run("copies")
    assert delivery.poll() == [0, 1, 2]


def test_the_host_waits_before_it_writes_staging_in_use() -> None:
    device, delivery, slots = started(depth=1, batches=2)
    delivery.take()
    delivery.take()
    assert delivery.poll() == []
    delivery.submit(2, slots.append)
    assert delivery.poll() == [0]
    assert device.queues["copies"]


def test_draining_frees_every_row_and_keeps_what_arrived() -> None:
    device, delivery, _ = started(batches=3)
    device.step("copies")
    assert delivery.drain() == [0, 1, 2]
    assert delivery.poll() == []
    assert [delivery.take()[0] for _ in range(3)] == [0, 1, 2]


def test_discarding_frees_slots_at_once_and_rows_after_copies() -> None:
    """Rows are free when their copies have completed."""
    device, delivery, slots = started(batches=3)
    delivery.discard()
    assert (delivery.room, delivery.waiting) == (3, 0)
    assert delivery.poll() == []
    delivery.submit(7, slots.append)
    device.run("copies")
    assert delivery.poll() == [0, 1, 2, 7]
    assert delivery.take() == (7, slots[-1])


def test_discarding_leaves_the_batch_in_hand_alone() -> None:
    _device, delivery, slots = started(batches=3)
    _key, held = delivery.take()
    delivery.discard()
    for key in (8, 9):
        delivery.submit(key, slots.append)
    assert held not in slots[3:]


def test_a_failed_copy_is_never_reported_free() -> None:
    device, delivery, slots = started(batches=1)

    def fails(slot: int) -> None:
        raise RuntimeError("an illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        delivery.submit(1, fails)
    delivery.submit(2, slots.append)
    device.run("copies")
    assert delivery.poll() == [0, 2]


def test_closing_waits_for_the_copies_and_ends_everything() -> None:
    _device, delivery, slots = started(batches=2)
    assert delivery.close() == [0, 1]
    assert delivery.close() == []
    assert delivery.room == 0
    with pytest.raises(RuntimeError, match="closed"):
        delivery.submit(5, slots.append)
    with pytest.raises(RuntimeError, match="closed"):
        delivery.take()


@pytest.mark.parametrize("is_in_hand", [True, False])
def test_a_closed_deliverys_memory_is_reused_after_the_last_read(is_in_hand: bool) -> None:
    """Also if the consumer read on a stream that is not current any more at the end."""
    device, delivery, _ = started(batches=1)
    done: list[str] = []
    delivery.take()
    device.launch(lambda: done.append("read"))
    if not is_in_hand:
        delivery.advance()
    delivery.close()
    device.queues["copies"].append(lambda: (done.append("reuse"), True)[1])
    device.run("copies")
    device.finish_all()
    assert done == ["read", "reuse"]


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="depth = 0"):
        Delivery(FakeDevice(), 0)


def test_the_device_catches_up_with_the_work_before_a_question() -> None:
    device, delivery, _ = started(batches=2)
    assert delivery.caught_up
    delivery.take()
    step: list[str] = []
    device.launch(lambda: step.append("asked after it"))
    delivery.ask()
    device.launch(lambda: step.append("asked before it"))
    device.run("copies")
    while not delivery.caught_up:
        assert device.step("consumer")
    assert step == ["asked after it"]
