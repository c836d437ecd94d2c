"""A segment's size is fixed for ever; a descriptor that promises less is refused."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepserver.memory.errors import SegmentError
from prepserver.memory.ring import Ring
from prepserver.memory.segment import check_segment, create_segment
from tests.support.images import sample_layout

NBYTES = 8192


@pytest.fixture
def segment() -> Iterator[int]:
    fd = create_segment("test", NBYTES)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("nbytes", [0, NBYTES - 1, NBYTES + 1, 4 * NBYTES])
def test_a_segment_neither_shrinks_nor_grows(segment: int, nbytes: int) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(segment, nbytes)
    assert os.fstat(segment).st_size == NBYTES


def test_a_write_beyond_its_end_does_not_grow_it(segment: int) -> None:
    with pytest.raises(PermissionError):
        os.pwrite(segment, b"x", NBYTES)
    assert os.pwrite(segment, b"x", NBYTES - 1) == 1


def test_no_seal_can_be_added_later(segment: int) -> None:
    import fcntl

    with pytest.raises(PermissionError):
        fcntl.fcntl(segment, 1033, 0x0008)  # F_ADD_SEALS, F_SEAL_WRITE: would stop the workers


def test_it_is_closed_on_exec(segment: int) -> None:
    assert not os.get_inheritable(segment)


def test_a_segment_of_the_right_size_passes(segment: int) -> None:
    assert check_segment(segment, NBYTES) is None
    assert os.fstat(segment).st_size == NBYTES


@pytest.mark.parametrize("nbytes", [0, NBYTES - 4096, NBYTES + 4096])
def test_another_size_is_refused_with_both_numbers(segment: int, nbytes: int) -> None:
    with pytest.raises(SegmentError, match=f"has {NBYTES} bytes, the layout says {nbytes}"):
        check_segment(segment, nbytes)


def test_a_memfd_that_can_shrink_is_refused() -> None:
    fd = os.memfd_create("open", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, NBYTES)
        with pytest.raises(SegmentError, match="not sealed"):
            check_segment(fd, NBYTES)
    finally:
        os.close(fd)


def test_a_file_is_refused(tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as f:
        f.truncate(NBYTES)
        with pytest.raises(SegmentError, match=r"memfd|not sealed"):
            check_segment(f.fileno(), NBYTES)


def test_a_ring_is_not_mapped_over_a_segment_of_another_size(segment: int) -> None:
    with pytest.raises(SegmentError, match="the layout says"):
        Ring(segment, sample_layout(100, (8, 8, 3), "uint8"))


def test_rows_of_a_ring_are_views_that_wrap_by_position() -> None:
    layout = sample_layout(5, (2, 2, 3), "float32")
    fd = create_segment("test", layout.nbytes)
    ring, other = Ring(fd, layout), Ring(fd, layout)
    os.close(fd)
    ring.row("image", 7)[...] = 1.5
    ring.row("label", 7)[...] = -3
    ring.row("index", 11)[...] = 2**40
    assert (other.run("image", 0, 5)[2] == 1.5).all()
    assert not other.run("image", 0, 5)[[0, 1, 3, 4]].any()
    assert other.run("label", 0, 5).tolist() == [0, 0, -3, 0, 0]
    assert other.run("index", 0, 5).tolist() == [0, 2**40, 0, 0, 0]
    assert ring.row("image", 12).flags.c_contiguous
    assert ring.row("image", 12).shape == (2, 2, 3)
