"""Who gets a place, who is refused, and what becomes of places that are kept."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepclient import PadTokens, Plugin, PluginOp, RandomResizedCrop, SyntheticImages, Tokenize, kinds
from prepserver.order import make_order
from prepserver.pipeline.batches import BatchShape
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol import work
from prepserver.protocol.layout import PAGE_BYTES, Field, whole_page_rows
from prepserver.protocol.messages import Attach
from prepserver.schedule.actions import Action, Admit, MakeRing, Refuse, Say
from prepserver.schedule.admission import ABSENT_S
from prepserver.schedule.asked import (
    Asked,
    EpochPosition,
    Refusal,
    check,
    first_of,
    given_place,
    line_of,
    ring_rows,
    with_files,
)
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.events import Limits, RankAttaches, RankLeft, RingMade
from prepserver.schedule.workers import TASKS_PER_WORKER
from tests.support.consistency import validate
from tests.support.images import sample_fields
from tests.support.schedule_world import BLOCK, Ask, N, World

ROW = (224, 224, 3)
ATTACH = Attach(
    "first", SyntheticImages(N, 8).to_wire(), "full", 0,
    Pipeline.from_ops([RandomResizedCrop(8)], 1).to_wire(), 4, drop_last=False, rank=0, world_size=1,
)  # fmt: skip


@pytest.fixture
def world() -> World:
    made = World(validates=True)
    made.worker_up()
    return made


def join(
    world: World,
    *,
    owner: int = 0,
    key: str = "a",
    world_size: int = 1,
    epoch: int = 0,
    wait_s: float = 100.0,
    extra: int = 0,
) -> int:
    """A job; its number, or 0 if it was refused."""
    ask = Ask(key, 0, owner, epoch=epoch, join_wait_s=wait_s)
    joined = world.join(ask, BatchShape(2, False, 0, world_size), extra, 0, 1.0)
    return 0 if joined is None else joined[1]


@given(st.integers(0, 3), st.integers(0, 3))
def test_a_job_is_refused_exactly_when_a_limit_is_reached(jobs: int, streams: int) -> None:
    world = World()
    world.limits = Limits(jobs, streams)
    admitted: list[str] = []
    for key in ("a", "a", "b", "b", "c"):
        too_many = 0 < jobs <= len(admitted) or (key not in admitted and 0 < streams <= len(set(admitted)))
        assert (join(world, key=key, wait_s=1e6) == 0) == too_many
        admitted += [] if too_many else [key]
    assert join(world, owner=1, key="d") != 0


def test_a_limit_names_what_is_used_and_the_knob(world: World) -> None:
    world.limits = Limits(1, 0)
    join(world)
    assert join(world) == 0
    assert world.refused[-1].code == "permission"
    assert "uid 0 has 1 job, and jobs_per_uid = 1 allows no more" in world.refused[-1].text


def test_ranks_of_one_run_count_as_one_job(world: World) -> None:
    world.limits = Limits(1, 1)
    join(world, world_size=2)
    (absent,) = (c for c in world.clients.values() if not c.present)
    world.present(absent.cursor)
    assert not world.refused


def test_a_rank_of_unequal_arguments_is_refused(world: World) -> None:
    join(world, world_size=2)
    (first,) = (c for c in world.clients.values() if c.present)

    def answer(**changed: Any) -> Action:
        attach = dataclasses.replace(first.asked.asked.attach, **changed)
        return world.ask(
            dataclasses.replace(first.asked, asker=99, asked=dataclasses.replace(first.asked.asked, attach=attach))
        )[0]

    refused = answer(rank=1, seed=7, batch_size=3)
    assert isinstance(refused, Refuse)
    assert refused.field == "seed"
    assert "has seed = 7, batch_size = 3, and rank 0 has 0, 2: all ranks need equal arguments" in refused.text
    assert isinstance(answer(rank=0, seed=7), Admit)  # another client of a rank that is there
    for seed in (0, 7, 8):  # nobody waits for the last
        assert isinstance(answer(rank=1, seed=seed), Admit)


def test_a_rank_with_another_checkpoint_is_refused(bare: Coordinator) -> None:
    """As where each rank loads its own, or only one finds one: they would read different batches."""
    places: list[dict[str, Any]] = [
        {}, {"position": 12, "epoch_start": 0}, {"position": 16, "epoch_start": 0},
        {"position": 28, "epoch_start": 24, "epoch": 1},
    ]  # fmt: skip
    begins = [f"epoch 0 at {place}" for place in ("its start", "position 12", "position 16")]
    begins.append("epoch 1 at position 28")
    for first, second in itertools.permutations(range(4), 2):
        run: dict[str, Any] = {"job": f"{first} {second}", "world_size": 2, "batch_size": 2}
        one = only(attach(bare, **run, **places[first]), Admit)
        refused = only(attach(bare, **run, **places[second], rank=1), Refuse)
        assert refused.field == "state_dict"
        there = begins[first].replace("its start", "position 0")
        assert f"{begins[second]}, and rank 0 {there}: load the same checkpoint" in refused.text
        two = only(attach(bare, **run, **places[first], rank=1), Admit)  # its place is still kept
        assert bare.job_of(one.cursor) is bare.job_of(two.cursor)


@pytest.mark.parametrize("batching", ["shuffle-batch-repeat", "shuffle-repeat-batch"])
def test_ranks_may_come_back_to_two_epochs(bare: Coordinator, batching: str) -> None:
    """After a restart of the daemon, of which one was still in its first epoch after a checkpoint."""
    run: dict[str, Any] = {"world_size": 2, "batch_size": 2, "batching": batching}
    at = 28 if batching == "shuffle-repeat-batch" else 24
    ahead = only(attach(bare, **run, epoch=1, position=at, epoch_start=24, rounds=1), Admit)
    behind = only(attach(bare, **run, rank=1, position=16, epoch_start=0, rounds=2), Admit)
    assert [(each.epoch_start, each.position) for each in (ahead, behind)] == [(24, at), (0, 16)]


def test_new_ranks_find_those_that_come_back(bare: Coordinator) -> None:
    """The daemon was restarted after one rank had its first batch, and before the other came."""
    run: dict[str, Any] = {"world_size": 2, "batch_size": 2, "shuffle": "cyclic"}
    back: dict[str, Any] = {"position": N, "epoch_start": N, "rounds": 1}  # it had joined another job
    first = only(attach(bare, **run, **back), Admit)
    second = only(attach(bare, **run, rank=1), Admit)
    assert second.epoch_start == N
    assert bare.job_of(first.cursor) is bare.job_of(second.cursor)


def test_ranks_that_come_back_find_new_ones(bare: Coordinator) -> None:
    run: dict[str, Any] = {"world_size": 2, "batch_size": 2, "shuffle": "cyclic"}
    new = only(attach(bare, **run, rank=1), Admit)
    refused = only(attach(bare, **run, position=N, epoch_start=N, rounds=1), Refuse)  # where nobody else can follow
    assert "rank 0 of job 'first' begins epoch 0 at position 24, and rank 1 epoch 0 at position 0" in refused.text
    back = only(attach(bare, **run, position=0, epoch_start=0, rounds=1), Admit)
    assert bare.job_of(new.cursor) is bare.job_of(back.cursor)


def test_a_rank_that_is_there_already_is_refused(world: World) -> None:
    join(world, world_size=2)
    (present,) = (c for c in world.clients.values() if c.present)
    answer, _ = world.ask(dataclasses.replace(present.asked, asker=99))
    assert isinstance(answer, Refuse)
    assert "rank 0 of job 'job" in answer.text
    assert "is attached already" in answer.text


def test_places_are_kept_for_so_long_and_no_longer(world: World) -> None:
    job = join(world, world_size=2)
    world.wait(ABSENT_S)
    assert len(world.table.jobs[job].cursors) == 2
    world.wait(1.0)
    assert len(world.table.jobs[job].cursors) == 1
    assert any("ranks 1 have not attached within 120 s" in text for text in world.said)


def test_with_the_last_rank_that_is_there_all_places_go(world: World) -> None:
    job = join(world, world_size=2)
    (present,) = (c for c in world.clients.values() if c.present)
    world.leave(present.cursor)
    assert job not in world.table.jobs
    assert not world.streams
    assert world.handle(RankLeft(present.cursor)) == []


@pytest.mark.parametrize("reads", [True, False])
def test_the_log_says_that_a_rank_read_alone(world: World, reads: bool) -> None:
    """As where one rank evaluates: it had only its part of the samples."""
    join(world, world_size=2)
    (alone,) = (c for c in world.clients.values() if c.present)
    (worker,) = world.workers
    while world.workers[worker]:
        world.finish(worker)
    if reads:
        assert world.pick_up(alone)
        world.give_back(alone, 0)
    world.leave(alone.cursor)
    assert [text for text in world.said if "ranks 1 never attached here" in text] == world.said[: int(reads)]
    assert len(world.said) == int(reads)


def test_without_memory_a_job_is_refused_and_leaves_nothing(world: World) -> None:
    world.is_short = True
    assert join(world) == 0
    assert world.refused[-1].code == "memory"
    assert not world.table.streams
    assert not world.table.jobs


def test_without_memory_for_an_early_start_a_job_waits(world: World) -> None:
    """It gets its place in the lane that there is."""
    join(world)
    (first,) = world.clients.values()
    while not world.pick_up(first):
        world.finish(next(iter(world.workers)))
    world.give_back(first, 0)
    world.is_short = True
    job = join(world)
    assert not world.coordinator.waits_for
    assert world.table.jobs[job].position == BLOCK
    assert {c.lane for c in world.clients.values()} == {first.lane}
    assert any(text.startswith("no early start, the job waits for stream") for text in world.said)


def test_an_error_that_nobody_foresaw_keeps_no_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(world.coordinator._admission, "_present", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            join(world, world_size=2)
    assert not world.table.jobs
    world.wait(1.0)  # what was decided before is done now
    assert not world.lanes
    assert join(world) != 0


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "a\x00b", "\u202eback"])
def test_a_job_whose_name_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match="unprintable") as refused:
        check(dataclasses.replace(ATTACH, job=name))
    assert refused.value.field == "job"
    assert str(refused.value).isprintable()


def test_an_older_client_hears_what_to_use_instead_of_skip() -> None:
    with pytest.raises(Refusal, match=r"lag = 'skip' .* With 'detach' the job loses nothing; 'auto'") as e:
        check(dataclasses.replace(ATTACH, lag="skip"))
    assert (e.value.code, e.value.field) == ("spec", "lag")


@given(st.integers(1, 10**7), st.integers(1, 10**5), st.integers(0, 10**5), st.integers(1, 2000))
def test_a_ring_has_the_asked_rows_and_whole_pages_where_cheap(
    row_bytes: int, round_rows: int, prefetch: int, in_work: int
) -> None:
    fields = [Field("array", "uint8", [row_bytes])]
    wanted, needed = ring_rows(fields, round_rows, prefetch, in_work)
    assert needed == 2 * round_rows
    assert wanted >= 4 * round_rows
    assert wanted >= needed + 2 * in_work
    assert wanted >= prefetch + round_rows
    if whole_page_rows(row_bytes) <= 4 * round_rows:
        assert wanted * row_bytes % PAGE_BYTES == 0


def test_small_rows_get_a_long_ring_and_large_ones_do_not() -> None:
    assert ring_rows(sample_fields(ROW, "uint8"), 4, 0, 8)[0] >= 512
    assert ring_rows(sample_fields(ROW, "uint8", views=3), 4, 0, 8)[0] >= 512
    assert ring_rows(sample_fields(ROW, "uint8", views=4), 4, 0, 8)[0] < 512  # together 294 MiB
    assert ring_rows(sample_fields((4 << 20,), "uint8"), 4, 0, 2)[0] == 16


def asked(**changed: Any) -> Attach:
    return dataclasses.replace(ATTACH, **changed)


def attach(c: Coordinator, *, limits: Limits = Limits(), places: tuple[str, ...] = (), **changed: Any) -> list[Action]:  # noqa: B008
    """A rank attaches, and gets all rings that it wants; all that is done."""
    listing = work.Indexed("/none", N, 0, "digest", "content", places=list(places))
    actions = c.handle(RankAttaches(1, 0, check(asked(**changed)), listing, 1.0, limits), 0.0)
    while isinstance(ring := actions[-1], MakeRing):
        actions += c.handle(RingMade(ring.needed), 0.0)
    validate(c)
    return actions


def only(actions: list[Action], kind: type[Any]) -> Any:
    (found,) = [action for action in actions if isinstance(action, kind)]
    return found


@pytest.fixture
def bare() -> Coordinator:
    return Coordinator(lambda attach, samples: make_order(attach.shuffle, samples, 0))


@pytest.mark.parametrize(("side", "rows"), [(224, 16), (1024, 5), (4096, 1)])
def test_a_ring_has_room_for_twice_the_chunks_of_all_workers(side: int, rows: int) -> None:
    c = Coordinator(lambda attach, samples: make_order(attach.shuffle, samples, 0), workers=64)
    listing = work.Indexed("/none", N, 0, "digest", "content")
    pipeline = Pipeline.from_ops([RandomResizedCrop(side)], 1).to_wire()
    event = RankAttaches(1, 0, check(asked(pipeline=pipeline)), listing, 1.0, Limits())
    ring = only(c.handle(event, 0.0), MakeRing)
    in_flight = 64 * TASKS_PER_WORKER * rows
    assert 0 <= ring.wanted - (ring.needed + 2 * in_flight) < 64  # whole pages


@pytest.mark.parametrize(
    ("changed", "field", "text"),
    [
        ({"shard_index": 2, "num_shards": 2}, "shard_index", r"shard_index = 2 is not in \[0, num_shards = 2\)"),
        ({"batching": "batch-shuffle-repeat", "shuffle": "cyclic"}, "shuffle", "not by 'cyclic'"),
        ({"position": 3}, "position", "come together"),
        ({"pipeline": [{"op": "none"}]}, "pipeline", "none"),
        ({"rank": 1}, "rank", r"rank = 1 is not in \[0, world_size = 1\)"),
        ({"local_ranks": (2, 2), "world_size": 4}, "rank", r"local_ranks = \(2, 2\) does not hold rank 0"),
        ({"world_size": 1025}, "world_size", "1025 ranks on one machine, at most 1024"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(changed: dict[str, Any], field: str, text: str) -> None:
    with pytest.raises(Refusal, match=text) as e:
        check(asked(**changed))
    assert e.value.code == "spec"
    assert (e.value.field or "").startswith(field)


def test_the_files_of_ops_are_part_of_what_is_asked_for() -> None:
    """Beside plug-ins, whose code is known already."""
    columns = {"text": kinds.Text(), "raw": kinds.Bytes()}
    source = Plugin("mine", columns=columns)

    def question(code: str) -> Asked:
        spelled = PluginOp("parse", column="raw", returns=kinds.Label())
        ops = [Tokenize("/a.json", code=code), spelled, PadTokens(4)]
        pipeline = Pipeline.from_ops(ops, 1, columns).to_wire()
        codes = {("source", "mine"): "11", ("op", "parse"): "22"}
        return check(asked(source=source.to_wire(), pipeline=pipeline), codes)  # type: ignore[arg-type]

    found = with_files(question(""), ["ab"]).pipeline
    assert [getattr(op, "code", None) for op in found.ops] == [None, "ab", "22", None]
    with pytest.raises(Refusal, match=r"is not the content of /a\.json, which is cd") as e:
        with_files(question("ab"), ["cd"])
    assert (e.value.code, e.value.field) == ("spec", "pipeline[1].code")


def test_a_stream_that_no_message_describes_is_refused(bare: Coordinator) -> None:
    refused = only(attach(bare, places=("/" + "x" * 70_000,)), Refuse)
    assert refused.code == "spec"
    assert refused.text.startswith(
        "the source and its folders are too large: use fewer or shorter paths. AddStream has"
    )


def test_shards_resume_only_where_all_of_them_stand() -> None:
    assert given_place(asked(num_shards=2), N) is None
    with pytest.raises(Refusal, match="num_shards = 2 does not divide") as e:
        given_place(asked(num_shards=2, position=1, epoch_start=0), N)
    assert e.value.field == "num_shards"


def test_a_start_is_refused_where_no_epoch_begins() -> None:
    def first(**changed: Any) -> int | None:
        return first_of(asked(**changed), lambda attach, samples: make_order(attach.shuffle, samples, 0), N)

    assert first() is None
    assert first(first=N) == N
    assert first(num_shards=2) == first(world_size=2, local_ranks=(0, 1)) == 0
    for changed, text in (
        ({"first": 3}, "no epoch begins there"),
        ({"first": 3, "num_shards": 2}, "begin at position"),
    ):
        with pytest.raises(Refusal, match=text) as e:
            first(**changed)
        assert e.value.field == "start"


def test_a_job_without_any_batch_is_refused() -> None:
    with pytest.raises(Refusal, match="has no batch of batch_size = 25") as e:
        line_of(asked(batch_size=25, drop_last=True), N, EpochPosition(0, 0), 0, 0)
    assert e.value.field == "batch_size"


def test_a_job_that_would_begin_too_far_away_is_refused(bare: Coordinator) -> None:
    (refuse,) = attach(bare, epoch=2**57)
    assert isinstance(refuse, Refuse)
    assert (refuse.code, refuse.field) == ("spec", "epoch")
    assert not bare.table.streams


def test_a_rank_too_late_for_its_place_goes_on_beside_its_job(world: World) -> None:
    job = join(world, world_size=2)
    (absent,) = (c for c in world.clients.values() if not c.present)
    world.wait(ABSENT_S + 1.0)
    answer, _ = world.ask(dataclasses.replace(absent.asked, asker=99))
    assert isinstance(answer, Admit)
    late = world.coordinator.job_of(answer.cursor)
    assert late.id != job
    assert late.position == world.table.jobs[job].position
    assert list(late.cursors) == [1]


def test_a_rank_far_behind_its_siblings_gets_all_its_rows(bare: Coordinator) -> None:
    """The place that was kept for it begins later."""
    run: dict[str, Any] = {"world_size": 2, "position": 0, "epoch_start": 0, "batch_size": 2}
    ahead = only(attach(bare, **run, rounds=5), Admit)
    assert ahead.first == 20
    behind = only(attach(bare, **run, rounds=1, rank=1), Admit)
    assert behind.first == 6
    assert bare.job_of(behind.cursor) is not bare.job_of(ahead.cursor)


def test_ranks_of_one_run_in_two_epochs_count_as_one_job(bare: Coordinator) -> None:
    limits = Limits(jobs_per_uid=1)
    attach(bare, limits=limits, world_size=2, batch_size=2)
    only(attach(bare, limits=limits, world_size=2, batch_size=2, rank=1, epoch=1), Admit)
    assert len(bare.table.jobs) == 2
    assert only(attach(bare, limits=limits, job="second"), Refuse).code == "permission"


def test_a_dataset_in_too_many_places_is_named_in_the_log(bare: Coordinator) -> None:
    assert "workers may read all files" in only(attach(bare, places=("/",)), Say).text


def test_without_memory_for_any_ring_a_job_is_refused(world: World) -> None:
    """Neither early nor on the shared stream, where it needs a lane of its own."""
    join(world)
    (first,) = world.clients.values()
    while not world.pick_up(first):
        world.finish(next(iter(world.workers)))
    world.give_back(first, 0)
    world.is_short = True
    assert join(world, owner=1) == 0
    assert world.refused[-1].code == "memory"
    assert any(text.startswith("no early start, the job waits for stream") for text in world.said)
