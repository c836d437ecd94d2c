"""Rows that need no decoding are copied many at once: the same rows as one by one, and the same verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.order import make_order
from prepserver.pipeline import kinds
from prepserver.pipeline.ops import CenterCrop
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import images
from prepserver.pipeline.shard import Shard
from prepserver.source import Record, SampleError, Source
from prepserver.worker import fill as filler
from prepserver.worker.fill import fill
from prepserver.worker.streams import Stream
from tests.support.tiny_images import OwnLane, jpeg, nothing

N = 23
COLUMNS = {"x": kinds.Array((3,), "int16"), "label": kinds.Label()}


class Numbers(Source):
    """Rows in memory. Sample k is (k, k, k) with label 2 k; those in `bad` cannot be read.

    Attributes:
        blocks: Samples that were read at once, in order.
        reads: How often each was read alone.
    """

    def __init__(self, bad: frozenset[int] = frozenset(), in_blocks: bool = True) -> None:
        self._bad, self._in_blocks = bad, in_blocks
        self.blocks: list[list[int]] = []
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return N

    def read(self, index: int) -> Record:
        self.reads[index] += 1
        if index in self._bad:
            raise SampleError("lost")
        return {"x": np.full(3, index, np.int16), "label": 2 * index, "image": jpeg(index)}

    def read_block(self, indices: Any, into: Mapping[str, np.ndarray[Any, Any]]) -> bool:
        self.blocks.append(list(indices))
        if not self._in_blocks:
            return False
        if not self._bad.isdisjoint(indices):
            raise SampleError("one is lost")
        into["x"][...] = np.asarray(indices)[:, None]
        into["label"][...] = 2 * np.asarray(indices)
        return True

    def label(self, index: int) -> int:
        return 2 * index

    def name(self, index: int) -> str:
        return f"sample {index}"


def lane(rows: int = 32) -> OwnLane:
    return OwnLane(Pipeline.from_ops([], columns=COLUMNS), rows)


def stream_of(source: Source, quarantined: frozenset[int] = frozenset(), shard: Shard | None = None) -> Stream:
    order = make_order("full", N, 3, shard) if shard else make_order("full", N, 3)
    return Stream(source, order, 3, quarantined)


@settings(max_examples=60)
@given(
    st.integers(0, 200),
    st.integers(1, 90),
    st.frozensets(st.integers(0, N - 1), max_size=6),
    st.frozensets(st.integers(0, N - 1), max_size=2),
    st.tuples(st.integers(90, 100), st.integers(90, 100)),
    st.booleans(),
)
def test_rows_and_verdicts_are_those_of_one_by_one(
    start: int, count: int, bad: frozenset[int], apart: frozenset[int], rings: tuple[int, int], is_shard: bool
) -> None:
    shard = Shard(2, 1) if is_shard else None
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filler, "BLOCK_ROWS", 16)
        for in_blocks in (False, True):
            lanes = [lane(rows) for rows in rings]
            targets = [lanes[0].lane, lanes[1].lane._replace(quarantined=set(apart))]
            made = fill(stream_of(Numbers(bad, in_blocks), frozenset({7}), shard), targets, start, count, nothing)
            found.append((made.bad, *(each.rows(start, start + count) for each in lanes)))
    assert found[0] == found[1]


@settings(max_examples=30)
@given(st.integers(0, 200), st.lists(st.integers(1, 30), min_size=1, max_size=5), st.sets(st.integers(0, N - 1)))
def test_rows_do_not_depend_on_how_positions_become_tasks(start: int, cuts: list[int], bad: set[int]) -> None:
    stream = stream_of(Numbers(frozenset(bad)))
    whole, cut = lane(150), lane(150)
    reported = fill(stream, [whole.lane], start, sum(cuts), nothing).bad
    again, at = [], start
    for length in cuts:
        again += fill(stream, [cut.lane], at, length, nothing).bad
        at += length
    assert whole.rows(start, at) == cut.rows(start, at)
    assert reported == again


def test_a_run_is_read_at_once_and_named_by_its_first() -> None:
    source, rows = Numbers(), lane()
    marks: list[tuple[int, int]] = []
    stream = stream_of(source)
    order = stream.order.indices(20, 12)
    made = fill(stream, [rows.lane], 20, 12, lambda *at: marks.append(at))
    assert (source.blocks, marks, made.bad) == ([order], [(20, order[0])], [])
    assert not source.reads
    assert [index for _, _, index in rows.rows(20, 32)] == order
    fill(stream, [rows.lane], 28, 8, nothing)  # the ring ends after 4
    assert [len(each) for each in source.blocks[1:]] == [4, 4]


def test_a_run_with_a_bad_sample_is_read_one_by_one() -> None:
    source = Numbers()
    order = stream_of(source).order.indices(0, 8)
    source = Numbers(frozenset(order[3:4]))
    made = fill(stream_of(source), [lane().lane], 0, 8, nothing)
    assert [(row.position, row.index, row.reason) for row in made.bad] == [(3, order[3], f"sample {order[3]}: lost")]
    assert source.reads.keys() >= set(order)


def test_a_source_that_has_no_blocks_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filler, "BLOCK_ROWS", 4)
    source = Numbers(in_blocks=False)
    fill(stream_of(source), [lane().lane], 0, 20, nothing)
    assert len(source.blocks) == 1
    assert source.reads.total() == 20


def test_a_pipeline_that_decodes_reads_one_by_one() -> None:
    source = Numbers()
    decoding = OwnLane(Pipeline.from_ops([CenterCrop(8)], columns=images()), 32)
    fill(stream_of(source), [lane().lane, decoding.lane], 0, 8, nothing)
    assert source.blocks == []


def test_a_quarantine_that_arrives_with_the_mark_counts() -> None:
    """The mark looks for messages: a sample that has just killed another worker may be one of this run."""
    source = Numbers()
    stream = stream_of(source)
    stream.quarantined = set()

    def mark(_position: int, _index: int) -> None:
        assert isinstance(stream.quarantined, set)
        stream.quarantined.add(stream.order.indices(5, 1)[0])

    made = fill(stream, [lane().lane], 0, 8, mark)
    assert source.blocks == []
    assert [row.position for row in made.bad] == [5]
    assert "quarantined" in made.bad[0].reason


def test_a_run_that_takes_too_much_memory_is_read_one_by_one() -> None:
    class Full(Numbers):
        def read_block(self, indices: Any, into: Mapping[str, np.ndarray[Any, Any]]) -> bool:
            raise MemoryError

    source = Full()
    assert fill(stream_of(source), [lane().lane], 0, 8, nothing).bad == []
    assert source.reads.total() == 8
