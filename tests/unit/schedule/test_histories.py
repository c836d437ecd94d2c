"""Any history of jobs, workers and releases: nothing needed is overwritten, nothing is promised that is not there."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prepserver.pipeline.batches import Batching, BatchShape
from prepserver.protocol.messages import Shuffle
from prepserver.schedule.events import ChunkMade, WorkerRetires
from prepserver.schedule.records import Suspect
from tests.support.schedule_world import Ask, N, World

pytestmark = pytest.mark.once

PICK = st.integers(0, 7)
SUSPECTS = st.none() | st.builds(Suspect, st.integers(0, 2), st.none() | st.integers(1, 8))
LAGS = st.sampled_from(["wait", "auto", "detach"])
OWNERS = st.sampled_from([0, 0, 1])
KEYS = {"cyclic": "a", "full": "b", "none": "c"}


class Histories(RuleBasedStateMachine):
    """Rules are what a client, a worker or the kernel may do at any moment."""

    @initialize(chunk_rows=st.integers(1, 6), workers=st.integers(0, 2), slow=st.booleans(), groups=st.booleans())
    def begin(self, chunk_rows: int, workers: int, slow: bool, groups: bool) -> None:
        self.world = World(chunk_rows, validates=True)
        if groups:
            self.world.row_groups, self.world.decode_ns = (5, 12, 20, N), 10**8
        if slow:  # the second pipeline, with which a user parts from others
            self.world.sample_ns, self.world.shared_ns = {1: 600 * 10**6}, 100 * 10**6
        for _ in range(workers):
            self.world.worker_up()

    # -- jobs

    @precondition(lambda self: len(self.world.clients) < 6)
    @rule(
        shuffle=st.sampled_from(["cyclic", "cyclic", "cyclic", "full", "none"]),
        pipeline=st.integers(0, 1),
        owner=OWNERS,
        batch_size=st.integers(1, 7) | st.integers(1, 2),
        world_size=st.integers(1, 2),
        drop_last=st.booleans(),
        crossing=st.booleans(),
        extra_rows=st.integers(0, 24),
        prefetch_rounds=st.sampled_from([0, 0, 2, 3]),
        epoch=st.integers(0, 2),
        resume=st.none() | st.none() | st.integers(0, 2 * N),
        join_wait_s=st.sampled_from([0.0, 0.05, 10.0, 100.0, 100.0]),
        rows_per_s=st.sampled_from([1.0, 1.0, 100.0]),
        lag=LAGS,
    )
    def join(
        self,
        shuffle: Shuffle,
        pipeline: int,
        owner: int,
        batch_size: int,
        world_size: int,
        drop_last: bool,
        crossing: bool,
        extra_rows: int,
        prefetch_rounds: int,
        epoch: int,
        resume: int | None,
        join_wait_s: float,
        rows_per_s: float,
        lag: str,
    ) -> None:
        round_rows = batch_size * world_size
        ask = Ask(KEYS[shuffle], pipeline, owner, shuffle, epoch, resume, join_wait_s)
        batching: Batching = "shuffle-repeat-batch" if crossing else "shuffle-batch-repeat"
        shape = BatchShape(batch_size, drop_last, 0, world_size, batching=batching)
        joined = self.world.join(ask, shape, extra_rows, prefetch_rounds * round_rows, rows_per_s, lag)
        if joined is None:
            assert self.world.is_short
            return
        where, _ = joined
        if resume is not None:
            assert where.position == resume
        elif shuffle != "cyclic":
            assert where.position == where.epoch_start == epoch * N
        else:
            assert where.position == where.epoch_start
            assert where.position % 8 == 0

    @precondition(lambda self: any(not c.present for c in self.world.clients.values()))
    @rule(pick=PICK)
    def a_rank_attaches(self, pick: int) -> None:
        absent = [c.cursor for c in self.world.clients.values() if not c.present]
        self.world.present(absent[pick % len(absent)])

    @precondition(lambda self: any(c.present for c in self.world.clients.values()))
    @rule(pick=PICK)
    def a_client_leaves(self, pick: int) -> None:
        present = [c.cursor for c in self.world.clients.values() if c.present]
        self.world.leave(present[pick % len(present)])

    @rule(is_short=st.booleans())
    def memory_is_short_or_not(self, is_short: bool) -> None:
        self.world.is_short = is_short

    @precondition(lambda self: any(c.session.next_ready() for c in self.world.clients.values()))
    @rule(pick=PICK)
    def a_client_picks_up(self, pick: int) -> None:
        ready = [c for c in self.world.clients.values() if c.session.next_ready()]
        assert self.world.pick_up(ready[pick % len(ready)])

    @precondition(lambda self: any(c.held for c in self.world.clients.values()))
    @rule(pick=PICK, which=PICK)
    def a_client_gives_back(self, pick: int, which: int) -> None:
        holding = [c for c in self.world.clients.values() if c.held]
        self.world.give_back(holding[pick % len(holding)], which)

    @precondition(lambda self: any(c.present for c in self.world.clients.values()))
    @rule(pick=PICK)
    def a_client_asks_again(self, pick: int) -> None:
        present = [c for c in self.world.clients.values() if c.present]
        self.world.ask_again(present[pick % len(present)])

    @precondition(lambda self: any(c.present for c in self.world.clients.values()) and self.world.workers)
    @rule(rounds=st.integers(1, 6) | st.integers(10, 40), but=st.none() | PICK)
    def everybody_goes_on_for_a_while(self, rounds: int, but: int | None) -> None:
        """All jobs read, maybe but one, which holds others back in time."""
        stays = self._client(but) if but is not None else None
        for _ in range(rounds):
            self.world.wait(0.2)
            for worker in list(self.world.workers):
                if self.world.workers[worker]:
                    self.world.finish(worker)
            for client in list(self.world.clients.values()):
                if client.cursor != stays and self.world.pick_up(client):
                    self.world.give_back(client, 0)

    @precondition(lambda self: len({c.owner for c in self.world.clients.values()}) > 1)
    @rule(owner=OWNERS)
    def a_user_stops_and_the_jobs_of_the_other_go_on(self, owner: int) -> None:
        """Whatever their policies, and also where ranks have not attached."""
        self.world.is_short = False
        self.world.go_on_without(owner, 12, 300.0)

    # -- workers

    @precondition(lambda self: len(self.world.workers) < 4)
    @rule()
    def a_worker_comes_up(self) -> None:
        self.world.worker_up()

    @precondition(lambda self: any(self.world.workers.values()))
    @rule(pick=PICK, which=PICK, count=st.integers(1, 6))
    def a_worker_writes(self, pick: int, which: int, count: int) -> None:
        tasks = self.world.workers[self._busy(pick)]
        self.world.write(tasks[which % len(tasks)], count)

    @precondition(lambda self: any(self.world.workers.values()))
    @rule(pick=PICK, which=PICK)
    def a_worker_finishes(self, pick: int, which: int) -> None:
        worker = self._busy(pick)
        self.world.finish(worker, which % len(self.world.workers[worker]))

    @precondition(lambda self: any(self.world.workers.values()))
    @rule(pick=PICK)
    def a_task_fails(self, pick: int) -> None:
        self.world.fail(self._busy(pick))

    @precondition(lambda self: self.world.workers)
    @rule(pick=PICK)
    def a_worker_retires(self, pick: int) -> None:
        worker = sorted(self.world.workers)[pick % len(self.world.workers)]
        self.world.retired.add(worker)
        self.world.handle(WorkerRetires(worker))

    @precondition(lambda self: self.world.workers)
    @rule(pick=PICK, suspect=SUSPECTS)
    def a_worker_dies(self, pick: int, suspect: Suspect | None) -> None:
        self.world.kill(sorted(self.world.workers)[pick % len(self.world.workers)], suspect)

    @precondition(lambda self: self.world.workers and len(self.world.stuck) < 3)
    @rule(pick=PICK, suspect=SUSPECTS)
    def a_worker_hangs(self, pick: int, suspect: Suspect | None) -> None:
        self.world.hang(sorted(self.world.workers)[pick % len(self.world.workers)], suspect)

    @precondition(lambda self: any(self.world.stuck.values()))
    @rule(pick=PICK, count=st.integers(1, 6))
    def a_stuck_worker_writes_late(self, pick: int, count: int) -> None:
        tasks = [t for held in self.world.stuck.values() for t in held]
        self.world.write(tasks[pick % len(tasks)], count)

    @precondition(lambda self: any(self.world.stuck.values()))
    @rule(pick=PICK)
    def a_stuck_worker_says_that_it_is_done(self, pick: int) -> None:
        worker = sorted(w for w, tasks in self.world.stuck.items() if tasks)[0]
        task = self.world.stuck[worker][pick % len(self.world.stuck[worker])]
        self.world.write(task, task.fill.count)
        self.world.handle(ChunkMade(worker, task.fill.task))

    @precondition(lambda self: self.world.stuck)
    @rule(pick=PICK)
    def a_stuck_worker_ends(self, pick: int) -> None:
        self.world.stuck_ends(sorted(self.world.stuck)[pick % len(self.world.stuck)])

    @rule(seconds=st.sampled_from([0.5, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.wait(seconds)

    # -- what must hold

    @invariant()
    def memory_and_streams_are_those_in_use(self) -> None:
        world = self.world
        assert {world.table.cursor(c).lane for c in world.clients} == set(world.lanes)
        assert {c.stream for c in world.clients.values()} == world.streams == set(world.table.streams)

    @invariant()
    def no_release_goes_beyond_what_was_told(self) -> None:
        for stream in self.world.table.streams.values():
            for cursor in stream.cursors.values():
                client = self.world.clients[cursor.id]
                assert cursor.released == client.session.released_upto
                assert cursor.announced == client.told

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        world.is_short = False
        world.settle(2 * N + 3)
        for cursor in list(world.clients):
            world.leave(cursor)
        assert not world.lanes
        assert not world.streams

    def _client(self, pick: int) -> int:
        return sorted(self.world.clients)[pick % len(self.world.clients)]

    def _busy(self, pick: int) -> int:
        busy = sorted(w for w, tasks in self.world.workers.items() if tasks)
        return busy[pick % len(busy)]


class EarlyHistories(Histories):
    """Histories that begin with a job in the middle of a block, and one that has just started early beside it."""

    @initialize(
        chunk_rows=st.integers(1, 6),
        workers=st.integers(1, 3),
        batch_sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
        world_size=st.sampled_from([1, 1, 2]),
        pipeline=st.integers(0, 1),
        shuffle=st.sampled_from(["cyclic", "cyclic", "cyclic", "full", "none"]),
        extra_rows=st.tuples(st.integers(0, 24), st.integers(0, 24)),
        rounds=st.integers(6, 40),
        lags=st.tuples(LAGS, LAGS),
        owners=st.tuples(OWNERS, OWNERS),
        slow=st.booleans(),
        then=st.tuples(st.integers(0, 30), PICK, st.sampled_from([0, 12, 30])),
    )
    def begin(
        self,
        chunk_rows: int,
        workers: int,
        batch_sizes: tuple[int, int],
        world_size: int,
        pipeline: int,
        shuffle: Shuffle,
        extra_rows: tuple[int, int],
        rounds: int,
        lags: tuple[str, str],
        owners: tuple[int, int],
        slow: bool,
        then: tuple[int, int, int],
    ) -> None:
        super().begin(chunk_rows, workers, slow, False)
        for number, batch_size in enumerate(batch_sizes):
            ranks = world_size if number else 1
            ask = Ask(KEYS[shuffle], pipeline * number, owners[number], shuffle, number, join_wait_s=100.0)
            self.world.join(ask, BatchShape(batch_size, False, 0, ranks), extra_rows[number], 0, 1.0, lags[number])
            self.everybody_goes_on_for_a_while(rounds * (1 - number), None)
        # they meet or have not, and one of them stops
        self.everybody_goes_on_for_a_while(then[0], None)
        self.a_job_stops_and_the_others_read_what_there_is(*then[1:])

    @precondition(lambda self: len(self.world.clients) > 1 and self.world.workers)
    @rule(pick=PICK, rounds=st.integers(8, 30))
    def a_job_stops_and_the_others_read_what_there_is(self, pick: int, rounds: int) -> None:
        """It is left behind, mostly; just after an early start, too."""
        stays = self.world.clients[self._client(pick)].job
        for _ in range(rounds):
            self.world.wait(0.5)
            for worker in list(self.world.workers):
                while self.world.workers[worker]:
                    self.world.finish(worker)
            for client in list(self.world.clients.values()):
                while client.job != stays and self.world.pick_up(client):
                    self.world.give_back(client, 0)


_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]
# Without shrinking: it takes minutes here, longer than a test may; the history that failed is printed as it was.
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate]

TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=_CHECKS, phases=_PHASES
)

TestEarlyHistories = EarlyHistories.TestCase
TestEarlyHistories.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, suppress_health_check=_CHECKS, phases=_PHASES
)


_MANY = settings(
    max_examples=10_000, stateful_step_count=80, deadline=None, suppress_health_check=_CHECKS, phases=_PHASES
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
class TestManyHistories(Histories.TestCase):  # type: ignore[misc, valid-type]
    settings = _MANY


@pytest.mark.soak
@pytest.mark.timeout(1800)
class TestManyEarlyHistories(EarlyHistories.TestCase):  # type: ignore[misc, valid-type]
    settings = _MANY
