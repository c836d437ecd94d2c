from __future__ import annotations

import json
import os
from array import array
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prepserver.source import container as container_module
from prepserver.source.container import UNFINISHED, BrokenContainerError, Container, write_container
from tests.support.leaks import descriptors

META = {"n": 3, "name": "caf\udce9"}
SECTIONS = {"a": memoryview(b"12345"), "empty": memoryview(b""), "b": memoryview(b"x" * 100)}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.idx"
    write_container(path, META, SECTIONS)
    return path


def test_meta_and_sections_come_back(whole: Path) -> None:
    container = Container(whole)
    assert container.meta == META
    assert {name: container.section(name) for name in SECTIONS} == {k: bytes(v) for k, v in SECTIONS.items()}


def test_pieces_and_rows_are_read_one_by_one(tmp_path: Path) -> None:
    numbers = [0, 3, -7, 2**63 - 1]
    write_container(tmp_path / "x.idx", {}, {"n": memoryview(array("q", numbers)), "b": memoryview(b"abcdef")})
    container = Container(tmp_path / "x.idx")
    for form, step, expected in (
        ("q", 8, [(number,) for number in numbers]),
        ("qq", 8, [(0, 3), (3, -7), (-7, 2**63 - 1)]),
        ("qq", 16, [(0, 3), (-7, 2**63 - 1)]),
        ("q8xq", 16, [(0, -7)]),
        ("5q", 8, []),
    ):
        rows = container.rows("n", form, step)
        assert [rows[index] for index in range(len(rows))] == expected
        for index in (-1, len(rows)):
            with pytest.raises(IndexError):
                rows[index]
    assert container.piece("b", 2, 4) == b"cd"
    for start, end in ((-1, 2), (3, 2), (0, 7)):
        with pytest.raises(BrokenContainerError):
            container.piece("b", start, end)


def test_sections_are_aligned(whole: Path) -> None:
    container = Container(whole)
    starts = [container._start + offset for offset, _ in container._sections.values()]
    assert all(start % 8 == 0 for start in starts)


def test_only_the_owner_may_read_the_file_and_nothing_is_left(whole: Path) -> None:
    assert whole.stat().st_mode & 0o777 == 0o600
    assert os.listdir(whole.parent) == ["whole.idx"]


def test_an_open_file_outlives_its_name_and_a_replacement(whole: Path) -> None:
    container = Container(whole)
    write_container(whole, {}, {"a": memoryview(b"other")})
    whole.unlink()
    assert container.section("a") == b"12345"


@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_cut_off_file_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    path = tmp_path_factory.mktemp("c") / "x.idx"
    write_container(path, META, SECTIONS)
    os.truncate(path, int(cut * path.stat().st_size))
    with pytest.raises(BrokenContainerError):
        Container(path)


def test_a_longer_file_is_refused(whole: Path) -> None:
    with whole.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(BrokenContainerError):
        Container(whole)


def test_every_flipped_bit_is_seen_or_changes_nothing(whole: Path) -> None:
    good = whole.read_bytes()
    first = Container(whole)
    padding = 0
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        whole.write_bytes(bad)
        try:
            container = Container(whole)
            container.check()
        except BrokenContainerError:
            continue
        padding += 1
        assert container.meta == first.meta
        assert all(container.section(name) == bytes(SECTIONS[name]) for name in SECTIONS)
    assert padding < 8  # bytes between the header and the sections


PIECES = {"numbers": bytes(range(256)) * 150, "odd": b"abc" * 5_001}  # of four pages


@given(
    flips=st.sets(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=3),
    reads=st.lists(st.tuples(st.sampled_from(sorted(PIECES)), st.integers(0, 15_000), st.integers(0, 20_000))),
)
def test_no_flipped_bit_is_ever_read(
    tmp_path_factory: pytest.TempPathFactory, flips: set[tuple[float, int]], reads: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("c") / "x.idx"
    write_container(path, META, {name: memoryview(data) for name, data in PIECES.items()})
    bent = bytearray(path.read_bytes())
    for place, bit in flips:
        bent[int(place * len(bent))] ^= 1 << bit
    assume(bent != path.read_bytes())
    path.write_bytes(bent)
    try:
        container = Container(path)
    except BrokenContainerError:
        return
    for name, start, count in reads:
        end = min(start + count, len(PIECES[name]))
        with suppress(BrokenContainerError):
            assert container.piece(name, start, end) == PIECES[name][start:end]
    try:
        container.check()
    except BrokenContainerError:
        return
    assert {name: container.section(name) for name in PIECES} == PIECES  # only padding was flipped


@pytest.mark.parametrize("place", ["[8,105]", "[8,9e9]", "[-8,5]", "[8,-1]"])
def test_a_section_that_lies_elsewhere_is_refused(whole: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksums are right, as those of a stranger's may be."""
    dumps = json.dumps
    with monkeypatch.context() as patched:
        patched.setattr(json, "dumps", lambda *a, **k: dumps(*a, **k).replace('"b":[8,100]', f'"b":{place}'))
        write_container(whole, META, SECTIONS)
    container = Container(whole)
    for read in (
        container.section,
        lambda name: container.piece(name, 0, 0),
        lambda name: container.rows(name, "q", 8),
    ):
        with pytest.raises(BrokenContainerError, match="its b are bytes"):
            read("b")
    assert container.section("a") == b"12345"


def test_only_what_is_read_of_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    numbers = array("Q", range(6000))
    write_container(tmp_path / "x.idx", {}, {"n": memoryview(numbers)})
    place = (whole := (tmp_path / "x.idx").read_bytes()).index(numbers[3000:3001].tobytes())
    (tmp_path / "x.idx").write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
    rows = (container := Container(tmp_path / "x.idx")).rows("n", "Q", 8)
    assert [rows[index][0] for index in (0, 5999, 1)] == [0, 5999, 1]
    for index in (3000, 2999, 3000):
        with pytest.raises(BrokenContainerError, match=r"x\.idx: damaged.*16384 bytes.*attach again") as caught:
            rows[index]
        assert caught.value.path == tmp_path / "x.idx"
    with pytest.raises(BrokenContainerError, match="damaged"):
        container.check()
    assert rows[1] == (1,)


def test_a_file_that_is_cut_while_it_is_open_is_an_error(whole: Path) -> None:
    container = Container(whole)
    os.truncate(whole, 0)
    for name in ("a", "b"):
        with pytest.raises(BrokenContainerError, match="cut short while it is in use"):
            container.section(name)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        before = descriptors()
        with pytest.raises(BrokenContainerError, match="not a file"):
            Container(path)
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("encoded", [b"[]", b"{}", b"{", b"[" * 100_000, b'{"meta": 3, "sections": {}}', b"\xff"])
def test_metadata_of_a_stranger_are_refused(tmp_path: Path, encoded: bytes) -> None:
    """A packed dataset's index may come from anywhere, with its checksums."""
    header = container_module._HEADER.pack(container_module._MAGIC, container_module._BYTE_ORDER, len(encoded), 0)
    head = header + container_module._head_crc(header, encoded, b"") + encoded
    (tmp_path / "a.idx").write_bytes(head + bytes(-len(head) % 8))
    with pytest.raises(BrokenContainerError, match=r"a\.idx: its metadata cannot be read; "):
        Container(tmp_path / "a.idx")


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"\xff\xd8\xff\xe0" * 100, b"PREPIDX\x02" + b"\0" * 100])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.idx"
    path.write_bytes(content)
    with pytest.raises(BrokenContainerError):
        Container(path)


def test_a_missing_section_is_refused(whole: Path) -> None:
    with pytest.raises(BrokenContainerError, match="no section nope"):
        Container(whole).section("nope")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.idx").mkdir()
    (tmp_path / "x.idx" / "full").touch()
    with pytest.raises(OSError, match=r"x\.idx"):
        write_container(tmp_path / "x.idx", META, SECTIONS)
    assert not list(tmp_path.glob(f"{UNFINISHED}*"))
