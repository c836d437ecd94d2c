"""A world with time: jobs of some speed, a pool of some speed, and clients that say how long they waited."""

from __future__ import annotations

from prepserver.pipeline.batches import BatchShape
from tests.support.schedule_world import Ask, Client, World

N, BLOCK = 16384, 4096
BATCH = 256
RING = 4 * BATCH
STEP_S = 0.01
TICK_STEPS = 20


class Timed(World):
    """Jobs that copy a batch at once, and compute for as long as their speed says."""

    def __init__(self, pool_rows_per_s: float = 5000.0) -> None:
        super().__init__(16, N, BLOCK)
        self.pool_rows_per_s = pool_rows_per_s
        self.rows_per_s: dict[int, float] = {}
        self.free_s: dict[int, float] = {}
        self.credit = 0.0
        self.steps = 0
        for _ in range(2):
            self.worker_up()

    def begin(
        self,
        rows_per_s: float,
        *,
        lag: str = "detach",
        pipeline: int = 0,
        batch: int = BATCH,
        join_wait_s: float = 1e4,
        owner: int = 0,
        ranks: int = 1,
    ) -> Client:
        ask = Ask("key", pipeline, owner, join_wait_s=join_wait_s)
        shape = BatchShape(batch, False, 0, ranks)
        joined = self.join(ask, shape, RING - 2 * batch, 0, 500.0, lag)
        assert joined is not None
        self.where, job = joined
        client = next(c for c in self.clients.values() if c.job == job)
        self.rows_per_s[client.cursor] = rows_per_s
        return client

    def go(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.steps += 1
            self.now_s = self.steps * STEP_S
            self._make_rows()
            for client in list(self.clients.values()):
                self._read(client)
            if self.steps % TICK_STEPS == 0:
                self.tick()

    def _make_rows(self) -> None:
        self.credit = min(self.credit + self.pool_rows_per_s * STEP_S, 64.0)
        for worker in list(self.workers):
            while self.workers[worker] and self.credit >= self.workers[worker][0].fill.count:
                self.credit -= self.workers[worker][0].fill.count
                self.finish(worker)

    def _read(self, client: Client) -> None:
        rate = self.rows_per_s.get(client.cursor, 0.0)
        if rate == 0 or self.now_s < self.free_s.get(client.cursor, 0.0):
            return
        if self.pick_up(client):
            batch = client.held[0]
            self.free_s[client.cursor] = self.now_s + (batch.stop - batch.start) / rate
            self.give_back(client, 0)
        else:
            self.stand_waiting(client, STEP_S)

    def until_joined(self) -> None:
        for _ in range(1000):
            if self.joined:
                return
            self.go(0.1)
        raise AssertionError(self._stand())
