"""An entry is its record again; what is damaged, of another sample or of a changed file is none."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from prepserver.cache.entry import ALIGNED, Damaged, check, least_bytes, pack, unpack

VALUES = st.one_of(
    st.binary(max_size=200),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.none(),
    st.booleans(),
    arrays.arrays(np.uint8, arrays.array_shapes(max_dims=3)),
    arrays.arrays(np.float32, arrays.array_shapes(max_dims=2), elements=st.floats(-1, 1, width=32)),
)


def as_array(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=10), VALUES, max_size=5), st.integers(0, 2**48))
def test_an_entry_is_its_record_again(record: dict[str, Any], index: int) -> None:
    data = pack(record, index, 2**64 - 1)
    assert data is not None
    assert len(data) % ALIGNED == 0
    check(data)
    found = unpack(as_array(data), index, 2**64 - 1)
    assert found is not None
    assert list(found) == list(record)
    for name, value in record.items():
        assert type(found[name]) is type(value)
        assert np.array_equal(found[name], value)
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype


def test_an_array_of_objects_is_no_entry() -> None:
    """Its bytes would be taken for addresses."""
    data = pack({"x": np.zeros(2, "<i8")}, 0, 0)
    assert data is not None
    with pytest.raises(Damaged):
        unpack(as_array(data.replace(b"\xa3<i8", b"\xa3|O8")), 0, 0)


def test_numbers_of_numpy_are_kept_as_numbers() -> None:
    data = pack({"score": np.float32(0.1), "label": np.int64(7)}, 0, 0)
    assert data is not None
    assert unpack(as_array(data), 0, 0) == {"score": float(np.float32(0.1)), "label": 7}


def test_boxes_come_back_with_the_size_of_their_image() -> None:
    boxes = np.arange(8, dtype=np.float32).reshape(2, 4)
    data = pack({"image": b"x", "boxes": (boxes, (30, 40)), "labels": np.zeros(2, np.int64)}, 0, 0)
    assert data is not None
    found = unpack(as_array(data), 0, 0)
    assert found is not None
    assert np.array_equal(found["boxes"][0], boxes)
    assert found["boxes"][1] == (30, 40)
    assert least_bytes({"image": b"x", "boxes": (boxes, (30, 40)), "labels": np.zeros(2, np.int64)}) == 17


@pytest.mark.parametrize("value", [object(), 2**70, [1], np.array([object()]), np.zeros(1, "f4,i8"), (1, (3, 4))])
def test_what_no_entry_can_hold_is_not_kept(value: Any) -> None:
    assert pack({"image": b"x", "odd": value}, 0, 0) is None


def test_an_entry_of_another_sample_is_damage() -> None:
    data = pack({"image": b"x"}, 3, 0)
    assert data is not None
    with pytest.raises(Damaged):
        unpack(as_array(data), 4, 0)


def test_an_entry_with_another_stamp_is_none() -> None:
    data = pack({"image": b"x"}, 3, 5)
    assert data is not None
    assert unpack(as_array(data), 3, 6) is None


def test_each_flipped_bit_is_seen_by_the_checksum() -> None:
    data = pack({"image": bytes(range(100)), "label": 3}, 1, 2)
    assert data is not None
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(Damaged):
            check(bytes(flipped))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_without_a_checksum_are_a_record_or_damage(junk: bytes) -> None:
    """Memory is read without a checksum: a worker that died may have left anything below a word."""
    whole = pack({"image": b"abc", "pixels": np.zeros((2, 3), np.uint8)}, 1, 2)
    assert whole is not None
    no_type = whole.replace(b"|u1", b",u1")
    for data in (junk, whole[:32] + junk, whole[:32] + (junk + b"\0" * len(whole))[: len(whole) - 32], no_type):
        with contextlib.suppress(Damaged):
            unpack(as_array(data), 1, 2)
