"""Lines of a log: they come back as they were, and damage is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.audit.records import (
    PROGRESS_BYTES,
    Attached,
    Bad,
    BrokenLine,
    Job,
    Left,
    Progress,
    Record,
    Rows,
    from_line,
    parse,
    to_line,
)

POSITION = st.integers(0, 2**62)
NUMBER = st.integers(0, 2**31 - 1)
TEXT = st.text(max_size=40)
RECORD: st.SearchStrategy[Record] = st.one_of(
    st.builds(Job, NUMBER, TEXT, NUMBER),
    st.builds(
        Rows, st.dictionaries(TEXT, TEXT, max_size=3), TEXT, TEXT, NUMBER, st.sampled_from(["none", "full", "cyclic"]),
        st.integers(0, 2**63 - 1), st.lists(st.dictionaries(TEXT, st.integers() | st.booleans() | TEXT, max_size=3)),
    ),
    st.builds(
        Attached, NUMBER, TEXT, TEXT, NUMBER, NUMBER, st.integers(1, 2**20), st.booleans(), NUMBER, POSITION, POSITION,
        NUMBER, NUMBER, st.booleans(), st.none() | st.tuples(NUMBER, NUMBER),
    ),
    st.builds(Progress, NUMBER, POSITION, POSITION),
    st.builds(Left, NUMBER, TEXT, st.none() | POSITION),
    st.builds(Bad, NUMBER, st.lists(st.tuples(POSITION, NUMBER, TEXT), max_size=5), st.booleans()),
)  # fmt: skip
LOG: list[Record] = [Job(1, "j", 0), Progress(0, 10, 5), Left(0, "t", 8), Bad(0, [(1, 2, "bad")])]


def written(records: list[Record]) -> bytes:
    return b"".join(to_line(number, record) for number, record in enumerate(records))


@given(st.lists(RECORD, max_size=8))
def test_a_log_comes_back_as_it_was_written(records: list[Record]) -> None:
    found, wrong = parse(written(records))
    assert wrong == []
    assert found == list(enumerate(records))


@given(st.integers(0, 10**9), POSITION, POSITION)
def test_a_line_of_progress_has_one_width_whatever_it_says(number: int, told: int, back: int) -> None:
    assert len(to_line(number, Progress(number, told, back))) == PROGRESS_BYTES


@given(st.integers(0, len(written(LOG)) - 1), st.integers(1, 255))
def test_one_changed_byte_is_found_wherever_it_is(place: int, change: int) -> None:
    data = bytearray(written(LOG))
    data[place] ^= change
    found, wrong = parse(bytes(data))
    assert wrong != []
    assert all(record == LOG[number] for number, record in found)


@given(st.integers(0, 3))
def test_a_missing_line_is_found(gone: int) -> None:
    lines = written(LOG).splitlines(keepends=True)
    _, wrong = parse(b"".join(lines[:gone] + lines[gone + 1 :]))
    assert bool(wrong) == (gone < 3)  # the last one cannot be known to have been there


@given(st.binary(max_size=300))
def test_garbage_is_reported_and_raises_nothing(data: bytes) -> None:
    found, wrong = parse(data)
    assert found == []
    assert bool(wrong) == bool(data)


@pytest.mark.parametrize(
    "text",
    ["[1]", '"x"', "{}", '{"k":"what"}', '{"k":"at"}', '{"k":"at","of":-1,"told":0,"back":0}', '{"k":"at","of":"a"}'],
)
def test_a_line_of_wrong_fields_and_right_checksum_is_refused(text: str) -> None:
    import zlib

    head = f"0 {text}".encode()
    with pytest.raises(BrokenLine, match="not a record"):
        from_line(0, head + b" %08x" % zlib.crc32(head))


def test_a_line_that_was_moved_says_so() -> None:
    with pytest.raises(BrokenLine, match="its number is 3"):
        from_line(1, to_line(3, replace(LOG[1])).rstrip(b"\n"))
