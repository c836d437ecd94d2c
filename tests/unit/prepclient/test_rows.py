"""A ring as the client sees it: any run of rows is one piece where it can be, small fields are copies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from prepclient.rows import MappedRing
from prepserver.memory.errors import SegmentError
from prepserver.memory.ring import Ring
from prepserver.memory.segment import create_segment
from prepserver.protocol.layout import RingLayout
from tests.support.images import sample_layout
from tests.support.server import environment


def ring(rows: int, shape: tuple[int, ...] = (16, 16, 4), dtype: str = "uint8") -> tuple[Ring, MappedRing]:
    """A worker's and a client's view of one ring; row r holds r everywhere."""
    layout = sample_layout(rows, shape, dtype)
    fd = create_segment("test", layout.nbytes)
    written, seen = Ring(fd, layout), MappedRing.map(fd, layout)
    os.close(fd)
    for row in range(rows):
        for field in ("image", "label", "index"):
            written.row(field, row)[...] = row
    return written, seen


_WHOLE = ring(12)[1]  # 12 KiB of images: whole pages, mapped twice
_BROKEN = ring(7)[1]  # not whole pages


@given(st.integers(0, 10**9), st.integers(0, 12))
@settings(deadline=None, max_examples=100)
def test_a_run_is_one_piece_where_the_ring_is_mapped_twice(start: int, count: int) -> None:
    (piece,) = _WHOLE.parts(start, start + count)
    assert piece.shape == (count, 16, 16, 4)
    assert piece[:, 3, 2, 1].tolist() == [p % 12 for p in range(start, start + count)]
    for name in ("label", "index"):
        small = [number for part in _WHOLE.scalars(name, start, start + count) for number in part]
        assert small == [p % 12 for p in range(start, start + count)]


@given(st.integers(0, 10**9), st.integers(0, 7))
@settings(deadline=None, max_examples=100)
def test_a_run_is_at_most_two_pieces_where_it_is_not(start: int, count: int) -> None:
    pieces = _BROKEN.parts(start, start + count)
    assert len(pieces) == (2 if start % 7 + count > 7 else 1)
    assert torch.cat(pieces)[:, 0, 0, 0].tolist() == [p % 7 for p in range(start, start + count)]


def test_a_run_that_is_longer_than_the_ring_is_refused() -> None:
    for rows in (_WHOLE, _BROKEN):
        with pytest.raises(ValueError, match="does not fit"):
            rows.parts(5, 5 + rows.layout.rows + 1)


def test_nothing_is_copied() -> None:
    written, seen = ring(12)
    (piece,) = seen.parts(3, 5)
    (small,) = seen.scalars("label", 3, 5)
    written.row("image", 3)[...] = 99
    written.row("label", 3)[...] = 99
    assert int(piece[0, 0, 0, 0]) == 99
    assert small.tolist() == [99, 4]


@pytest.mark.parametrize(("rows", "pieces"), [(12, 1), (7, 2)])
def test_each_view_is_its_own_array_with_runs_like_a_single_ones(rows: int, pieces: int) -> None:
    layout = sample_layout(rows, (16, 16, 4), "uint8", views=3)
    fd = create_segment("test", layout.nbytes)
    written, seen = Ring(fd, layout), MappedRing.map(fd, layout)
    writable, mapping = MappedRing.map_writable(fd, layout)
    os.close(fd)
    for row in range(rows):
        for view, field in enumerate(field.name for field in layout.dense):
            written.row(field, row)[...] = 20 * view + row
        written.row("label", row)[...] = row
    start = 2 * rows - 2
    expected = [p % rows for p in range(start, start + 5)]
    for view in range(3):
        parts = seen.parts(start, start + 5, view)
        assert len(parts) == pieces
        assert all(part.is_contiguous() for part in parts)
        assert torch.cat(parts)[:, 9, 5, 1].tolist() == [20 * view + row for row in expected]
        assert torch.equal(torch.cat(writable.parts(start, start + 5, view)), torch.cat(parts))
    assert np.concatenate(seen.scalars("label", start, start + 5)).tolist() == expected
    writable.writable_arrays()["image_2"][3] = 99
    assert int(seen.parts(3, 4, 2)[0][0, 0, 0, 0]) == 99
    assert mapping.nbytes == layout.nbytes


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_every_type_of_row_is_seen_as_it_was_written(dtype: str) -> None:
    written, seen = ring(10, (3, 8, 5), dtype)
    written.row("image", 4)[...] = np.arange(120).reshape(3, 8, 5)
    got = torch.cat(seen.parts(14, 15))
    assert got.dtype == getattr(torch, dtype)
    assert torch.equal(got[0], torch.arange(120).view(3, 8, 5).to(got.dtype))


def test_the_writable_mapping_is_the_same_memory() -> None:
    layout = sample_layout(12, (16, 16, 4), "uint8")
    fd = create_segment("test", layout.nbytes)
    seen, (writable, mapping) = MappedRing.map(fd, layout), MappedRing.map_writable(fd, layout)
    os.close(fd)
    fields = writable.writable_arrays()
    fields["image"][2], fields["label"][2], fields["index"][2] = 5, 6, 7
    assert int(seen.parts(2, 3)[0][0, 0, 0, 0]) == 5
    assert (seen.scalars("label", 14, 15)[0].item(), seen.scalars("index", 2, 3)[0].item()) == (6, 7)
    assert mapping.nbytes == layout.nbytes


@pytest.mark.parametrize("make", [MappedRing.map, MappedRing.map_writable])
def test_a_segment_of_another_size_is_not_mapped(make: object) -> None:
    fd = create_segment("test", 4096)
    try:
        with pytest.raises(SegmentError, match="the layout says"):
            make(fd, RingLayout(3, sample_layout(3, (64, 64, 3), "uint8").fields))  # type: ignore[operator]
    finally:
        os.close(fd)


_WRITE = """
import os, warnings
from prepclient.rows import MappedRing
from prepserver.memory.segment import create_segment
from tests.support.images import sample_layout

warnings.simplefilter("ignore")
layout = sample_layout(12, (16, 16, 4), "uint8")
rows = MappedRing.map(create_segment("test", layout.nbytes), layout)
print(int(rows.parts(0, 4)[0].sum()), flush=True)
rows.parts(0, 4)[0].add_(1)
print("written")
"""


def test_an_in_place_write_to_a_lent_batch_ends_its_process_only() -> None:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", _WRITE], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "0\n")


_LARGE_PAGES = """
import mmap, os
mmap.PAGESIZE = 65536
import numpy as np
from prepclient.rows import MappedRing
from prepserver.memory.ring import Ring
from prepserver.memory.segment import create_segment
from prepserver.protocol.layout import whole_page_rows
from tests.support.images import sample_layout

assert whole_page_rows(224 * 224 * 3) == 64
for rows in (64, 7):
    layout = sample_layout(rows, (224, 224, 3), "uint8", views=2)
    assert layout.nbytes % 65536 == 0
    assert all(layout.offset(f.name) % 65536 == 0 for f in layout.fields)
    fd = create_segment("test", layout.nbytes)
    written, seen = Ring(fd, layout), MappedRing.map(fd, layout)
    for row in range(rows):
        written.row("image_1", row)[...] = row
    pieces = seen.parts(rows - 2, rows + 2, 1)
    assert len(pieces) == (1 if rows == 64 else 2)
    assert [int(image[5, 5, 1]) for piece in pieces for image in piece] == [rows - 2, rows - 1, 0, 1]
"""


def test_fields_begin_on_64_kib_pages_where_pages_are_so_large() -> None:
    subprocess.run([sys.executable, "-c", _LARGE_PAGES], env=environment(), check=True, timeout=600)
