from __future__ import annotations

import os
from pathlib import Path

import pytest

from prepserver.pipeline.sources import FileList
from prepserver.source import Listing, Source, SourceError, build_index, open_source
from tests.support.waiting import PATIENCE_S


def write(tmp_path: Path, content: str | bytes, name: str = "list.txt") -> FileList:
    path = tmp_path / "lists" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return FileList(str(path))


def opened(spec: FileList, tmp_path: Path) -> tuple[Listing, Source]:
    info = build_index(spec, tmp_path / "cache")
    return info, open_source(spec, info.path)


def rows(source: Source) -> list[tuple[str, int]]:
    return [(source.name(i), source.label(i)) for i in range(len(source))]


def test_integer_labels_are_taken_as_they_are(tmp_path: Path) -> None:
    text = "# a comment\n\na/1.jpg 7\n  b.jpg\t0  \nwith blanks in it.jpg 3\r\n/abs/x.jpg +2"
    info, source = opened(write(tmp_path, text), tmp_path)
    assert rows(source) == [("a/1.jpg", 7), ("b.jpg", 0), ("with blanks in it.jpg", 3), ("/abs/x.jpg", 2)]
    assert (info.samples, info.num_classes, source.classes()) == (4, 8, [])


def test_labels_may_be_identifiers_which_are_no_classes(tmp_path: Path) -> None:
    """The number of classes would not fit into a message."""
    info, source = opened(write(tmp_path, f"1.jpg {2**63 - 1}\n2.jpg 0\n"), tmp_path)
    assert [label for _, label in rows(source)] == [2**63 - 1, 0]
    assert info.num_classes == 0


def test_other_labels_are_sorted_into_classes(tmp_path: Path) -> None:
    info, source = opened(write(tmp_path, "1.jpg dog\n2.jpg cat\n3.jpg 10\n4.jpg dog\n"), tmp_path)
    assert source.classes() == ["10", "cat", "dog"]
    assert [label for _, label in rows(source)] == [2, 1, 0, 2]
    assert info.num_classes == 3


def test_a_label_behind_a_tab_may_hold_blanks(tmp_path: Path) -> None:
    _, source = opened(write(tmp_path, "a b.jpg\tgreat white shark\n"), tmp_path)
    assert rows(source) == [("a b.jpg", 0)]
    assert source.classes() == ["great white shark"]


def test_the_header_of_a_csv_names_its_columns(tmp_path: Path) -> None:
    _, source = opened(write(tmp_path, "Label, path\n4,1.jpg\n5,label\n", "list.csv"), tmp_path)
    assert rows(source) == [("1.jpg", 4), ("label", 5)]


@pytest.mark.parametrize("header", ["", "path,label\n", "\ufeffPath, Label\r\n"])
def test_csv_is_read_with_and_without_a_header(tmp_path: Path, header: str) -> None:
    text = header + '1.jpg,4\n"a, b/2 ""x"".jpg",5\n\n#3.jpg,6\n'
    _, source = opened(write(tmp_path, text, "list.CSV"), tmp_path)
    assert rows(source) == [("1.jpg", 4), ('a, b/2 "x".jpg', 5), ("#3.jpg", 6)]


def test_paths_are_relative_to_the_list_or_absolute(tmp_path: Path) -> None:
    spec = write(tmp_path, f"near.jpg 0\n../far.jpg 1\n{tmp_path}/far.jpg 2\n")
    (tmp_path / "lists" / "near.jpg").write_bytes(b"near")
    (tmp_path / "far.jpg").write_bytes(b"far")
    _, source = opened(spec, tmp_path)
    assert [source.read(i)["image"] for i in range(3)] == [b"near", b"far", b"far"]


def test_names_that_are_not_utf8_survive(tmp_path: Path) -> None:
    spec = write(tmp_path, b"\xff.jpg caf\xe9\n")
    with open(os.fsencode(tmp_path / "lists") + b"/\xff.jpg", "wb") as file:
        file.write(b"x")
    _, source = opened(spec, tmp_path)
    assert source.read(0)["image"] == b"x"
    assert os.fsencode(source.classes()[0]) == b"caf\xe9"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.txt", "a.jpg 1\n\nb.jpg\n", "line 3: no label"),
        ("l.txt", "a.jpg,1\n", r"must have a name that ends in \.csv"),
        ("l.txt", "a.jpg 1\nb.jpg -1\n", "line 2: label -1; an integer label must be >= 0"),
        ("l.txt", f"a.jpg {2**63}\n", "line 1: label 9223372036854775808"),
        ("l.txt", "folder/ 1\n", "line 1: needs a path"),
        ("l.txt", "a\0b.jpg 1\n", "line 1: needs a path"),
        ("l.txt", "# nothing\n", "names no files"),
        ("l.txt", "", "names no files"),
        ("l.csv", "path,label\n", "names no files"),
        ("l.csv", "a.jpg,1\nb.jpg\n", "line 2: 1 columns"),
        ("l.csv", "a.jpg,1\nb.jpg,2,3\n", "line 2: 3 columns"),
        ("l.csv", "a.jpg,1\nb.jpg,\n", "line 2: needs a path and a label"),
        ("l.csv", 'a.jpg,1\n"b.jpg,2\n', "line 2: it is not CSV, unexpected end of data"),
        ("l.csv", "filename,class\na.jpg,1\nb.jpg,0\n", r"line 1: .*'class' .*only one.*integer.*path,label"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        build_index(write(tmp_path, text, name), tmp_path / "cache")


@pytest.mark.timeout(PATIENCE_S)
def test_a_missing_list_a_folder_and_a_fifo_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, message in (
        (tmp_path / "none", "does not exist"),
        (tmp_path, "is not a regular file"),
        (tmp_path / "fifo", "is not a regular file"),
    ):
        with pytest.raises(SourceError, match=message):
            build_index(FileList(str(path)), tmp_path / "cache")


@pytest.mark.parametrize("labels", [("1.0", "2.5"), ("0", "1.5"), ("1e3", "2"), ("nan", "0.0")])
def test_labels_that_are_no_integers_are_no_classes(tmp_path: Path, labels: tuple[str, str]) -> None:
    text = "".join(f"{number}.jpg {label}\n" for number, label in enumerate(labels))
    with pytest.raises(SourceError, match=r"line [12]: label \S+ is a number, not an integer"):
        build_index(write(tmp_path, text), tmp_path / "cache")


@pytest.mark.parametrize("end", ["", ".jpg"])
def test_a_word_among_numbers_is_a_class_unless_in_a_header(tmp_path: Path, end: str) -> None:
    lists = (["1", "class", "0"], ["class", "1", "dog"], ["class"], *([["class", "1", "0"]] if end else []))
    for number, labels in enumerate(lists):
        text = "".join(f"{k}{end},{label}\n" for k, label in enumerate(labels))
        _, source = opened(write(tmp_path, text, f"{number}.csv"), tmp_path)
        assert source.classes() == sorted(labels)


def test_a_name_among_the_labels_makes_all_of_them_names(tmp_path: Path) -> None:
    _, source = opened(write(tmp_path, "1.jpg v1\n2.jpg 1.5\n"), tmp_path)
    assert source.classes() == ["1.5", "v1"]
