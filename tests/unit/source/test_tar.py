"""Tar shards: which samples they hold, in every dialect of tar, and what is said of those that cannot be read."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources import Filter, Tar, source_from_wire
from prepserver.source import SampleError, Source, SourceError, build_index, open_source
from prepserver.source.patterns import expand
from prepserver.source.reader import Listing
from prepserver.source.readers.tar import TarReader
from prepserver.source.roots import OutsideRootsError, Roots
from prepserver.source.shards import Shards

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write(path: Path, files: Mapping[str, bytes], form: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def opened(spec: Tar, tmp_path: Path, roots: Roots | None = None) -> tuple[Source, Listing]:
    info = build_index(spec, tmp_path / "cache", roots=roots)
    return open_source(spec, info.path, roots), info


def test_a_listing_stays_the_same_when_shards_move(tmp_path: Path) -> None:
    """A checkpoint holds its digest, and resumes on another machine."""
    found = []
    for root in (tmp_path / "one", tmp_path / "another" / "place"):
        for folder in "ab":
            (root / folder).mkdir(parents=True)
            write(root / folder / "s.tar", {f"{folder}.jpg": b"image", f"{folder}.cls": b"1"})
        source, info = opened(Tar(root / "{a,b}" / "s.tar"), tmp_path)
        assert [source.name(k) for k in range(2)] == ["a/s.tar/a", "b/s.tar/b"]
        found.append(info)
    assert found[0].content_digest == found[1].content_digest
    assert found[0].digest != found[1].digest


@pytest.mark.parametrize("form", FORMATS)
def test_samples_keep_the_order_of_shards_and_files(form: str, tmp_path: Path) -> None:
    """Names too long for a plain header, too, which each dialect writes in its own way."""
    long = "folder/" * 14 + "deep"
    for number in range(3):
        files: dict[str, bytes] = {}
        for key in (f"{number}/a", f"{number}/{long}", f"{number}/b.x"):
            files |= {f"{key}.cls": b"%d\n" % len(key), f"{key}.seg.png": b"mask " + key.encode(), f"{key}.txt": b"-"}
            files[f"{key.rpartition('/')[0]}/._{len(key)}.JPG"] = b"what macOS notes of the next file"
            files[f"{key}.JPG"] = b"image " + key.encode()
        write(tmp_path / f"s-{number:02}.tar", files, FORMATS[form])
    source, info = opened(Tar(tmp_path / "s-{00..02}.tar", mask="seg.png", image="png;jpg"), tmp_path)
    keys = [f"{number}/{key}" for number in range(3) for key in ("a", long)]
    assert [source.name(k) for k in range(len(source))] == [f"s-{k // 2:02}.tar/{key}" for k, key in enumerate(keys)]
    for index, key in enumerate(keys):
        wanted = {"image": f"image {key}".encode(), "mask": f"mask {key}".encode(), "label": len(key)}
        assert source.read(index) == wanted
        assert list(source.read(index)) == ["image", "mask", "label"]
    assert (info.samples, info.num_classes, source.classes()) == (6, max(map(len, keys)) + 1, [])


def test_a_size_in_a_pax_header_or_in_base_256_counts(tmp_path: Path) -> None:
    data = write(tmp_path / "a.tar", {"a.jpg": b"12345"}).read_bytes()
    header = bytearray(data[:512])
    header[124:136] = b"\x80" + (5).to_bytes(11, "big")
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    (tmp_path / "a.tar").write_bytes(bytes(header) + data[512:])
    with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("b.jpg")
        member.size, member.pax_headers = 3, {"size": "3", "comment": "size=9"}
        archive.addfile(member, io.BytesIO(b"678"))
    source, _ = opened(Tar(tmp_path / "{a,b}.tar", label=None), tmp_path)
    assert [source.read(index) for index in range(2)] == [{"image": b"12345"}, {"image": b"678"}]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.binary(max_size=1500), st.integers(0, 2**63 - 1)), min_size=1, max_size=8),
    st.sampled_from(list(FORMATS)),
)
def test_whatever_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, samples: list[tuple[bytes, int]], form: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    files: dict[str, bytes] = {}
    for number, (data, label) in enumerate(samples):
        files |= {f"{number:04}.png": data, f"{number:04}.cls": str(label).encode()}
    write(folder / "a.tar", files, FORMATS[form])
    source, _ = opened(Tar(folder / "a.tar"), folder)
    for number, (data, label) in enumerate(samples):
        if data:
            assert source.read(number) == {"image": data, "label": label}
        else:
            with pytest.raises(SampleError, match="its image is empty"):
                source.read(number)


def test_a_negative_size_in_a_pax_header_is_damage(tmp_path: Path) -> None:
    """By its number of bytes the next header would be that pax header again."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a.jpg")
        member.pax_headers = {"size": str(-3 * tarfile.BLOCKSIZE)}
        archive.addfile(member)
    with pytest.raises(SourceError, match="is damaged, or not a tar: there is no header at byte 1024"):
        build_index(Tar(tmp_path / "a.tar", label=None), tmp_path / "cache")


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE])
def test_no_bytes_follow_a_header_of_no_file(kind: bytes, tmp_path: Path) -> None:
    """Some writers give links the size of what they lead to, and tarfile ignores it."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        link = tarfile.TarInfo("other.txt")
        link.type, link.linkname, link.size = kind, "1.jpg", 1000
        archive.addfile(link)
        image = tarfile.TarInfo("1.jpg")
        image.size = 3
        archive.addfile(image, io.BytesIO(b"one"))
    source, info = opened(Tar(tmp_path / "a.tar", label=None), tmp_path)
    assert (info.samples, source.read(0)) == (1, {"image": b"one"})


def test_what_an_older_release_listed_is_listed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.tar", {"a.jpg": b"a", "a.cls": b"0"})
    os.utime(tmp_path / "a.tar", (0, 0))
    spec = Tar(tmp_path / "a.tar")
    monkeypatch.setattr(TarReader, "edition", "")
    old = build_index(spec, tmp_path / "cache").path
    assert build_index(spec, tmp_path / "cache").path == old
    monkeypatch.undo()
    _, info = opened(spec, tmp_path)
    assert info.path != old
    assert build_index(spec, tmp_path / "cache").path == info.path


def test_a_sample_without_its_image_is_bad_alone(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", {"a.jpg": b"a", "a.seg": b"m", "b.seg": b"m", "c.jpg": b"c", "c.seg": b"m", "d.txt": b""})
    source, info = opened(Tar(tmp_path / "a.tar", label=None, mask="seg"), tmp_path)
    assert info.samples == 3
    with pytest.raises(SampleError, match="has no image for it"):
        source.read(1)
    assert source.read(2) == {"image": b"c", "mask": b"m"}
    write(tmp_path / "b.tar", {"a.cls": b"1", "b.cls": b"2", "b.jpg": b"b", "c.txt": b""})
    source, info = opened(Tar(tmp_path / "b.tar"), tmp_path)
    assert info.samples == 2
    with pytest.raises(SampleError, match=r"b\.tar has no image for it"):
        source.read(0)
    assert source.read(1) == {"image": b"b", "label": 2}


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.GNUTYPE_SPARSE])
def test_a_link_in_place_of_a_file_is_named(kind: bytes, tmp_path: Path) -> None:
    """Its bytes lie elsewhere: left out, it would be a sample that is silently lost."""
    with tarfile.open(write(tmp_path / "a.tar", {"a.jpg": b"a", "a.cls": b"1", "b.cls": b"1"}), "a") as archive:
        for name in ("b.jpg", "LINK.md"):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.jpg"
            archive.addfile(member)
    with pytest.raises(SourceError, match=r"a.tar: file .jpg of sample b is a link or a sparse file; write .*tar -h"):
        build_index(Tar(tmp_path / "a.tar"), tmp_path / "cache")
    assert build_index(Tar(tmp_path / "a.tar", image="cls", label=None), tmp_path / "cache").samples == 2


def damaged(change: Callable[[bytearray], object]) -> Callable[[bytes], bytes]:
    def made(data: bytes) -> bytes:
        changed = bytearray(data)
        change(changed)
        return bytes(changed)

    return made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:2560], r"a.tar may be cut off: it ends at byte 2560, within sample a or .*label .cls"),
        (lambda data: data[:1600], r"a.tar is cut off: a file at byte 1024 of 1600 has 700 bytes"),
        (lambda data: data[:1100], r"there is no header at byte 1024 of 1100|is cut off"),
        (lambda data: b"no tar at all" * 100, "is damaged, or not a tar: there is no header at byte 0 of 1300"),
        (lambda data: b"", "a.tar is empty"),
        (gzip.compress, r"a.tar is compressed \(gzip\), so no sample can be read alone: unpack it once"),
        (lambda data: b"BZh91AY&SY" + data, r"is compressed \(bzip2\)"),
        (lambda data: b"\x28\xb5\x2f\xfd" + data, r"is compressed \(zstd\)"),
        (damaged(lambda data: data.__setitem__(1030, 7)), "there is no header at byte 1024"),
        (lambda data: bytes(2048), "a.tar holds no samples with image = 'jpg;jpeg;png;webp'"),
    ],
)  # fmt: skip
def test_a_shard_that_cannot_be_used_is_named(change: Callable[[bytes], bytes], said: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {"a.txt": b"1", "a.jpg": bytes(700), "a.cls": b"1"})
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SourceError, match=said):
        build_index(Tar(path), tmp_path / "cache")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.jpg": b"x"}, r"the label .cls of sample a is missing; .* The sample has .jpg\. label= names"),
        ({"a.jpg": b"x", "a.cls": b"cat"}, r"the label .cls of sample a holds 'cat'; .* a number from 0"),
        ({"a.jpg": b"x", "a.cls": b"-1"}, r"holds '-1'"),
        ({"a.jpg": b"x", "a.JPG": b"x"}, r"sample a has two files .jpg"),
    ],
)
def test_a_sample_that_makes_no_sense_is_named(files: dict[str, bytes], said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=said):
        build_index(Tar(write(tmp_path / "a.tar", files)), tmp_path / "cache")


def test_wildcards_name_shards_in_sorted_order(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        write(tmp_path / f"s{number}.tar", {f"{number}.jpg": b"x", f"{number}.cls": b"%d" % number})
    source, _ = opened(Tar(tmp_path / "s*.tar"), tmp_path)
    assert [source.label(index) for index in range(len(source))] == [0, 1, 2]
    with pytest.raises(SourceError, match=r"no file matches /.*/t\*\.tar"):
        build_index(Tar(tmp_path / "t*.tar"), tmp_path / "cache")


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path / "s0.tar", {"a.jpg": b"x"})
    with pytest.raises(SourceError, match=rf"the shard .*/s1.tar does not exist on machine {os.uname().nodename}"):
        build_index(Tar(tmp_path / "s{0..1}.tar", label=None), tmp_path / "cache")


def test_shards_outside_the_roots_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "out.tar", {"a.jpg": b"x"})
    (tmp_path / "in" / "link0.tar").symlink_to(tmp_path / "out.tar")
    for pattern in ("out.tar", "in/link{0..0}.tar", "{in/../out,in/link0}.tar"):
        with pytest.raises(OutsideRootsError):
            build_index(Tar(tmp_path / pattern, label=None), tmp_path / "cache", roots=Roots([str(tmp_path / "in")]))


def test_a_listing_is_kept_until_a_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepserver.source.reader._COARSEST_TIME_NS", 0)
    path = write(tmp_path / "a.tar", {"a.jpg": b"1"})
    spec = Tar(path, label=None)
    source, info = opened(spec, tmp_path)
    calls: list[int] = []
    assert build_index(spec, tmp_path / "cache", calls.append).path == info.path
    assert calls == []
    write(path, {"a.jpg": b"12", "b.jpg": b"3"})
    with pytest.raises(SampleError, match=r"a.tar has changed since|should have"):
        source.read(0)
    assert opened(spec, tmp_path)[1].samples == 2


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("a", ["a"]),
        ("a{08..11}b", ["a08b", "a09b", "a10b", "a11b"]),
        ("{x,y}-{0..1}", ["x-0", "x-1", "y-0", "y-1"]),
    ],
)
def test_braces_name_several_shards(pattern: str, paths: list[str]) -> None:
    assert expand(pattern) == paths


@pytest.mark.parametrize(
    "pattern", ["a{", "a{}", "a{1..}", "{5..2}", "{0..99999999}", "{0..9999}{0..9999}", "{a..b}", "{a}" * 1500]
)
def test_braces_that_name_nothing_are_refused(pattern: str) -> None:
    with pytest.raises(SourceError, match=r"range|braces|more than"):
        expand(pattern)


def test_the_spec_travels_and_checks_its_extensions() -> None:
    spec = Tar("/data/{0..3}.tar", mask="seg.png")
    for each in (spec, Tar("/data/a.tar", label=None)):
        assert source_from_wire(each.to_wire()) == each
    assert list(spec.columns) == ["image", "mask", "label"]
    for wrong in ({"image": ""}, {"image": None}, {"label": 3}, {"mask": "a/b"}):
        with pytest.raises(SpecError, match="must be an extension"):
            Tar("/data/a.tar", **wrong)


NPY = io.BytesIO()
np.save(NPY, np.array([1.5, -2.0], np.float16))
RICH = {
    "a.jpg": b"photo", "a.txt": "eine Stra\u00dfe\n".encode(), "a.cls": b" 3\n", "a.depth.png": b"plane",
    "a.json": b'{"age": 7, "of": {"score": 0.5}, "t": [3, 4]}', "a.clip.npy": NPY.getvalue(), "a.flac": b"\0sound",
}  # fmt: skip
COLUMNS: dict[str, kinds.Kind] = {
    "image": kinds.Image(), "caption": kinds.Text(), "label": kinds.Label(), "age": kinds.Label(),
    "score": kinds.Scalar("float32"), "words": kinds.Tokens(), "vector": kinds.Array((2,), "float16"),
    "flac": kinds.Bytes(), "mask": kinds.Mask(),
}  # fmt: skip
NAMES = {
    "caption": "text;txt", "age": "json:age", "score": "json:of.score", "words": "json:t", "vector": "clip.npy",
    "mask": "depth.png",
}  # fmt: skip


def npy(descr: str, shape: tuple[int, ...]) -> bytes:
    """A header without an array."""
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("array", [np.float64(3.5), np.arange(6).reshape(2, 3).T, np.arange(4, dtype=">f4")])
def test_any_array_of_numbers_is_read(array: Any, tmp_path: Path) -> None:
    """Also a number alone, in Fortran order, and big-endian."""
    data = io.BytesIO()
    np.save(data, array)
    kind = kinds.Array(array.shape, array.dtype.name) if array.ndim else kinds.Scalar("float64")
    spec = Tar(write(tmp_path / "a.tar", {"a.x": data.getvalue()}), columns={"x": kind})
    found = opened(spec, tmp_path)[0].read(0)["x"]
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, array)


def test_columns_are_files_by_extension_and_keys_of_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", RICH | {"b.jpg": b"b", "b.txt": b"", "b.cls": b"1"})
    source, info = opened(Tar(path, columns=COLUMNS, names=NAMES), tmp_path)
    found = source.read(0)
    assert [found[name].dtype for name in ("age", "score", "words")] == ["int64", "float32", "int64"]
    assert found.pop("vector").tolist() == [1.5, -2.0]
    assert found.pop("words").tolist() == [3, 4]
    assert found == {
        "image": b"photo", "caption": "eine Stra\u00dfe\n", "label": 3, "age": 7, "score": 0.5, "flac": b"\0sound",
        "mask": b"plane",
    }  # fmt: skip
    assert (info.samples, info.num_classes, source.label(0)) == (2, 4, 3)
    with pytest.raises(SampleError, match="has no age for it"):
        source.read(1)
    captions, _ = opened(Tar(path, columns={"txt": kinds.Text()}), tmp_path)
    assert [captions.read(index) for index in range(2)] == [{"txt": RICH["a.txt"].decode()}, {"txt": ""}]


def test_a_json_file_and_a_key_of_one_are_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {"a.json": b'\xef\xbb\xbf{"turns": [{"role": "user"}]}'})
    columns = {"json": kinds.Json(), "turns": kinds.Json()}
    source, _ = opened(Tar(path, columns=columns, names={"turns": "json:turns"}), tmp_path)
    assert source.read(0) == {"json": '{"turns": [{"role": "user"}]}', "turns": '[{"role": "user"}]'}


def test_a_label_in_json_is_the_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "a.tar", {"a.json": b'{"x": 5}', "b.json": b'{"x": 2}'})
    for name in ("label", "other"):
        source, info = opened(Tar(path, columns={name: kinds.Label()}, names={name: "json:x"}), tmp_path)
        assert [source.read(0), source.label(1), source.labels(0, 2).tolist()] == [{name: 5}, 2, [5, 2]]
        assert info.num_classes == 0
    filtered = Filter(Tar(path, columns={"label": kinds.Label()}, names={"label": "json:x"}), [2])
    write(tmp_path / "a.tar", {"a.json": b'{"x": null}', "b.json": b'{"x": 2}', "c.txt": b""})
    assert build_index(filtered, tmp_path / "cache").samples == 1
    said = "a.tar): 2 samples have no readable label, and are left out. The first is a.tar/a: its label is None, and"
    assert said in caplog.messages[-1]
    source, info = opened(Tar(path, columns={"json": kinds.Text()}), tmp_path)
    assert info.samples == 3  # each key, whichever columns are read
    assert (source.label(0), source.labels(0, 2).tolist()) == (0, [0, 0])


@pytest.mark.parametrize(
    ("column", "name", "data", "said"),
    [
        (kinds.Text(), "x", b"a\xff", "byte 1 of its c is not UTF-8"),
        (kinds.Scalar("uint8"), "x", b"300", "its c is 300, and must be a number of type uint8"),
        (kinds.Label(), "x", b"cat", "its c is 'cat', and must be the number of a class"),
        (kinds.Label(), "x", b"", "its c is empty in a.tar"),
        (kinds.Array((2,)), "x", NPY.getvalue()[:-2], "its c is damaged: the .npy file does not hold what its"),
        (kinds.Array((2,)), "x", npy("<f2", (1,) * 65), "its c is damaged: the .npy file does not hold what its"),
        (kinds.Array((2,)), "x", npy("<f2", (0, 1 << 62, 1 << 62)), "its c is damaged: the .npy file"),
        (kinds.Array((2,)), "x", npy("<f2", (-1,)) + b"1234", "its c is damaged: the .npy file"),
        (kinds.Array((2,)), "x", npy("<M8[s]", (0,)), "its c has the dtype <M8.s., and must hold numbers"),
        (kinds.Array((2,)), "x", npy("|O", (1,)), "its c holds Python objects or records"),
        (kinds.Array((2,)), "x", npy("garbage", (1,)), "its c is damaged: the .npy file"),
        (kinds.Array((2,)), "x", npy("<04", (1,)), "its c is damaged: the .npy file"),
        (kinds.Scalar(), "x", b"\x80\x02ctorch", "byte 0 of its c is not UTF-8, and the file is no .npy file"),
        (kinds.Label(), "x", b"1_0", "its c is '1_0', and must be the number of a class"),
        (kinds.Array((3,)), "x", NPY.getvalue(), r"must be numbers of type float32 in the shape \[3\]"),
        (kinds.Array((2,)), "x", b"\x93NUMPYrest", "its c is no .npy file, or damaged"),
        (kinds.Tokens(), "x", b"[1, 0.5]", r"its c is \[1, 0.5\], and must be a list of integers"),
        (kinds.Json(), "x", b"{", "its c is '{', and must be JSON"),
        (kinds.Json(), "x", b"", "its c is '', and must be JSON"),
        (kinds.Text(), "x:k", b"{", "the file of its c is not JSON"),
        (kinds.Text(), "x:k", b"", "the file of its c is not JSON"),
        (kinds.Text(), "x:k", b"[1]", 'the file of its c holds no JSON object, such as {"x": 1}'),
        (kinds.Text(), "x:k.l", b'{"k": 1}', "the file of its c has no 'k.l'"),
        (kinds.Text(), "x:k", b'{"k": 1}', "its c is 1, and must be text"),
    ],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_bad(
    column: kinds.Kind, name: str, data: bytes, said: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.tar", {"a.x": data})
    source, _ = opened(Tar(path, columns={"c": column}, names={"c": name}), tmp_path)
    with pytest.raises(SampleError, match=said):
        source.read(0)


def test_a_file_of_several_columns_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.tar", {"a.json": b'{"x": 1, "y": 2}', "b.json": b'{"x": 3, "y": 4}', "b.txt": b"b"})
    columns = {"x": kinds.Scalar("int64"), "txt": kinds.Text(), "y": kinds.Label(), "json": kinds.Text()}
    source, _ = opened(Tar(path, columns=columns, names={"x": "json:x", "y": "json:y"}), tmp_path)
    asked: list[tuple[int, int, int]] = []
    read = Shards.read
    monkeypatch.setattr(Shards, "read", lambda *of: asked.append(of[1:]) or read(*of))
    assert source.read(1) == {"x": 3, "txt": "b", "y": 4, "json": '{"x": 3, "y": 4}'}
    assert len(asked) == 2
    assert source.label(0) == 2


def test_labels_that_cannot_be_read_just_now_leave_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing of a Filter is kept, and would lack good samples for good."""
    path = write(tmp_path / "a.tar", {f"{n}.json": b'{"x": 1}' for n in range(5)})
    spec = Filter(Tar(path, columns={"label": kinds.Label()}, names={"label": "json:x"}), [1])
    pread = os.pread

    def failing(descriptor: int, count: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(path) and offset > 2000:
            raise OSError(errno.ESTALE, "Stale file handle")
        return pread(descriptor, count, offset)

    os.utime(path, (1, 1))  # so that the tar's own listing is kept
    build_index(spec.sources[0], tmp_path / "cache")
    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(SourceError, match=r"cannot read the sample a\.tar/2: cannot read a\.tar: Stale file handle"):
        build_index(spec, tmp_path / "cache")
    monkeypatch.undo()
    assert build_index(spec, tmp_path / "cache").samples == 5


def test_an_extension_that_no_sample_has_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", RICH)
    spec = Tar(path, columns={"image": kinds.Image(), "caption": kinds.Text()})
    with pytest.raises(SourceError, match=r"a\.tar holds no samples with caption = 'caption'"):
        build_index(spec, tmp_path / "cache")


def test_labels_alone_are_a_dataset(tmp_path: Path) -> None:
    spec = Tar(write(tmp_path / "a.tar", {"a.cls": b"2"}), columns={"label": kinds.Label()})
    assert opened(spec, tmp_path)[0].read(0) == {"label": 2}
    write(tmp_path / "a.tar", {"a": b"2"})
    with pytest.raises(SourceError, match="holds no samples with label = 'cls'"):
        build_index(spec, tmp_path / "cache")
    write(tmp_path / "a.tar", {"a.x": b"2"})
    with pytest.raises(SourceError, match=r"the label \.cls of sample a is missing; .* another name than label"):
        build_index(spec, tmp_path / "cache")


def test_a_shard_rewritten_in_place_gives_no_mixed_samples(tmp_path: Path) -> None:
    """Its labels are those of the listing; the shard stays open, and may keep its size."""
    path = write(tmp_path / "a.tar", {"a.x": b"one", "a.cls": b"1", "b.x": b"two", "b.cls": b"2"})
    columns = {"x": kinds.Bytes(), "label": kinds.Label()}
    source, _ = opened(Tar(path, columns=columns), tmp_path)
    assert source.read(0) == {"x": b"one", "label": 1}
    inode = path.stat().st_ino
    write(path, {"b.x": b"two", "b.cls": b"2", "a.x": b"one", "a.cls": b"1"})
    os.utime(path, (1, 1))
    assert path.stat().st_ino == inode
    for index in range(2):
        with pytest.raises(SampleError, match=r"a\.tar has changed since the dataset was listed"):
            source.read(index)


def test_names_that_mean_the_same_are_one_source() -> None:
    spec = Tar("/a.tar", columns=COLUMNS, names=NAMES)
    assert source_from_wire(json.loads(json.dumps(spec.to_wire()))) == spec
    assert Tar("/a.tar", columns={"txt": kinds.Text()}, names={"txt": "txt"}) == Tar(
        "/a.tar", columns={"txt": kinds.Text()}
    )
    assert "names" not in Tar("/a.tar").to_wire()
    assert Tar("/a.tar", names={"image": "image"}).member("image") == ("image", "")


@pytest.mark.parametrize(
    ("columns", "names", "field"),
    [
        ({"boxes": kinds.Boxes()}, {}, "columns.boxes"),
        ({"image": kinds.Image()}, {"image": "json:bytes"}, "names"),
        ({"image": kinds.Image()}, {"label": "cls"}, "names"),
        ({"a": kinds.Text()}, {"a": "a/b"}, "names"),
        ({"a": kinds.Text()}, {"a": ":x"}, "names"),
        ({"a": kinds.Text()}, {"a": "json:"}, "names"),
        ({"a": kinds.Text()}, {"a": 3}, "names"),
        ({}, {}, "columns"),
    ],
)
def test_columns_that_cannot_be_are_refused(columns: Any, names: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        Tar("/a.tar", columns=columns, names=names)
    assert caught.value.field == field


def test_the_stamp_of_a_sample_changes_with_its_shard(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", {"a.jpg": b"one", "b.jpg": b"two"})
    write(tmp_path / "b.tar", {"c.jpg": b"three"})
    spec = Tar(tmp_path / "{a,b}.tar", label=None)
    before = [opened(spec, tmp_path)[0].stamp(index) for index in range(3)]
    assert before == [opened(spec, tmp_path)[0].stamp(index) for index in range(3)]
    write(tmp_path / "a.tar", {"a.jpg": b"two", "b.jpg": b"one"})
    os.utime(tmp_path / "a.tar", (1, 1))
    after = [opened(spec, tmp_path)[0].stamp(index) for index in range(3)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False, True]


def test_an_index_of_many_small_samples_stays_small(tmp_path: Path) -> None:
    """Ten million samples shall take less than a gigabyte."""
    blocks = []
    for number in range(2000):
        member = tarfile.TarInfo(f"{number:012}.jpg")
        member.size = 1
        blocks.append(member.tobuf(tarfile.USTAR_FORMAT) + b"x".ljust(tarfile.BLOCKSIZE, b"\0"))
    (tmp_path / "a.tar").write_bytes(b"".join(blocks))
    _, info = opened(Tar(tmp_path / "a.tar", label=None), tmp_path)
    assert info.samples == 2000
    assert info.path.stat().st_size < 60 * info.samples
