from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.opfile import BadFile
from prepserver.order import NO_SAMPLE, make_order
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops import CenterCrop, ColorJitter, Decode, RandomCrop, RandomResizedCrop, Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.shard import Shard
from prepserver.pipeline.sources import Csv
from prepserver.source import Record, SampleError, Source, build_index, open_source
from prepserver.transform import DECODING, BadSample, Plan, RowMaker, SampleKey
from prepserver.transform.objects import Objects
from prepserver.transform.rowmaker import ImageColumn
from prepserver.transform.stage import Array
from prepserver.worker.fill import REPLACEMENTS, LaneError, describe, fill
from prepserver.worker.streams import Lane, Stream
from tests.support.images import make_rows
from tests.support.tiny_images import OwnLane, jpeg, nothing, open_stream, photo_tree, tiny_pipeline

N = 12


class Memory(Source):
    """A source in memory whose `read` a test can make fail, and which counts its calls."""

    def __init__(self, n: int, trouble: Callable[[int, int], None] = nothing, name: str = "{}.jpg") -> None:
        self._n = n
        self._trouble = trouble
        self._name = name
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return self._n

    def read(self, index: int) -> Record:
        self.reads[index] += 1
        self._trouble(index, self.reads[index])
        return {"image": jpeg(index), "label": self.label(index)}

    def label(self, index: int) -> int:
        return index % 3

    def name(self, index: int) -> str:
        return self._name.format(index)

    def classes(self) -> list[str]:
        return []


def stream_of(source: Source, quarantined: frozenset[int] = frozenset()) -> Stream:
    return Stream(source, make_order("none", len(source), 0), 3, quarantined)


def bad_at(*indices: int) -> Callable[[int, int], None]:
    def trouble(index: int, _: int) -> None:
        if index in indices:
            raise SampleError("the file is empty")

    return trouble


def system_call_fails(number: int, times: int) -> Callable[[int, int], None]:
    """The first `times` reads of sample 2 fail as a SampleError over the system call's own error."""

    def trouble(index: int, call: int) -> None:
        if index == 2 and call <= times:
            raise SampleError("cannot read the file") from OSError(number, os.strerror(number))

    return trouble


def expected(index: int, pass_: int, pipeline: Pipeline, seed: int = 3) -> bytes:
    out = np.empty(tuple(pipeline.row.shape), pipeline.row.dtype)
    make_rows(jpeg(index), SampleKey(seed, pass_, index), [(RowMaker(pipeline), out)])
    return out.tobytes()


def test_each_row_holds_its_sample_with_its_label_and_index(tmp_path: Path) -> None:
    stream = open_stream(photo_tree(tmp_path / "data", N), tmp_path / "cache", "full")
    lane = OwnLane(tiny_pipeline(), N)
    made = fill(stream, [lane.lane], 0, N, nothing)
    order = stream.order.indices(0, N)
    assert sorted(order) == list(range(N))
    assert lane.rows(0, N) == [(expected(i, 0, lane.pipeline), int(i >= N // 2), i) for i in order]
    assert made.bad == []
    assert made.read_ns > 0
    assert made.make_ns > 0


def test_each_pass_draws_new_augmentations() -> None:
    lane = OwnLane(tiny_pipeline(), 2 * N)
    fill(stream_of(Memory(N)), [lane.lane], 0, 2 * N, nothing)
    assert lane.rows(N, 2 * N) == [(expected(i, 1, lane.pipeline), i % 3, i) for i in range(N)]
    assert lane.rows(0, N) != lane.rows(N, 2 * N)


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 2**62 - 100),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.sets(st.integers(0, N - 1), max_size=N),
)
def test_bytes_do_not_depend_on_how_positions_become_tasks(start: int, cuts: list[int], bad: set[int]) -> None:
    stream = stream_of(Memory(N, bad_at(*bad)))
    whole, cut = OwnLane(tiny_pipeline(8), 64), OwnLane(tiny_pipeline(8), 64)
    count = sum(cuts)
    reported = fill(stream, [whole.lane], start, count, nothing).bad
    again, at = [], start
    for length in cuts:
        again += fill(stream, [cut.lane], at, length, nothing).bad
        at += length
    assert whole.rows(start, start + count) == cut.rows(start, start + count)
    assert reported == again


def test_a_bad_sample_is_replaced_by_the_next_good_and_reported(tmp_path: Path) -> None:
    spec = photo_tree(tmp_path / "data", N, broken=frozenset({4, 5}))
    stream = open_stream(spec, tmp_path / "cache")
    lane = OwnLane(tiny_pipeline(), N)
    made = fill(stream, [lane.lane], 0, N, nothing)
    for p in (4, 5):
        assert lane.rows(p, p + 1) == [(expected(6, 0, lane.pipeline), 1, 6)]
    assert [(b.position, b.index, b.places) for b in made.bad] == [(4, 4, (0,)), (5, 5, (0,))]
    assert made.bad[0].reason.startswith("cats/0004.jpg: ")
    assert len(made.bad[0].reason) > len("cats/0004.jpg: ")


def test_a_broken_image_that_a_table_names_is_named_itself(tmp_path: Path) -> None:
    photo_tree(tmp_path, 2, broken=frozenset({1}))
    (tmp_path / "a.csv").write_text("photo\ncats/0000.jpg\ndogs/0001.jpg\n")
    spec = Csv(tmp_path / "a.csv", {"photo": Image()})
    source = open_source(spec, build_index(spec, tmp_path / "cache").path)
    lane = OwnLane(Pipeline.from_ops([Resize((16, 16))], columns=spec.columns), 2)
    (bad,) = fill(stream_of(source), [lane.lane], 0, 2, nothing).bad
    assert bad.reason.startswith(f"{tmp_path}/a.csv, line 3: not an image in one of the formats JPEG")
    assert bad.reason.endswith(f"(photo {tmp_path}/dogs/0001.jpg)")


def test_the_last_samples_replacement_is_the_first_one() -> None:
    lane = OwnLane(tiny_pipeline(), N)
    fill(stream_of(Memory(N, bad_at(N - 1))), [lane.lane], N - 1, 1, nothing)
    assert lane.rows(N - 1, N) == [(expected(0, 0, lane.pipeline), 0, 0)]


@pytest.mark.parametrize("n", [1, 3, 20])
def test_a_row_for_which_no_sample_is_found_is_zeros(n: int) -> None:
    source = Memory(n, bad_at(*range(n)))
    lane = OwnLane(tiny_pipeline(), 4)
    lane.ring.row("image", 0)[...] = 7
    made = fill(stream_of(source), [lane.lane], 0, 1, nothing)
    assert lane.rows(0, 1) == [(bytes(16 * 16 * 3), -1, -1)]
    assert [b.index for b in made.bad] == [0]
    assert sorted(source.reads) == list(range(min(n, REPLACEMENTS + 1)))


def test_a_quarantined_sample_is_bad_without_being_read() -> None:
    source = Memory(N)
    lane = OwnLane(tiny_pipeline(), N)
    made = fill(stream_of(source, frozenset({4})), [lane.lane], 0, N, nothing)
    assert source.reads[4] == 0
    assert lane.rows(4, 5) == [(expected(5, 0, lane.pipeline), 2, 5)]
    assert made.bad[0].reason.startswith("4.jpg: quarantined")


def test_what_one_lane_refuses_leaves_the_other_lanes_rows() -> None:
    picky = Pipeline.from_ops([Decode(max_pixels=100), RandomResizedCrop(16)])
    lanes = [OwnLane(tiny_pipeline(), N), OwnLane(picky, N), OwnLane(Pipeline.from_ops([RandomCrop(48)]), N)]
    alone = OwnLane(lanes[0].pipeline, N)
    made = fill(stream_of(Memory(N)), [lane.lane for lane in lanes], 0, N, nothing)
    fill(stream_of(Memory(N)), [alone.lane], 0, N, nothing)
    assert lanes[0].rows(0, N) == alone.rows(0, N)
    assert [row[1:] for row in lanes[1].rows(0, N)] == [(-1, -1)] * N
    assert [row[1:] for row in lanes[2].rows(0, N)] == [(-1, -1)] * N  # 40 rows give no crop of 48
    assert sorted((b.position, b.places) for b in made.bad) == [(p, (t,)) for p in range(N) for t in (1, 2)]
    assert len({b.reason for b in made.bad if b.position == 0}) == 2


def test_a_lane_of_views_shares_one_sample_in_each_row() -> None:
    """It shares that sample with the other lanes, too."""
    source = Memory(N)
    one, pair = OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(views=2), N)
    fill(stream_of(source), [one.lane, pair.lane], 0, N, nothing)
    assert source.reads == Counter(range(N))  # both lanes, all views: read once
    size = 16 * 16 * 3
    views = [(images[:size], images[size:], label, index) for images, label, index in pair.rows(0, N)]
    assert [(first, label, index) for first, _, label, index in views] == one.rows(0, N)
    assert all(first != second for first, second, _, _ in views)
    alone = OwnLane(pair.pipeline, N)
    fill(stream_of(Memory(N)), [alone.lane], 0, N, nothing)
    assert alone.rows(0, N) == pair.rows(0, N)


class _RefusesOne(RowMaker):
    """Refuses sample 4."""

    def plan(
        self, height: int, width: int, key: SampleKey, objects: Objects | None = None, end: int | None = None,
        column: ImageColumn | None = None,
    ) -> Plan:  # fmt: skip
        if key.index == 4:
            raise BadSample("not this one")
        return super().plan(height, width, key, objects, end)


class _CannotRender(RowMaker):
    """Refuses all samples where no row is named."""

    def render(self, plan: Plan, image: Array, out: Array, column: ImageColumn | None = None) -> None:
        raise BadSample("not in pixels")


def test_an_error_that_names_no_row_makes_none() -> None:
    lane = OwnLane(tiny_pipeline(views=2), 1)
    makers = [_CannotRender(lane.pipeline, view) for view in range(2)]
    made = fill(stream_of(Memory(1)), [lane.lane._replace(makers=makers)], 0, 1, nothing)
    assert [(b.index, b.reason, b.places) for b in made.bad] == [(0, "0.jpg: not in pixels", (0,))]
    assert lane.rows(0, 1) == [(bytes(2 * 16 * 16 * 3), -1, -1)]


@pytest.mark.parametrize("refusing", [0, 1])
def test_where_one_view_fails_all_are_those_of_the_replacement(refusing: int) -> None:
    lane, other = OwnLane(tiny_pipeline(views=2), N), OwnLane(tiny_pipeline(), N)
    makers = list(lane.lane.makers)
    makers[refusing] = _RefusesOne(lane.pipeline, refusing)
    made = fill(stream_of(Memory(N)), [other.lane, lane.lane._replace(makers=makers)], 0, N, nothing)
    assert [(b.position, b.index, b.reason, b.places) for b in made.bad] == [(4, 4, "4.jpg: not this one", (1,))]
    assert lane.rows(4, 5) == lane.rows(5, 6)
    assert [index for _, _, index in other.rows(0, N)] == list(range(N))


def test_a_row_without_a_sample_has_no_view_of_one() -> None:
    lane = OwnLane(tiny_pipeline(views=3), 4)
    for field in lane.layout.dense:
        lane.ring.run(field.name, 0, 4)[...] = 7
    fill(stream_of(Memory(1, bad_at(0))), [lane.lane], 0, 1, nothing)
    assert lane.rows(0, 1) == [(bytes(3 * 16 * 16 * 3), -1, -1)]


def test_all_lanes_that_refuse_for_one_reason_share_a_report() -> None:
    lanes = [OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(8), N)]
    made = fill(stream_of(Memory(N, bad_at(3))), [lane.lane for lane in lanes], 0, N, nothing)
    assert [(b.position, b.places) for b in made.bad] == [(3, (0, 1))]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_read_that_storage_fails_once_is_tried_again(number: int) -> None:
    source = Memory(N, system_call_fails(number, times=2))
    lane = OwnLane(tiny_pipeline(), N)
    assert fill(stream_of(source), [lane.lane], 0, N, nothing).bad == []
    assert source.reads[2] == 3


@pytest.mark.parametrize(("number", "reads"), [(errno.EIO, 3), (errno.ENOENT, 1)])
def test_a_read_that_fails_for_good_makes_the_sample_bad(number: int, reads: int) -> None:
    source = Memory(N, system_call_fails(number, times=99))
    lane = OwnLane(tiny_pipeline(), N)
    made = fill(stream_of(source), [lane.lane], 2, 1, nothing)
    assert [b.reason for b in made.bad] == ["2.jpg: cannot read the file"]
    assert source.reads[2] == reads


def test_a_part_that_storage_fails_once_is_tried_again() -> None:
    """As a mask beside an image, a file that a table names, or a text of a packed row."""
    fails = system_call_fails(errno.ESTALE, times=2)

    def trouble(index: int, call: int) -> None:
        try:
            fails(index, call)
        except SampleError as error:
            raise SampleError(f"its mask: {error.reason}") from error

    source = Memory(N, trouble)
    assert fill(stream_of(source), [OwnLane(tiny_pipeline(), N).lane], 0, N, nothing).bad == []
    assert source.reads[2] == 3


def test_a_process_out_of_descriptors_fails_its_task_only() -> None:
    """The sample is not bad for it."""

    def trouble(_index: int, _call: int) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        fill(stream_of(Memory(N, trouble)), [OwnLane(tiny_pipeline(), N).lane], 0, 1, nothing)


def test_every_sample_is_marked_before_it_is_touched() -> None:
    marks: list[tuple[int, int]] = []

    def trouble(index: int, _call: int) -> None:
        assert marks[-1][1] == index
        bad_at(1, 2)(index, 0)

    fill(stream_of(Memory(N, trouble)), [OwnLane(tiny_pipeline(), N).lane], 0, 3, lambda *m: marks.append(m))
    assert marks == [(0, 0), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3)]


@pytest.mark.parametrize("name", ["d/" * 2000 + "x.jpg", os.fsdecode(b"caf\xe9.jpg")])
def test_a_reason_can_be_sent_whatever_the_files_name_is(name: str) -> None:
    source = Memory(N, bad_at(0), name)
    reason = fill(stream_of(source), [OwnLane(tiny_pipeline(), N).lane], 0, 1, nothing).bad[0].reason
    assert len(reason.encode()) <= 512
    assert reason.endswith(".jpg: the file is empty")


def test_a_long_reason_is_whole_beside_a_short_name() -> None:
    why = "x" * 400

    def trouble(_index: int, _call: int) -> None:
        raise SampleError(why)

    source = Memory(N, trouble)
    assert fill(stream_of(source), [OwnLane(tiny_pipeline(), N).lane], 0, 1, nothing).bad[0].reason == f"0.jpg: {why}"


class _Trips(RowMaker):
    """Meets an error that nobody foresaw."""

    def __init__(self, pipeline: Pipeline, at: Container[int], error: Exception) -> None:
        super().__init__(pipeline)
        self.whole = None
        self._at = at
        self._error = error

    def plan(
        self, height: int, width: int, key: SampleKey, objects: Objects | None = None, end: int | None = None,
        column: ImageColumn | None = None,
    ) -> Plan:  # fmt: skip
        if key.index in self._at:
            raise self._error
        return super().plan(height, width, key, objects, end)


def _tripping(at: Container[int], error: Exception) -> tuple[OwnLane, Lane]:
    lane = OwnLane(tiny_pipeline(8), N)
    return lane, lane.lane._replace(makers=[_Trips(lane.pipeline, at, error)])


def test_the_cpu_time_of_each_of_several_lanes_is_counted() -> None:
    slow_pipeline = Pipeline.from_ops([Resize((500, 500)), ColorJitter(0.4), CenterCrop(8)])
    quick, slow, alone = OwnLane(tiny_pipeline(), N), OwnLane(slow_pipeline, N), OwnLane(slow_pipeline, N)
    began_ns = time.thread_time_ns()
    made = fill(stream_of(Memory(N)), [quick.lane, slow.lane], 0, N, nothing)
    took_ns = time.thread_time_ns() - began_ns
    of_quick, of_slow = made.lanes_ns
    assert 0 < of_quick < of_slow
    assert 0 < made.shared_ns <= took_ns - of_quick - of_slow
    made = fill(stream_of(Memory(N)), [alone.lane], 0, N, nothing)
    assert (made.shared_ns, made.lanes_ns) == (0, ())
    assert slow.rows(0, N) == alone.rows(0, N)


@pytest.mark.parametrize("alone", [False, True])
def test_an_unforeseen_error_in_one_lane_is_bad_in_that_one_only(alone: bool) -> None:
    lane, target = _tripping({4, 7}, RuntimeError("INTERNAL\nASSERT"))
    other, twin = OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(), N)
    targets = [target] if alone else [other.lane, target]
    made = fill(stream_of(Memory(N)), targets, 0, N, nothing)
    where = (len(targets) - 1,)
    reason = "jpg: RuntimeError: INTERNAL ASSERT"
    assert [(b.index, b.reason, b.places) for b in made.bad] == [(4, f"4.{reason}", where), (7, f"7.{reason}", where)]
    assert [index for _, _, index in lane.rows(0, N)] == [0, 1, 2, 3, 5, 5, 6, 8, 8, 9, 10, 11]
    if not alone:
        fill(stream_of(Memory(N)), [twin.lane], 0, N, nothing)
        assert other.rows(0, N) == twin.rows(0, N)


def test_a_lane_with_an_error_at_every_sample_fails_with_it() -> None:
    _, target = _tripping(range(N), RuntimeError("num_channels"))
    other = OwnLane(tiny_pipeline(), N)
    with pytest.raises(
        LaneError, match=r"at 9 samples in a row and 3 others, first at 3\.jpg: RuntimeError: num"
    ) as raised:
        fill(stream_of(Memory(N)), [other.lane, target], 3, 1, nothing)
    assert raised.value.place == 1


@pytest.mark.parametrize("good", [0, 9, 13, 19])
def test_a_long_run_of_errors_fails_no_lane_if_others_are_good(good: int) -> None:
    """As of a damaged series of scans. One good sample far away is enough, and it is not put into the row."""
    many = 20
    lane, target = _tripping(set(range(many)) - {good}, RuntimeError("no such series"))
    indices = [index for index in range(many) if index != good and not 1 <= (good - index) % many <= REPLACEMENTS]
    for index in indices:
        if good in {(index + 9 + k * (many - 9) // 5) % many for k in range(1, 5)}:
            made = fill(stream_of(Memory(many)), [target], index, 1, nothing)
            assert [b.reason for b in made.bad] == [f"{index}.jpg: RuntimeError: no such series"]
            assert lane.rows(index, index + 1) == [(bytes(8 * 8 * 3), NO_SAMPLE, NO_SAMPLE)]
        else:
            with pytest.raises(LaneError, match="9 samples in a row and 4 others"):
                fill(stream_of(Memory(many)), [target], index, 1, nothing)


def test_samples_bad_or_unforeseen_in_turn_fail_no_lane() -> None:
    lane, target = _tripping(range(0, N, 2), KeyError("x"))
    made = fill(stream_of(Memory(N, bad_at(*range(1, N, 2)))), [target], 0, 1, nothing)
    assert [b.reason for b in made.bad] == ["0.jpg: KeyError: 'x'"]
    assert lane.rows(0, 1) == [(bytes(8 * 8 * 3), NO_SAMPLE, NO_SAMPLE)]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_want_of_memory_fails_the_lane_and_makes_no_sample_bad(error: Exception) -> None:
    _, target = _tripping({5}, error)
    other = OwnLane(tiny_pipeline(), N)
    with pytest.raises(LaneError, match=r"at 5\.jpg: ") as raised:
        fill(stream_of(Memory(N)), [other.lane, target], 0, N, nothing)
    assert raised.value.place == 1


def test_a_sample_unreadable_for_an_unforeseen_reason_is_bad() -> None:
    def trouble(index: int, _call: int) -> None:
        if index == 4:
            raise IndexError("beyond")

    made = fill(stream_of(Memory(N, trouble)), [OwnLane(tiny_pipeline(), N).lane], 0, N, nothing)
    assert [b.reason for b in made.bad] == ["4.jpg: IndexError: beyond"]


def test_a_sample_quarantined_in_one_lane_is_read_for_others() -> None:
    source = Memory(N)
    lanes = [OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(8), N)]
    targets = [lanes[0].lane, lanes[1].lane._replace(quarantined={4})]
    made = fill(stream_of(source), targets, 0, N, nothing)
    assert [(b.index, b.places) for b in made.bad] == [(4, (1,))]
    assert made.bad[0].reason.startswith("4.jpg: quarantined for this pipeline")
    assert [index for _, _, index in lanes[0].rows(3, 6)] == [3, 4, 5]
    assert [index for _, _, index in lanes[1].rows(3, 6)] == [3, 5, 5]


def test_each_lane_is_named_while_its_row_is_rendered() -> None:
    lanes = [OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(8, views=2), N)]
    steps: list[Any] = []
    fill(
        stream_of(Memory(N)), [lane.lane for lane in lanes], 0, 2,
        lambda position, index: steps.append((position, index)), steps.append,
    )  # fmt: skip
    assert [step for step in steps if step != DECODING] == [(0, 0), 0, 1, 1, (1, 1), 0, 1, 1]
    assert steps[-1] == DECODING


def test_an_error_names_the_op_that_met_it() -> None:
    maker = RowMaker(Pipeline.from_ops([ColorJitter(0.4), RandomCrop(8)]))
    key = SampleKey(0, 0, 0)
    no_pixels: Any = None
    with pytest.raises((TypeError, AttributeError)) as raised:
        maker.render(maker.plan(40, 40, key), no_pixels, np.zeros((8, 8, 3), np.uint8))
    assert raised.value.__notes__ == ["in ColorJitter"]


def test_a_shard_has_the_rows_of_the_whole_even_if_replaced() -> None:
    source = Memory(7, bad_at(5, 6))
    whole, part = OwnLane(tiny_pipeline(8), 14), OwnLane(tiny_pipeline(8), 8)
    for p in range(8):
        part.ring.row("image", p)[...] = 7
    fill(stream_of(source), [whole.lane], 0, 14, nothing)
    shard = Stream(source, make_order("none", 7, 0, Shard(2, 1)), 3)
    made = fill(shard, [part.lane], 0, 8, nothing)
    rows = whole.rows(0, 14)
    found = part.rows(0, 8)
    assert [found[k] for k in (0, 1, 2, 4, 5, 6)] == [rows[k] for k in (1, 3, 5, 8, 10, 12)]
    for image, label, index in (found[3], found[7]):
        assert (label, index, set(image)) == (NO_SAMPLE, NO_SAMPLE, {0})
    assert [(bad.position, bad.index) for bad in made.bad] == [(2, 5), (6, 5)]


def test_an_error_about_a_file_is_shown_without_its_class() -> None:
    assert describe(BadFile("/t.json is no tokenizer")) == "/t.json is no tokenizer"
    assert describe(ValueError("odd")) == "ValueError: odd"
