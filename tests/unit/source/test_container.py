from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.source.container import TEMPORARY_PREFIX, BrokenContainerError, Container, write_container

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
    assert {name: bytes(container.section(name)) for name in SECTIONS} == {k: bytes(v) for k, v in SECTIONS.items()}


def test_sections_are_read_only_and_aligned(whole: Path) -> None:
    container = Container(whole)
    assert container.section("b").readonly
    starts = [container._start + offset for offset, _ in container._sections.values()]
    assert all(start % 8 == 0 for start in starts)


def test_only_the_owner_may_read_the_file_and_nothing_else_is_left(whole: Path) -> None:
    assert whole.stat().st_mode & 0o777 == 0o600
    assert os.listdir(whole.parent) == ["whole.idx"]


def test_a_mapping_outlives_the_name_and_a_replacement(whole: Path) -> None:
    container = Container(whole)
    write_container(whole, {}, {"a": memoryview(b"other")})
    whole.unlink()
    assert bytes(container.section("a")) == b"12345"


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


def test_every_flipped_bit_of_header_and_metadata_is_seen(whole: Path) -> None:
    good = whole.read_bytes()
    start = Container(whole)._start
    for place in range(28 + good[28:].index(b"}}") + 2):
        assert place < start
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        whole.write_bytes(bad)
        with pytest.raises(BrokenContainerError):
            Container(whole)


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
    assert not list(tmp_path.glob(f"{TEMPORARY_PREFIX}*"))
