"""How `PackTokens` is read: the listing says which parts of texts make each row."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver import tokens
from prepserver.opfile import BadFile
from prepserver.pipeline.kinds import NO_LABEL
from prepserver.pipeline.ops.tokenize import Tokenize
from prepserver.pipeline.sources.pack_tokens import PackTokens
from prepserver.source.composed import ComposedReader, ComposedSource, records
from prepserver.source.container import Container, NumberRows
from prepserver.source.errors import SampleError, SourceError, printable
from prepserver.source.maps import IndexMap, Place
from prepserver.source.opfiles import places
from prepserver.source.packing import WINDOW, Piece, parts_of, rows_of
from prepserver.source.progress import Progress
from prepserver.source.reader import Listing
from prepserver.source.samples import Indices, Record, Source, read_regular_file

log = logging.getLogger(__name__)

_AT_ONCE = 256  # texts that are tokenised in one call while tokens are counted

_PIECE = np.dtype([("text", "<u8"), ("begin", "<u4"), ("end", "<u4")])


class PackTokensReader(ComposedReader):
    spec: PackTokens

    def index(self, cache_dir: Path, report: Callable[[int], None]) -> Listing:
        info = super().index(cache_dir, report)
        return replace(info, places=(*info.places, *places([path for _, path in self.spec.named_paths()])))

    def map(self, listing: Container) -> _Packing:
        return _Packing(listing)

    def over(self, listing: Container, opened: Sequence[Source]) -> Source:
        return _PackedTexts(self.spec, listing, opened, self.map(listing))

    def _read(self) -> bytes:
        if isinstance(self.spec.tokenize, str):
            return b""
        path = self.spec.tokenize.path
        try:
            return read_regular_file(os.fsencode(path), roots=self.roots)
        except SampleError as error:
            raise SourceError(f"the tokenizer {printable(path)} cannot be used: {error.reason}") from error

    def _sections(self, opened: Sequence[Source], progress: Progress) -> dict[str, memoryview]:
        digest = hashlib.sha256(self._content)
        texts = _texts(self.spec, digest.hexdigest())
        plan = _Plan(self.spec.length, opened[0], texts, progress)
        sizes, pieces = [np.zeros(1, np.uint64)], [np.empty(0, _PIECE)]
        for rows in plan.windows():
            sizes.append(np.array([len(row) for row in rows], np.uint64))
            pieces.append(np.array([piece[:3] for row in rows for piece in row], _PIECE))
        if plan.cut and texts.repeats_special_tokens:
            log.warning(
                "%s: %d texts are longer than a row and were cut. Each part has the tokenizer's special tokens, also "
                "in the middle of a text. Tokenize(..., special_tokens=False, begin=, end=) adds one at each end only",
                self.spec.sources[0].location, plan.cut,
            )  # fmt: skip
        begins = np.cumsum(np.concatenate(sizes))
        if not begins[-1]:
            raise SourceError(f"{self.spec.sources[0].location} has no tokens: all of its texts are empty")
        return {
            # Stored beside the plan, because another tokenizer may cut the texts alike.
            "tokenizer": memoryview(digest.digest()),
            "begins": begins.view(np.uint8).data,
            "pieces": np.concatenate(pieces).view(np.uint8).data,
        }


class _Texts:
    """Texts, which a tokenizer turns into tokens."""

    labels = ""

    def __init__(self, op: Tokenize, digest: str) -> None:
        self.column, self._op = op.column, op
        try:
            self._tokenizer = tokens.tokenizer(op.replaced(code=digest))
        except BadFile as error:
            raise SourceError(str(error)) from error

    def tokens(self, texts: Sequence[Any]) -> Sequence[tokens.Tokens]:
        """Return the tokens of each text; raises `tokens.BadText`."""
        return self._tokenizer(texts)

    @property
    def repeats_special_tokens(self) -> bool:
        """Whether each part of a text that is cut gets special tokens that belong to the whole."""
        op = self._op
        return len(self._tokenizer([""])[0]) > (op.begin is not None) + (op.end is not None)

    def own(self, begin: int, end: int, whole: int) -> slice:
        """Return which tokens of a part are kept: the begin and the end token belong to the whole text only."""
        op = self._op
        return slice(int(begin > 0 and op.begin is not None), -1 if end < whole and op.end is not None else None)

    def parts(self, index: int, text: Any, count: int, length: int) -> list[Piece]:
        """Return the parts of a text that is longer than a row; raises `ValueError` or `tokens.BadText`."""
        parts = list(parts_of(index, text, count, length, lambda part: len(self._tokenizer([part])[0])))
        return [
            part._replace(tokens=len(range(part.tokens)[self.own(part.begin, part.end, len(text))])) for part in parts
        ]


class _Lists:
    """Tokens that are there already; as `_Texts`, with numbers for characters, and perhaps with `labels` for them."""

    repeats_special_tokens = False

    def __init__(self, column: str, labels: str) -> None:
        self.column, self.labels = column, labels

    def tokens(self, texts: Sequence[Any]) -> Sequence[tokens.Tokens]:
        return texts

    def own(self, begin: int, end: int, whole: int) -> slice:
        return slice(None)

    def parts(self, index: int, text: Any, count: int, length: int) -> list[Piece]:
        begins = range(0, count, length)
        return [Piece(index, begin, min(begin + length, count), min(length, count - begin)) for begin in begins]


def _mismatch(record: Record, texts: _Texts | _Lists) -> str:
    """Return why the labels of a text do not fit its tokens; empty if they do."""
    if not texts.labels or (n := len(record[texts.labels])) == (count := len(record[texts.column])):
        return ""
    return f"{n} labels for {count} {texts.column}"


def _texts(spec: PackTokens, digest: str) -> _Texts | _Lists:
    """Return what the source holds; raises `SourceError` if the tokenizer's file, of this digest, cannot be used."""
    if isinstance(spec.tokenize, Tokenize):
        return _Texts(spec.tokenize, digest)
    return _Lists(spec.tokenize, "labels" if spec.has_labels else "")


class _Packing(IndexMap):
    """Leads from a row to its first text."""

    def __init__(self, listing: Container) -> None:
        self._begins: NumberRows = listing.rows("begins", "QQ", 8)
        self._listing, self.count = listing, len(self._begins)

    def at(self, index: int) -> Place:
        return 0, int(self.pieces(index)[0]["text"])

    def pieces(self, index: int) -> npt.NDArray[Any]:
        """Return the pieces of a row; two system calls."""
        begin, end = self._begins[index]
        size = _PIECE.itemsize
        return np.frombuffer(self._listing.piece("pieces", size * begin, size * end), _PIECE)


class _Plan:
    """The packing of a source's texts."""

    def __init__(self, length: int, source: Source, texts: _Texts | _Lists, progress: Progress) -> None:
        self._length, self._source, self._texts, self._progress = length, source, texts, progress
        self.cut = 0  # texts so far that are longer than a row

    def windows(self) -> Iterator[list[list[Piece]]]:
        for start in range(0, len(self._source), WINDOW):
            stop = min(start + WINDOW, len(self._source))
            pieces = [piece for first in range(start, stop, _AT_ONCE) for piece in self._counted(first, stop)]
            # A text that cannot be read spoils only a row of its own.
            alone = [[piece] for piece in pieces if not piece.end]
            yield rows_of([piece for piece in pieces if piece.tokens], self._length) + alone

    def _counted(self, first: int, stop: int) -> list[Piece]:
        texts: dict[int, Any] = {}
        found: list[Piece] = []
        after = min(first + _AT_ONCE, stop)
        for index, record in records(self._source, first, after):
            if record is None or _mismatch(record, self._texts):
                found.append(Piece(index, 0, 0, 0))
            elif len(text := record[self._texts.column]):
                texts[index] = text
        try:
            counts = [len(each) for each in self._texts.tokens(list(texts.values()))]
        except tokens.BadText:
            counts = [self._count_or_none(text) for text in texts.values()]
        for (index, text), count in zip(texts.items(), counts, strict=True):
            found += self._pieces(index, text, count)
        self._progress.found(after)
        return found

    def _pieces(self, index: int, text: Any, count: int) -> list[Piece]:
        if count < 0:
            return [Piece(index, 0, 0, 0)]
        if count <= self._length:
            return [Piece(index, 0, len(text), count)]
        self.cut += 1
        try:
            return self._texts.parts(index, text, count, self._length)
        except (ValueError, tokens.BadText):  # a part that begins inside a word may be unknown to the tokenizer
            return [Piece(index, 0, 0, 0)]

    def _count_or_none(self, text: Any) -> int:
        try:
            return len(self._texts.tokens([text])[0])
        except tokens.BadText:
            return -1


class _PackedTexts(ComposedSource):
    """A `Source` of rows of tokens."""

    def __init__(self, spec: PackTokens, listing: Container, opened: Sequence[Source], packing: _Packing) -> None:
        super().__init__(spec, listing, opened, packing)
        self.computes = True
        self._spec, self._source, self._packing = spec, opened[0], packing
        self._texts = _texts(spec, bytes(listing.section("tokenizer")).hex())
        self._kinds = {name: kind.stored() for name, kind in spec.columns.items()}

    def read(self, index: int) -> Record:
        into = {name: np.empty((1, *shape), dtype) for name, (shape, dtype) in self._kinds.items()}
        self.read_block([index], into)
        return {name: rows[0] for name, rows in into.items()}

    read_columns = Source.read_columns  # of a row, which is no sample of the source

    def read_block(self, indices: Indices, into: Mapping[str, npt.NDArray[Any]]) -> bool:
        """As `Source.read_block`: the texts of all rows are tokenised in one call."""
        rows = [self._packing.pieces(index).tolist() for index in indices]
        texts: list[Any] = []
        labels: list[tokens.Tokens] = []
        wholes: list[int] = []
        for row in rows:
            for number, begin, end in row:
                record = self._record(number)
                text = record[self._texts.column]
                if not end:
                    raise self._unlisted(text, number)
                wholes.append(len(text))
                texts.append(text[begin:end])
                if self._texts.labels:
                    labels.append(record[self._texts.labels][begin:end])
        try:
            made = self._texts.tokens(texts)
        except tokens.BadText as error:
            raise SampleError(f"{self._texts.column}: {error}") from error
        first = 0
        for place, row in enumerate(rows):
            here = slice(first, first := first + len(row))
            parts = [
                each[self._texts.own(begin, end, whole)]
                for (_, begin, end), each, whole in zip(row, made[here], wholes[here], strict=True)
            ]
            self._lay(parts, labels[here] or parts, {name: array[place] for name, array in into.items()})
        return True

    def _record(self, number: int) -> Record:
        try:
            record = self._source.read(number)
        except SampleError as error:
            raise SampleError(f"its text {self._source.name(number)}: {error.reason}") from error
        if reason := _mismatch(record, self._texts):
            raise SampleError(f"its text {self._source.name(number)}: {reason}")
        return record

    def _unlisted(self, text: Any, number: int) -> SampleError:
        name = self._source.name(number)
        try:
            self._texts.tokens([text])
        except tokens.BadText as error:
            return SampleError(f"its text {name}: {error}")
        return SampleError(
            f"its text {name} could not be read or split when tokens were counted: touch its file, and attach again"
        )

    def _lay(
        self, parts: list[tokens.Tokens], labelled: list[tokens.Tokens], row: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        spec = self._spec
        found = np.concatenate(parts)
        counts = np.array([len(part) for part in parts])
        ends, n = np.cumsum(counts), len(found)
        if n > spec.length:
            raise SampleError(f"its texts have {n} tokens now, more than the {spec.length} of a row: attach again")
        if spec.into in row:
            row[spec.into][:n] = found
            row[spec.into][n:] = spec.pad
        if "positions" in row:
            row["positions"][:n] = np.arange(n) - np.repeat(ends - counts, counts)
            row["positions"][n:] = 0
        if "segments" in row:
            row["segments"][:n] = np.repeat(np.arange(1, len(parts) + 1), counts)
            row["segments"][n:] = 0
        if "labels" in row:
            labels = row["labels"]
            labels[: n - 1] = np.concatenate(labelled)[1:]
            labels[ends[counts > 0] - 1] = NO_LABEL
            labels[n:] = NO_LABEL

    def prefetch(self, indices: Sequence[int]) -> None:
        self._source.prefetch([number for index in indices for number in self._packing.pieces(index)["text"].tolist()])

    def stamp(self, index: int) -> int:
        return hash(tuple(self._source.stamp(number) for number in self._packing.pieces(index)["text"].tolist()))

    def label(self, index: int) -> int:
        return 0

    def name(self, index: int) -> str:
        more = len(self._packing.pieces(index)) - 1
        return super().name(index) + (f" and {more} more" if more else "")
