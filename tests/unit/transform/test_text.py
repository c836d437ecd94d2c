"""Text to tokens, cut and filled up: as `tokenizers` does it, and what is said where that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from prepserver.opfile import BadFile
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Label, Text, Tokens
from prepserver.pipeline.ops import MaskTokens, PadTokens, RandomCrop, Tokenize, Truncate
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.pipeline.spec import FILE
from prepserver.source import OutsideRootsError, Roots, SourceError, opfiles
from prepserver.transform import BadSample, SampleKey, make_rows, row_makers
from tests.support.texts import tokenizer
from tests.support.tiny_images import jpeg

TEXT: Columns = {"text": Text(), "label": Label()}


def made(pipeline: Pipeline, record: dict[str, Any]) -> dict[str, Any]:
    """The rows that the makers of a pipeline make of a record."""
    found: dict[str, Any] = {}
    targets = []
    for maker in row_makers(pipeline):
        rows = [np.full(field.shape, 77, field.dtype) for field in maker.fields]
        targets.append((maker, rows))
        found |= dict(zip((field.name for field in maker.fields), rows, strict=True))
    make_rows(record, SampleKey(0, 0, 0), targets)
    return {name: row.tolist() for name, row in found.items()}


def test_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    """Without the truncation and padding that its file asks for."""
    path = tokenizer(tmp_path / "a.json")
    reference = tokenizers.Tokenizer.from_file(str(path))
    reference.no_padding()
    reference.no_truncation()
    text = "the a zzz b c d e"
    for special in (True, False):
        pipeline = Pipeline.from_ops([Tokenize(path, special_tokens=special), PadTokens(12)], columns=TEXT)
        ids = reference.encode(text, add_special_tokens=special).ids
        mask = [1] * len(ids) + [0] * (12 - len(ids))
        assert made(pipeline, {"text": text}) == {"tokens": ids + [0] * (12 - len(ids)), "mask": mask}


def test_truncate_cuts_the_end_and_max_tokens_keeps_special_ones(tmp_path: Path) -> None:
    path = tokenizer(tmp_path / "a.json")
    for ops, tokens in (
        ([Tokenize(path), Truncate(3)], [2, 4, 5, -9]),
        ([Tokenize(path, max_tokens=3)], [2, 4, 3, -9]),
        ([Tokenize(path), Truncate(99), Truncate(4)], [2, 4, 5, 6]),
        ([Tokenize(path), Truncate(99, side="left"), Truncate(3, side="left")], [6, 7, 3, -9]),
    ):
        pipeline = Pipeline.from_ops([*ops, PadTokens(4, pad=-9, mask=None)], columns=TEXT)
        assert made(pipeline, {"text": "the a b c"}) == {"tokens": tokens}


def test_padding_may_lie_on_the_left() -> None:
    pipeline = Pipeline.from_ops([PadTokens(4, pad=-9, count="n", side="left")], columns={"tokens": Tokens()})
    for given, row in (([7, 8], [-9, -9, 7, 8]), ([], [-9] * 4), ([1, 2, 3, 4], [1, 2, 3, 4])):
        mask = [int(each != -9) for each in row]
        assert made(pipeline, {"tokens": np.array(given, np.int64)}) == {"tokens": row, "mask": mask, "n": len(given)}


def test_columns_of_text_are_named_and_counted_beside_images(tmp_path: Path) -> None:
    path = tokenizer(tmp_path / "a.json")
    columns: Columns = {"image": Image(), "caption": Text(), "summary": Text()}
    ops = [
        Tokenize(path, column="caption"), RandomCrop(8), Tokenize(path, column="summary", into="wanted"),
        PadTokens(3, column="wanted", mask=None, count="wanted_count"), PadTokens(4, mask="seen", count="count"),
    ]  # fmt: skip
    pipeline = Pipeline.from_ops(ops, 2, columns)
    assert [field.name for field in pipeline.fields] == [
        "image", "image_1", "tokens", "seen", "count", "wanted", "wanted_count", "index",
    ]  # fmt: skip
    rows = made(pipeline, {"image": jpeg(1), "caption": "a b", "summary": ""})
    assert {name: row for name, row in rows.items() if "image" not in name} == {
        "tokens": [2, 5, 6, 3], "seen": [1, 1, 1, 1], "count": 4, "wanted": [2, 3, 0], "wanted_count": 2,
    }  # fmt: skip
    assert len(rows["image_1"]) == 8


def test_masked_tokens_are_bert_s(tmp_path: Path) -> None:
    """15 % are chosen and labelled; of these 80 % are hidden, 10 % random and 10 % stay; special ones never."""
    count, special = 16384, [0, 2, 3]
    ops = [MaskTokens(103, 1000, special), MaskTokens(103, 1000, probability=1.0, labels="all")]
    given = np.random.default_rng(1).integers(0, 90, count)
    hidden, every = (
        made(Pipeline.from_ops([op], columns={"tokens": Tokens(count)}), {"tokens": given, "index": 0}) for op in ops
    )
    tokens, labels = np.array(hidden["tokens"]), np.array(hidden["labels"])
    chosen = labels != -100
    assert (labels[chosen] == given[chosen]).all()
    assert (tokens[~chosen] == given[~chosen]).all()
    assert not np.isin(labels, special).any()
    assert abs(chosen[~np.isin(given, special)].mean() - 0.15) < 0.01
    assert abs((tokens[chosen] == 103).mean() - 0.8) < 0.03
    assert abs((tokens[chosen] == given[chosen]).mean() - 0.1) < 0.03
    random = np.array(every["tokens"])
    random = random[(random != 103) & (random != given)]
    assert (every["all"] == given).all()
    assert (random.min(), random.max()) == pytest.approx((0, 999), abs=10)
    for columns in (TEXT, {"tokens": Tokens()}, {"tokens": Tokens(5), "labels": Label()}):
        with pytest.raises(SpecError, match=r"no column of tokens|no fixed number|the name of another"):
            Pipeline.from_ops([ops[0]], columns=columns)


def test_a_text_that_is_too_long_is_bad_and_names_the_way_out(tmp_path: Path) -> None:
    pipeline = Pipeline.from_ops([Tokenize(tokenizer(tmp_path / "a.json")), PadTokens(3)], columns=TEXT)
    with pytest.raises(BadSample, match=r"has 4 tokens, more than PadTokens\(3\): put Truncate before it"):
        made(pipeline, {"text": "a b"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "a.json is no tokenizer of Hugging Face's tokenizers"),
        (None, "cannot read the tokenizer .*a.json: No such"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(content: str | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    with pytest.raises(BadFile, match=said):
        made(Pipeline.from_ops([Tokenize(tmp_path / "a.json"), PadTokens(9)], columns=TEXT), {"text": "a"})


@pytest.mark.parametrize(
    ("package", "data"), [("tokenizers", b"{}"), ("tiktoken", b"YQ== 0\n"), ("sentencepiece", b"\n\0")]
)
def test_without_the_package_it_is_said_what_to_install(
    package: str, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    path = tmp_path / ("a.json" if package == "tokenizers" else "r50k_base")
    path.write_bytes(data)
    with pytest.raises(BadFile, match=rf"needs {package} where rows are made: pip install 'prepserver\[text\]'"):
        made(Pipeline.from_ops([Tokenize(path), PadTokens(9)], columns=TEXT), {"text": "a"})


def test_what_the_file_holds_is_part_of_the_pipeline(tmp_path: Path) -> None:
    path = tokenizer(tmp_path / "a.json")
    plain = Pipeline.from_ops([Tokenize(path), PadTokens(9)], columns=TEXT)
    assert plain.files == [str(path)]
    assert plain.code == ""
    (digest,) = opfiles.digests(plain.files)
    known = plain.with_code({(FILE, str(path)): digest})
    assert known.digest != plain.digest
    assert known.code != ""
    assert known.with_code({(FILE, str(path)): digest}) == known == known.with_code({})
    assert Pipeline.from_wire(known.to_wire(), TEXT) == known
    assert made(known, {"text": "a"})["tokens"][:3] == [2, 5, 3]
    tokenizer(path, ["a", "[CLS]", "[SEP]", "[UNK]"])
    (other,) = opfiles.digests(plain.files)
    with pytest.raises(SpecError, match=f"is not the content of {path}, which is {other}"):
        known.with_code({(FILE, str(path)): other})
    with pytest.raises(BadFile, match="has changed since the job attached: restore it, or attach again"):
        made(Pipeline.from_ops([Tokenize(path, code="0" * 64), PadTokens(9)], columns=TEXT), {"text": "a"})


def test_a_file_must_lie_in_the_roots(tmp_path: Path) -> None:
    path = tokenizer(tmp_path / "a.json")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(path)
    roots = Roots([str(tmp_path / "in")])
    for outside in (path, tmp_path / "in" / "link", tmp_path / "missing"):
        with pytest.raises(OutsideRootsError):
            opfiles.digests([str(outside)], roots)
    with pytest.raises(SourceError, match="missing of an op cannot be used: there is no such file"):
        opfiles.digests([str(tmp_path / "in" / "missing")], roots)
    assert opfiles.places([str(tmp_path / "in" / "link")]) == [str(tmp_path)]
