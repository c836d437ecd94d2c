"""Compressed files that are read in the middle: their samples, and what is said of those that cannot be."""

from __future__ import annotations

import gzip
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepclient import TFRecord
from prepserver.pipeline import kinds
from prepserver.source import SampleError, Source, SourceError, build_index, gzipped, open_source
from prepserver.source.container import Container
from tests.support.tf_records import file_of, framed

pytest.importorskip("indexed_gzip", reason="compressed TFRecords need indexed-gzip")

_RANDOM = random.Random(5)
RECORDS: list[dict[str, Any]] = [
    {"image": [_RANDOM.randbytes(_RANDOM.choice((20, 5000, 60_000))) + b"a" * 5000], "label": [n]} for n in range(120)
]
PLAIN = file_of(RECORDS)


def opened(spec: TFRecord, tmp_path: Path) -> Source:
    return open_source(spec, build_index(spec, tmp_path / "cache").path)


def fixed(data: bytes) -> bytes:
    """All of it as one block of deflate, in which unpacking cannot begin."""
    packer = zlib.compressobj(1, wbits=31, strategy=zlib.Z_HUFFMAN_ONLY)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress,
        lambda data: gzip.compress(data, 0),
        lambda data: gzip.compress(data[:999_999], 1) + gzip.compress(b"") + gzip.compress(data[999_999:], 9),
        lambda data: b"".join(gzip.compress(data[at : at + 99_999]) for at in range(0, len(data), 99_999)),
        lambda data: gzip.compress(data) + bytes(512),
        fixed,
    ],
    ids=["one", "stored", "three parts", "many parts", "padded", "one method"],
)
def test_a_compressed_file_has_the_samples_of_the_plain_one(
    packed: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(PLAIN) > 3 * gzipped._SPAN_BYTES
    monkeypatch.setattr(gzipped, "_SPANS_KEPT_BYTES", 1)
    (tmp_path / "a").write_bytes(packed(PLAIN))
    (tmp_path / "b").write_bytes(PLAIN)
    (tmp_path / "c").write_bytes(packed(PLAIN))
    source = opened(TFRecord(tmp_path / "[abc]"), tmp_path)
    assert len(source) == 3 * len(RECORDS)
    for index in random.Random(1).sample(range(len(source)), 60):
        record = source.read(index)
        assert int(record["label"]) == index % len(RECORDS)
        assert record["image"] == RECORDS[index % len(RECORDS)]["image"][0]


def test_a_compressed_file_of_nothing_moves_no_sample(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b""))
    (tmp_path / "b").write_bytes(file_of(RECORDS[:3]))
    source = opened(TFRecord(tmp_path / "[ab]"), tmp_path)
    assert [int(source.read(index)["label"]) for index in range(len(source))] == [0, 1, 2]


def test_a_sample_takes_one_point_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All points of a file of 64 GiB are 2 GiB, in each worker."""
    (tmp_path / "a").write_bytes(gzip.compress(PLAIN))
    taken: list[int] = []
    piece = Container.piece

    def counted(container: Container, name: str, start: int, end: int) -> bytes:
        taken.append(end - start)
        return piece(container, name, start, end)

    source = opened(TFRecord(tmp_path / "a"), tmp_path)
    monkeypatch.setattr(Container, "piece", counted)
    source.read(60)
    assert 32768 <= sum(taken) < 2 * 32768 + 4096


def test_a_compressed_file_is_listed_once(tmp_path: Path) -> None:
    spec = TFRecord(tmp_path / "a")
    (tmp_path / "a").write_bytes(gzip.compress(PLAIN))
    os.utime(tmp_path / "a", (1e9, 1e9))
    first = build_index(spec, tmp_path / "cache")
    made_ns = first.path.stat().st_mtime_ns
    assert build_index(spec, tmp_path / "cache") == first
    assert first.path.stat().st_mtime_ns == made_ns
    source = open_source(spec, first.path)
    (tmp_path / "a").write_bytes(gzip.compress(file_of(RECORDS[1:])))
    with pytest.raises(SampleError, match="changed"):
        source.read(3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (gzip.compress(PLAIN)[:-3], "cut off or damaged .*end-of-stream"),
        (gzip.compress(PLAIN)[: len(PLAIN) // 2], "cut off"),
        (gzip.compress(PLAIN)[:-8] + bytes(8), "damaged .*CRC"),
        (gzip.compress(PLAIN)[:500_000] + b"\xff\xff\xff" + gzip.compress(PLAIN)[500_003:], "cut off|damaged"),
        (gzip.compress(PLAIN) + b"and more", "damaged .*Not a gzipped file"),
        (gzip.compress(PLAIN + b"\0" * 40), "checksum of the length"),
        (gzip.compress(b"plain text", mtime=0), "cut off|no TFRecord"),
        (gzip.compress(b"", mtime=0), "holds no records"),
        (gzipped.MAGIC, "cut off or damaged"),
    ],
    # not the data: they hold the time at which they were compressed
    ids=["end", "half", "checksum", "middle", "more", "length", "text", "empty", "magic"],
)  # fmt: skip
def test_a_damaged_file_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(SourceError, match=rf"{tmp_path}/a .*({said})"):
        build_index(TFRecord(tmp_path / "a"), tmp_path / "cache")


def test_a_file_that_grows_without_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(bytes(50 << 20), 1))
    monkeypatch.setattr(gzipped, "MOST_BYTES", 20 << 20)
    with pytest.raises(SourceError, match=f"/a holds more than {20 << 20} bytes when it is unpacked, the limit"):
        build_index(TFRecord(tmp_path / "a"), tmp_path / "cache")


def test_a_file_without_places_to_begin_at_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(PLAIN))
    monkeypatch.setattr(gzipped, "MAX_ENCODED_BYTES", 1 << 20)
    with pytest.raises(SourceError, match=r"/a cannot be read from its middle: .*Unpack it, gzip -dc"):
        build_index(TFRecord(tmp_path / "a"), tmp_path / "cache")


def test_without_the_package_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(PLAIN))
    info = build_index(TFRecord(tmp_path / "a"), tmp_path / "cache")
    monkeypatch.setattr(gzipped, "indexed_gzip", None)
    said = r"/a is compressed \(gzip\), and reading it needs indexed-gzip .*pip install 'prepserver\[tfrecord\]'"
    with pytest.raises(SourceError, match=said):
        build_index(TFRecord(tmp_path / "a"), tmp_path / "elsewhere")
    with pytest.raises(SourceError, match=said):
        open_source(TFRecord(tmp_path / "a"), info.path)


def test_a_plain_file_may_begin_as_a_compressed_one(tmp_path: Path) -> None:
    """A file begins with the length of its first record, which may be any number."""
    plain = framed(bytes(int.from_bytes(gzipped.MAGIC, "little")))
    assert plain.startswith(gzipped.MAGIC)
    (tmp_path / "a").write_bytes(plain + PLAIN)
    source = opened(TFRecord(tmp_path / "a", {"image": kinds.Image()}), tmp_path)
    assert source.read(1)["image"] == RECORDS[0]["image"][0]
