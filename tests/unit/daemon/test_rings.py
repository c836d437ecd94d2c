"""The memory of rings: what it counts as, and what happens where it is short."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from prepserver.daemon import rings as rings_module
from prepserver.daemon.rings import MOST_LEFT, Rings
from prepserver.memory import budget
from prepserver.memory.errors import MemoryShort
from prepserver.memory.segment import check_segment
from tests.support.images import sample_fields, sample_layout
from tests.support.leaks import descriptors
from tests.support.waiting import wait_until


@pytest.fixture
def rings() -> Iterator[Rings]:
    made = Rings(64 << 20)
    yield made
    made.close()


def test_a_ring_is_a_sealed_segment_and_counts_until_dropped(rings: Rings) -> None:
    ring = rings.create(7, 0, sample_fields((32, 32, 3), "uint8"), (256, 64))
    assert ring.layout == sample_layout(256, (32, 32, 3), "uint8")
    check_segment(ring.fd, ring.layout.nbytes)
    assert rings.held_bytes == ring.layout.nbytes
    rings.drop(7)
    assert rings.held_bytes == 0
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(ring.fd)


def test_pages_come_in_half_a_second_after_a_ring_is_made(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then only workers touch them, so that a first batch does not wait for pages that it does not need."""

    def refuse(_fd: int) -> int:
        raise OSError(errno.EMFILE, "no descriptor is left")

    ring = rings.create(7, 0, sample_fields((32, 32, 3), "uint8"), (256, 64))

    def blocks() -> int:
        return os.fstat(ring.fd).st_blocks

    rings.step()
    rings.step()
    time.sleep(0.05)  # in which the thread would have brought them in
    assert blocks() == 0
    assert rings.absent_bytes == ring.layout.nbytes
    with monkeypatch.context() as patch:
        patch.setattr(rings_module, "open_again", refuse)
        rings.step()
    rings.step()
    wait_until(lambda: rings.absent_bytes == 0)
    rings.drop(7)
    wait_until(lambda: rings.held_bytes == 0)  # once the thread has closed it


def test_memory_is_not_given_away_twice(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine counts the pages of a new ring as free until somebody touches them."""
    free = 20 << 20
    monkeypatch.setattr(budget, "machine_free_bytes", lambda: (free, "a limit"))
    rings.create(1, 0, sample_fields((224, 224, 3), "uint8"), (100, 100))
    with pytest.raises(MemoryShort) as e:
        rings.create(2, 0, sample_fields((224, 224, 3), "uint8"), (100, 100))
    assert e.value.free_bytes == free - rings.held_bytes


@pytest.mark.parametrize("kept", ["descriptor", "mapping"])
def test_a_dropped_ring_counts_until_nobody_has_it(rings: Rings, kept: str) -> None:
    ring = rings.create(7, 1000, sample_fields((32, 32, 3), "uint8"), (256, 64))
    rings.create(8, 1001, sample_fields((32, 32, 3), "uint8"), (256, 64))
    ours, theirs = socket.socketpair()
    socket.send_fds(ours, [b"-"], [ring.fd])
    code = (
        "import mmap, os, socket, sys\n"
        "_, fds, _, _ = socket.recv_fds(socket.socket(fileno=int(sys.argv[1])), 1, 1)\n"
        f"held = mmap.mmap(fds[0], 4096); {'os.close(fds[0])' if kept == 'mapping' else 'held.close()'}\n"
        "print(flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(theirs.fileno())],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()],
    )  # fmt: skip
    ours.close()
    theirs.close()
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        rings.drop(7)
        assert rings.are_leaving
        assert rings.bytes_of(1000) == ring.layout.nbytes
        assert rings.bytes_of(1001) > 0
        assert rings.held_bytes == rings.bytes_of(1000) + rings.bytes_of(1001)
        holder.kill()
    wait_until(lambda: not rings.are_leaving)
    assert rings.bytes_of(1000) == 0


@pytest.mark.parametrize(
    ("wanted", "needed", "made"), [(400, 128, 400), (512, 128, 256), (1500, 128, 375), (512, 300, 300)]
)
def test_rows_are_halved_where_the_wanted_do_not_fit(rings: Rings, wanted: int, needed: int, made: int) -> None:
    ring = rings.create(1, 0, sample_fields((224, 224, 3), "uint8"), (wanted, needed))  # 64 MiB hold 445 rows
    assert ring.layout.rows == made


def test_every_view_counts(rings: Rings) -> None:
    row = 224 * 224 * 3
    ring = rings.create(1, 0, sample_fields((224, 224, 3), "uint8", views=4), (400, 100))
    assert ring.layout.rows == 100
    assert rings.held_bytes == ring.layout.nbytes >= 100 * 4 * row
    check_segment(ring.fd, ring.layout.nbytes)
    with pytest.raises(MemoryShort) as e:
        rings.create(2, 0, sample_fields((224, 224, 3), "uint8", views=2), (100, 50))
    assert e.value.asked_bytes == sample_layout(50, (224, 224, 3), "uint8", 2).nbytes


def test_where_not_even_the_needed_rows_fit_nothing_is_kept(rings: Rings) -> None:
    rings.create(1, 0, sample_fields((224, 224, 3), "uint8"), (400, 400))
    held = rings.held_bytes
    with pytest.raises(MemoryShort) as e:
        rings.create(2, 0, sample_fields((224, 224, 3), "uint8"), (512, 128))
    assert e.value.asked_bytes == sample_layout(128, (224, 224, 3), "uint8").nbytes
    assert e.value.free_bytes == (64 << 20) - held
    assert rings.held_bytes == held
    assert list(rings.held) == [1]


def test_closing_leaves_no_descriptor_and_no_thread() -> None:
    before = descriptors()
    made = Rings(64 << 20)
    for lane in range(4):
        made.create(lane, 0, sample_fields((32, 32, 3), "uint8"), (256, 64))
        for _ in range(lane):
            made.step()
    made.close()
    assert not made._toucher.is_alive()
    assert len(os.listdir("/proc/self/fd")) == before


def test_rings_that_are_kept_cost_no_end_of_descriptors(rings: Rings) -> None:
    kept = []
    fields = sample_fields((8, 8, 3), "uint8")
    for lane in range(MOST_LEFT):
        kept.append(os.dup(rings.create(lane, 1000, fields, (1, 1)).fd))
        rings.drop(lane)
    with pytest.raises(MemoryShort, match=f"uid 1000 still hold {MOST_LEFT} rings"):
        rings.create(1000, 1000, fields, (1, 1))
    rings.create(1001, 1001, fields, (1, 1))
    os.close(kept.pop())
    wait_until(lambda: sum(ring.owner == 1000 for ring in rings._all()) < MOST_LEFT)
    rings.create(1000, 1000, fields, (1, 1))
    for fd in kept:
        os.close(fd)
