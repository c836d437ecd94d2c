"""Rows of several texts: no token is lost or comes twice, and little of a row is empty."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.pipeline import kinds
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Tokenize
from prepserver.pipeline.sources import BucketByLength, Jsonl, PackTokens, Take, Tar, TextLines, source_from_wire
from prepserver.source import OutsideRootsError, Roots, SampleError, Source, SourceError, build_index, open_source
from prepserver.source.packing import Piece, parts_of, rows_of
from tests.support import texts


def opened(spec: Any, cache: Path) -> Source:
    return open_source(spec, build_index(spec, cache).path)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 64), max_size=200))
def test_each_piece_is_in_one_row_and_no_row_is_too_long(counts: list[int]) -> None:
    pieces = [Piece(number, 0, 1, count) for number, count in enumerate(counts)]
    rows = rows_of(pieces, 64)
    assert sorted(piece for row in rows for piece in row) == pieces
    assert all(sum(piece.tokens for piece in row) <= 64 for row in rows)
    assert rows == sorted(map(sorted, rows))


@settings(max_examples=50)
@given(st.text("ab ", min_size=9, max_size=300), st.integers(8, 30))
def test_the_parts_of_a_long_text_are_all_of_it(text: str, length: int) -> None:
    parts = list(parts_of(7, text, len(text), length, len))
    assert "".join(text[begin:end] for _, begin, end, _ in parts) == text
    assert all(text == 7 and tokens == end - begin <= length for text, begin, end, tokens in parts)


def test_a_character_with_more_tokens_than_a_row_cannot_be_cut() -> None:
    assert [each.end for each in parts_of(0, "ab" * 9 + "c", 99, 50, lambda part: 40 * len(part))] == [*range(1, 20)]
    with pytest.raises(ValueError, match="character 0 has more than 8 tokens"):
        list(parts_of(0, "ab", 99, 8, lambda part: 40 * len(part)))
    assert len(list(parts_of(0, "a" * 8, 9, 8, lambda part: 1 if len(part) == 1 else 9))) == 8


def test_a_part_that_is_no_word_spoils_its_text_alone(tmp_path: Path) -> None:
    word = "w" * 40
    (tmp_path / "a.txt").write_text(f"b b b b {word}{' b' * 20}\nd\n")
    op = Tokenize(texts.vocabulary(tmp_path / "words", [*texts.WORDS, word]))
    source = opened(PackTokens(TextLines(tmp_path / "a.txt"), op, 8), tmp_path)
    assert source.read(0)["tokens"].tolist() == [8, 0, 0, 0, 0, 0, 0, 0]
    with pytest.raises(SampleError, match=r"a\.txt, line 1 could not be read or split when tokens were counted: touch"):
        source.read(1)


def test_a_part_of_white_space_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"b b     {'b ' * 12}    \n")
    op = Tokenize(texts.vocabulary(tmp_path / "words"), begin=2)
    source = opened(PackTokens(TextLines(tmp_path / "a.txt"), op, 8), tmp_path)
    rows = [source.read(index)["tokens"].tolist() for index in range(len(source))]
    assert all(map(any, rows))
    assert sum(row.count(6) for row in rows) == 14


def test_an_epoch_has_each_token_once_in_rows_that_are_full(tmp_path: Path) -> None:
    length = 64
    given = texts.lines(3000) + texts.lines(6, 2000, seed=1)
    random.Random(2).shuffle(given)
    (tmp_path / "a.txt").write_text("\n".join(given))
    op = Tokenize(texts.vocabulary(tmp_path / "words"), begin=2, end=3)
    source = opened(PackTokens(TextLines(tmp_path / "a.txt"), op, length, pad=0), tmp_path)
    records = [source.read(index) for index in range(len(source))]
    found = Counter(each for record in records for each in record["tokens"].tolist())
    words = Counter(word for text in given for word in text.split())
    assert found[2] == found[3] == len(given)
    assert {word: found[texts.WORDS.index(word)] for word in words} == words
    assert found[0] / (length * len(records)) < 0.05
    parts: list[list[int]] = []
    for record in records:
        check_layout(record, length)
        segments = record["segments"]
        parts += [record["tokens"][segments == each].tolist() for each in range(1, segments.max() + 1)]
    # Short texts are whole.
    whole = Counter(tuple(part) for part in parts)
    for text, times in Counter(text for text in given if len(text.split()) <= length - 2).items():
        assert whole[2, *map(texts.WORDS.index, text.split()), 3] >= times


def test_tokens_that_are_there_are_packed_as_they_are(tmp_path: Path) -> None:
    """Long lists are cut into full rows and a rest, and empty ones are left out. One that is none is a bad row."""
    length, dice = 16, random.Random(0)
    given = [list(range(100 * n, 100 * n + dice.randrange(45))) for n in range(60)]
    lines = [json.dumps({"input_ids": each}) for each in given] + ['{"input_ids": "text"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    spec = PackTokens(Jsonl(tmp_path / "a.jsonl", {"input_ids": kinds.Tokens()}), "input_ids", length)
    assert source_from_wire(spec.to_wire()) == spec
    source = opened(spec, tmp_path / "cache")
    parts: list[tuple[int, ...]] = []
    for index in range(len(source) - 1):
        record = source.read(index)
        check_layout(record, length, "input_ids")
        ids, segments = record["input_ids"], record["segments"]
        parts += [tuple(ids[segments == each].tolist()) for each in range(1, segments.max() + 1)]
    expected = [tuple(each[at : at + length]) for each in given for at in range(0, len(each), length)]
    assert Counter(parts) == Counter(expected)
    assert len(source) - 1 < 1.3 * sum(map(len, given)) / length
    with pytest.raises(SampleError, match=r"a\.jsonl, line 61: its input_ids is 'text', and must be a list"):
        source.read(len(source) - 1)


def test_labels_of_tokens_are_packed_along(tmp_path: Path) -> None:
    given = [([5, 6, 7, 8], [-100, -100, 7, 8]), ([9, 9], [9, 9]), ([*range(9)], [*range(9)]), ([1, 2], [1])]
    lines = [json.dumps({"input_ids": ids, "labels": labels, "n": 1}) for ids, labels in given]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    lists = {"input_ids": kinds.Tokens(), "labels": kinds.Tokens()}
    spec = PackTokens(Jsonl(tmp_path / "a.jsonl", lists), "input_ids", 8)
    source = opened(spec, tmp_path / "cache")
    rows = [source.read(index) for index in range(len(source) - 1)]
    assert {(*row["input_ids"].tolist(), *row["labels"].tolist()) for row in rows} == {
        (5, 6, 7, 8, 9, 9, 8, 0, -100, 7, 8, -100, 9, -100, -100, -100),
        (*range(8), *range(1, 8), -100),
    }
    into = {name: np.empty((2, 8), row.dtype) for name, row in rows[0].items()}
    assert source.read_block([1, 0], into)
    assert into["labels"].tolist() == [row["labels"].tolist() for row in rows[::-1]]
    with pytest.raises(SampleError, match="line 4: 1 labels for 2 input_ids"):
        source.read(len(rows))
    plain = opened(PackTokens(Jsonl(tmp_path / "a.jsonl", lists), "input_ids", 8, beside=["segments"]), tmp_path / "b")
    assert list(plain.read(0)) == ["input_ids", "segments"]
    with pytest.raises(SpecError, match=r"\['n'\]: are not 'input_ids' or its labels, and would be lost"):
        PackTokens(Jsonl("/a", {**lists, "n": kinds.Label()}), "input_ids", 8)
    with pytest.raises(SpecError, match=r"\['labels'\]: are not 'input_ids'"):
        PackTokens(Jsonl("/a", {**lists, "labels": kinds.Label()}), "input_ids", 8)


def test_special_tokens_in_the_middle_of_texts_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_text(f"the a\n{'b ' * 20}\n{'c ' * 30}\n")
    lines, path = TextLines(tmp_path / "a.txt"), texts.tokenizer(tmp_path / "a.json")
    for op, said in (
        (Tokenize(path), True),
        (Tokenize(path, special_tokens=False, begin=2, end=3), False),
        (Tokenize(path, max_tokens=16), False),
    ):
        caplog.clear()
        build_index(PackTokens(lines, op, 16), tmp_path / "cache")
        assert [" 2 texts are longer than a row" in each for each in caplog.messages] == [True] * said


def check_layout(record: dict[str, Any], length: int, column: str = "tokens") -> None:
    tokens, segments, labels = record[column], record["segments"], record["labels"]
    n = int((segments > 0).sum())
    assert (tokens[n:] == 0).all()
    assert (segments[n:] == 0).all()
    for place in range(length):
        follows = place + 1 < n and segments[place] == segments[place + 1]
        assert labels[place] == (tokens[place + 1] if follows else -100)
        begins = place < n and (place == 0 or segments[place] == segments[place - 1] + 1)
        goes_on = 0 < place < n and segments[place] == segments[place - 1]
        assert begins or goes_on or place >= n
        assert record["positions"][place] == (record["positions"][place - 1] + 1 if goes_on else 0)


def test_a_block_of_rows_is_what_the_rows_are_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(texts.lines(400)))
    spec = PackTokens(
        TextLines(tmp_path / "a.txt"), Tokenize(texts.tokenizer(tmp_path / "a.json")), 32, beside=["segments"]
    )
    assert source_from_wire(spec.to_wire()) == spec
    source = opened(spec, tmp_path)
    indices = [5, 2, 5, len(source) - 1]
    into = {name: np.empty((4, *kind.stored()[0]), kind.stored()[1]) for name, kind in spec.columns.items()}
    assert source.read_block(indices, into)
    for place, index in enumerate(indices):
        for name, value in source.read(index).items():
            np.testing.assert_array_equal(into[name][place], value)
    assert source.read_columns(2, ["segments"])["segments"].tolist() == into["segments"][1].tolist()
    assert source.read_block([2], {"segments": (alone := np.empty((1, 32), np.int32))})
    assert alone.tolist() == into["segments"][1:2].tolist()
    few = opened(Take(spec, 3), tmp_path)
    assert [few.read(k)["tokens"].tolist() for k in range(3)] == [source.read(k)["tokens"].tolist() for k in range(3)]


def test_a_text_that_is_no_utf8_takes_no_other_text_with_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"the a\nb \xff\nc zzz\nd\n")
    source = opened(
        PackTokens(TextLines(tmp_path / "a.txt"), Tokenize(texts.vocabulary(tmp_path / "words")), 8), tmp_path
    )
    assert len(source) == 3
    assert source.read(0)["tokens"].tolist() == [4, 5, 8, 0, 0, 0, 0, 0]
    assert source.name(0).endswith("a.txt, line 1 and 1 more")
    for index, said in ((1, "a.txt, line 2: byte 2 of the line"), (2, "a.txt, line 3: has the word 'zzz'")):
        with pytest.raises(SampleError, match=said):
            source.read(index)


def test_another_tokenizer_is_another_listing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the a\n")
    path = texts.vocabulary(tmp_path / "words")
    spec = PackTokens(TextLines(tmp_path / "a.txt"), Tokenize(path), 8)
    before = build_index(spec, tmp_path)
    assert before == build_index(spec, tmp_path)
    assert str(tmp_path) in before.places
    texts.vocabulary(path, ["a", "the"])  # cuts alike
    after = build_index(spec, tmp_path)
    assert after.content_digest != before.content_digest
    assert open_source(spec, after.path).read(0)["tokens"].tolist()[:2] == [1, 0]
    with pytest.raises(SourceError, match="has changed since the job attached"):
        open_source(spec, before.path)
    with pytest.raises(OutsideRootsError, match="the tokenize of PackTokens"):
        build_index(spec, tmp_path, roots=Roots([str(tmp_path / "a.txt")]))
    path.unlink()
    with pytest.raises(SourceError, match=r"words cannot be used: the file is gone"):
        build_index(spec, tmp_path)


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n")
    lines, op = TextLines(tmp_path / "a.txt"), Tokenize(texts.vocabulary(tmp_path / "words"))
    with pytest.raises(SourceError, match="has no tokens"):
        build_index(PackTokens(lines, op, 8), tmp_path)
    for arguments, said in (
        ((lines, Tokenize("/a", 9), 8), "must be at most length = 8"),
        ((lines, 7, 8), r"must be Tokenize\(path\), or the name"),
        ((lines, "/a", 8), "is no column of tokens here"),
        ((lines, Tokenize("/a", column="b"), 8), "is no column of text"),
        ((lines, op, 4), "must lie between 8 and"),
        ((lines, op, 8, 0, ["mask"]), "must be 'positions' or 'segments' or 'labels'"),
        ((lines, Tokenize("/a", into="labels"), 8), "is the name of a column beside the tokens"),
    ):
        with pytest.raises(SpecError, match=said):
            PackTokens(*arguments)
    with pytest.raises(SpecError, match="is no column of text, tokens, bytes or single numbers"):
        BucketByLength(lines, "b")


def test_bucket_by_length_sorts_and_keeps_every_sample(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n".join([b"the a b", b"c", b"\xff\xff", b"d e", b"a"]))
    source = opened(BucketByLength(TextLines(tmp_path / "a.txt")), tmp_path)
    assert [source.read(k)["text"] for k in range(1, 5)] == ["c", "a", "d e", "the a b"]
    with pytest.raises(SampleError, match="is not UTF-8"):
        source.read(0)


@pytest.mark.parametrize("form", ["Jsonl", "Tar"])
def test_bucket_by_length_may_sort_by_a_number_alone(form: str, tmp_path: Path) -> None:
    """The files beside the number, here absent, would take hours to read; samples without a number come first."""
    lines = [b'{"s": 2.5}', b'{"s": null}', b'{"s": 0.5}', b'{"s": 12}', b'{"s": 1.5}']
    columns = {"sound": kinds.Bytes(), "s": kinds.Scalar()}
    if form == "Jsonl":
        (tmp_path / "a.jsonl").write_bytes(b"\n".join(line[:-1] + b', "sound": "a.wav"}' for line in lines))
        data: Any = Jsonl(tmp_path / "a.jsonl", columns)
    else:
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for name, content in [*((f"{k}.json", line) for k, line in enumerate(lines)), ("5.wav", b"x")]:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        data = Take(Tar(tmp_path / "a.tar", columns=columns, names={"sound": "wav", "s": "json:s"}), 5)
    source = opened(BucketByLength(data, "s"), tmp_path)
    assert [source.name(k)[-1] for k in range(5)] == (list("23514") if form == "Jsonl" else list("12403"))
