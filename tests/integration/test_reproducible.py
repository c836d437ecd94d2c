"""`start`: where a run begins while other jobs run, so that two runs with one seed see one order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch

from prepclient import InvalidSpec, Joining, PrepClient, RandomResizedCrop, Sharding, SyntheticImages
from tests.support.clients import Rows, await_heard, rows_of
from tests.support.server import Server

pytestmark = pytest.mark.integration

SAMPLES = 16384 + 6  # two blocks
SOURCE = SyntheticImages(SAMPLES, 8, seed=1)


def client(
    server: Server | None, job: str, start: Literal["any", "first"] | int | None = None, **options: Any
) -> PrepClient:
    """Even if the pool is slow, it waits for the running job's next block rather than take a separate stream."""
    where: dict[str, Any] = {"inline": True} if server is None else {"runtime_dir": server.runtime_dir}
    return PrepClient(
        SOURCE, [RandomResizedCrop(8)], fields="dict", shuffle=True, seed=6, batch_size=64, job=job,
        joining=Joining(start=start, wait_s=600.0), timeout_s=1800.0, **where, **options,
    )  # fmt: skip


def first_rows(train: PrepClient, batches: int = 2) -> Rows:
    iterator = iter(train)
    return [row for _ in range(batches) for row in rows_of(next(iterator))]


@pytest.fixture
def running(server: Server) -> Iterator[PrepClient]:
    """A job in the middle of the first block, which others can join at the second one."""
    with client(server, "running") as other:
        first_rows(other, 20)
        await_heard(server, other)  # nobody can begin at 0 any more
        yield other


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_a_run_begins_wherever_it_can_join(server: Server, running: PrepClient, caplog: Any) -> None:
    with client(None, "alone") as alone, client(server, "late") as late, caplog.at_level(logging.INFO, "prepclient"):
        rows = first_rows(late)
        assert rows != first_rows(alone)
        start = late.stats()["start"]
        assert start == late.state_dict()["start"] > 0
        assert f"start={start}) gives the same order again" in caplog.text
    with (
        client(server, "again", start=start) as again,
        client(None, "alone", start=start) as alone,
    ):
        assert first_rows(again) == first_rows(alone) == rows


def test_a_run_can_always_begin_at_the_first_position(server: Server, running: PrepClient) -> None:
    with client(None, "alone") as alone, client(server, "late", start="first") as late:
        assert first_rows(late) == first_rows(alone)
        with client(server, "with it", start="first") as other:
            late.set_epoch(1)
            other.set_epoch(1)
            assert len(late) == len(other)  # both attach
            streams = {job["name"]: job["stream"] for job in server.status()["jobs"]}
            assert streams["late"] == streams["with it"] != streams["running"]
            assert first_rows(late) == first_rows(alone) == first_rows(other)
            assert (late.stats()["start"], late.epoch) == (0, 1)


def test_deterministic_algorithms_begin_at_the_first_position(
    server: Server, running: PrepClient, deterministic: None
) -> None:
    with client(server, "late") as late, client(server, "any", start="any") as joined:
        first_rows(joined)
        first_rows(late)
        assert late.stats()["start"] == 0 != joined.stats()["start"]


def test_a_start_that_no_epoch_has_is_refused(server: Server) -> None:
    with (
        client(server, "before", start=-1) as train,
        pytest.raises(InvalidSpec, match="before position 0") as e,
    ):
        first_rows(train)
    assert e.value.field == "start"
    with (
        client(server, "between", start=17) as train,
        pytest.raises(InvalidSpec, match="no epoch begins there") as e,
    ):
        first_rows(train)
    assert e.value.field == "start"
    sharded = {"sharding": Sharding(num_shards=2, shard_index=0)}
    with (
        client(server, "shard", start=64, **sharded) as train,
        pytest.raises(InvalidSpec, match="start = 64"),
    ):
        first_rows(train)
