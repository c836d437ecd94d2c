"""Tokenizers from files: the file says which one, and each gives what its package gives."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import weakref
from pathlib import Path

import pytest

from prepserver import opfile
from prepserver.opfile import BadFile
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Tokenize
from prepserver.tokens import BadText, tokenizer
from prepserver.transform.ops import stage_of
from tests.support import texts

TEXTS = ["the a zzz", "", "the the b", "ünï \U0001f600 a"]


def made(op: Tokenize, given: list[str]) -> list[list[int]]:
    return [each.tolist() for each in tokenizer(op)(given)]


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}, of the extra 'text'")


def test_ranks_of_tiktoken_are_told_by_the_file(tmp_path: Path) -> None:
    need("tiktoken")
    path = texts.ranks(tmp_path / "cl100k_base.tiktoken")
    found = made(Tokenize(path), TEXTS)
    assert found[0] == [257, 258, 32, 122, 122, 122]
    assert found[2] == [257, 260, 259]
    assert bytes(found[3][:-1]).decode() == "ünï \U0001f600"
    other = path.rename(tmp_path / "mine")
    with pytest.raises(BadFile, match=r"name it as its encoding \(gpt2, .*, or give pattern="):
        tokenizer(Tokenize(other))
    assert made(Tokenize(other, pattern="cl100k_base"), TEXTS) == found
    assert made(Tokenize(other, pattern=r"\p{L}+|."), ["the a"]) == [[257, 32, 97]]
    with pytest.raises(BadFile, match="has no ranks of tiktoken, or pattern= is no expression"):
        tokenizer(Tokenize(other, pattern="("))


def test_a_model_of_sentencepiece_is_told_by_the_file(tmp_path: Path) -> None:
    need("sentencepiece")
    import sentencepiece

    path = texts.sentences(tmp_path / "any", texts.lines(50))
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    assert made(Tokenize(path), TEXTS) == reference.encode(TEXTS)
    path.write_bytes(b"\n\xff\0")
    with pytest.raises(BadFile, match="is no model of sentencepiece, and no text"):
        tokenizer(Tokenize(path))


def test_a_vocabulary_numbers_the_words_of_its_lines(tmp_path: Path) -> None:
    path = texts.vocabulary(tmp_path / "words.txt")
    assert made(Tokenize(path, unknown="[UNK]"), ["the  a\tzzz", ""]) == [[4, 5, 1], []]
    with pytest.raises(BadText, match=r"has the word 'zzz', which .*words.txt lacks"):
        made(Tokenize(path), ["the zzz"])
    with pytest.raises(BadText, match=r"has the word 'ACGT[ACGT]{95}, which .*words.txt lacks"):
        made(Tokenize(path), ["ACGT" * 400])
    with pytest.raises(BadFile, match="lacks the word unknown='zzz'"):
        tokenizer(Tokenize(path, unknown="zzz"))
    path.write_text("\ufeffa\r\n\r\nb")
    assert made(Tokenize(path, into="anew"), ["a b"]) == [[0, 2]]
    path.write_text("a\nb\na")
    with pytest.raises(BadFile, match="has the word 'a' in lines 1 and 3"):
        tokenizer(Tokenize(path, into="fresh"))
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(BadFile, match=r"neither a tokenizer.json, nor ranks"):
        tokenizer(Tokenize(path, into="again"))


def test_begin_and_end_stay_where_a_text_is_cut(tmp_path: Path) -> None:
    for op in (
        Tokenize(texts.vocabulary(tmp_path / "words.txt"), 4, begin=2, end=3),
        Tokenize(texts.tokenizer(tmp_path / "a.json"), 4, special_tokens=False, begin=2, end=3),
    ):
        assert made(op, ["the a b c d", "a", ""]) == [[2, 4, 5, 3], [2, 5, 3], [2, 3]]
    with pytest.raises(SpecError, match="leaves no room for begin and end"):
        Tokenize("/a", 2, begin=0, end=1)
    with pytest.raises(SpecError, match="unknown"):
        Tokenize("/a", unknown="")


def test_half_of_a_surrogate_pair_is_a_bad_text(tmp_path: Path) -> None:
    for path in (texts.tokenizer(tmp_path / "a.json"), texts.vocabulary(tmp_path / "a.txt")):
        with pytest.raises(BadText, match="character 2 of a text is half of a surrogate pair"):
            made(Tokenize(path), ["a", "a \ud800"])


def test_panics_of_packages_are_errors(tmp_path: Path) -> None:
    """They are no `Exception`: they would end a worker for each text."""
    need("tiktoken")

    def ranks(*numbers: int) -> Path:
        lines = [f"{base64.b64encode(bytes([97 + k])).decode()} {number}\n" for k, number in enumerate(numbers)]
        (tmp_path / "gpt2.tiktoken").write_text("".join(lines))
        return tmp_path / "gpt2.tiktoken"

    few = ranks(0, 1)
    assert made(Tokenize(few), ["ab"]) == [[0, 1]]
    with pytest.raises(BadText, match="lacks a part of it"):
        made(Tokenize(few), ["abc"])
    with pytest.raises(BadFile, match="no tokenizer that its package can use"):
        tokenizer(Tokenize(ranks(0, 0), into="anew"))


def test_a_tokenizer_that_draws_is_refused(tmp_path: Path) -> None:
    need("tokenizers")
    path = tmp_path / "tokenizer.json"
    model = {"type": "BPE", "dropout": 0.1, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(BadFile, match=r"dropout=0\.1.*set model.dropout to null"):
        tokenizer(Tokenize(path))
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model | {"dropout": None}}))
    assert made(Tokenize(path), ["ab"]) == [[2]]


def test_a_tokenizer_goes_with_the_last_one_who_uses_it(tmp_path: Path) -> None:
    op = Tokenize(texts.vocabulary(tmp_path / "words"))
    stages = [stage_of(op, 1), stage_of(op, 2)]
    for stage in stages:
        stage.make_block([{"text": "the"}], {}, [])
    found = weakref.ref(tokenizer(op))
    assert found() is tokenizer(op)
    del stage, stages
    assert found() is None


def test_a_pipe_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """Nobody waits for its writer."""
    os.mkfifo(tmp_path / "words")
    with pytest.raises(BadFile, match="words is no regular file"):
        tokenizer(Tokenize(str(tmp_path / "words")))


def test_a_file_that_has_grown_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opfile, "MAX_FILE_BYTES", 100)
    path = texts.vocabulary(tmp_path / "words")
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadFile, match="words has more than 100 bytes, the limit"):
        tokenizer(Tokenize(path))
