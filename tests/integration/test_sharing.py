"""Several jobs on one stream: one decode, and each of them sees each sample exactly once per epoch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prepclient import (
    CenterCrop,
    InvalidSpec,
    Joining,
    PrepClient,
    RandomResizedCrop,
    Resize,
    Sharding,
    SyntheticImages,
)
from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import OPS, ClientProcess, Rows, await_heard, inline_rows, read, rows_of
from tests.support.forked import cli
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
COUNT = 1200  # more than a ring, so that the jobs must go hand in hand


def indices(rows: Rows) -> list[int]:
    return [index for index, _ in rows]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_rank_that_reads_alone_is_told(server: Server, world_size: int, caplog: pytest.LogCaptureFixture) -> None:
    """As where rank 0 evaluates: the ring holds its whole part, so that it waits for nobody."""
    source, sharding = SyntheticImages(60, 8), Sharding(rank=0, world_size=world_size)
    with PrepClient(
        source, [CenterCrop(8)], batch_size=10, job="val", runtime_dir=server.runtime_dir, sharding=sharding
    ) as c:
        for _ in range(2):
            assert sum(len(labels) for _, labels in c) == 60 // world_size
    told = [record.getMessage() for record in caplog.records if "have not attached" in record.getMessage()]
    assert len(told) == world_size - 1
    assert all("ranks 1 of 2" in text and "Sharding(rank=0, world_size=1)" in text for text in told)


def test_three_processes_share_one_pass_and_get_the_whole_epoch(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    arguments: dict[str, Any] = {"shuffle": True, "batch_size": 48, "seed": 1, "drop_last": False}
    clients = [client_process(server, tree, **arguments) for _ in range(3)]
    for client in clients:
        assert client.ask("attach") == COUNT // 48
    for client in clients:
        client.order("read")
    expected = inline_rows(tree, **arguments)
    assert [client.collect() for client in clients] == [expected] * 3
    assert sorted(indices(expected)) == list(range(COUNT))
    stream = server.stream()
    ring = stream["lanes"][0]["rows"]
    # One pass, and what is made ahead of the next one.
    assert COUNT <= stream["rows_filled"] <= COUNT + ring
    assert stream["rows_delivered"] >= 3 * COUNT
    assert stream["sharing_factor"] > 2
    assert [lane["jobs"] for lane in stream["lanes"]] == [3]
    jobs = server.status()["jobs"]
    assert {job["pid"] for job in jobs} == {client.pid for client in clients}
    assert len({job["lane"] for job in jobs}) == 1
    # Made ahead, and announced to all three in whole batches.
    wait_until(lambda: server.stream()["rows_filled"] == COUNT + ring, why=server.stream)
    ahead = (COUNT + ring) // 48 * 48
    wait_until(lambda: server.stream()["rows_delivered"] == 3 * ahead, why=server.stream)


def test_jobs_with_different_batch_sizes_share_a_lane(server: Server, tree: ImageFolder) -> None:
    sizes = (16, 50, 33)
    clients = [
        PrepClient(
            tree, OPS, fields="dict", shuffle=True, seed=2, batch_size=n, runtime_dir=server.runtime_dir,
            joining=Joining(lag="wait"),
        )
        for n in sizes
    ]  # fmt: skip
    try:
        assert [len(client) for client in clients] == [-(-COUNT // n) for n in sizes]
        assert len({job["lane"] for job in server.status()["jobs"]}) == 1
        status = server.status()  # of one moment: it is being filled
        (stream,) = status["streams"]
        filled_before = status["rows_filled"] - stream["rows_filled"]
        rows = stream["lanes"][0]["rows"]
        got = together(clients)
        assert got == [inline_rows(tree, shuffle=True, seed=2, batch_size=64)] * 3
        assert server.status()["rows_filled"] - filled_before <= COUNT + rows  # one pass, and what was made ahead
    finally:
        for client in clients:
            client.close()


def together(clients: list[PrepClient]) -> list[Rows]:
    """An epoch of each, in a thread each; who is done leaves."""

    def run(client: PrepClient) -> Rows:
        with client:
            return read(client)

    with ThreadPoolExecutor(len(clients)) as threads:
        return list(threads.map(run, clients))


def test_other_augmentations_of_the_same_stream_share_the_decode(server: Server, tree: ImageFolder) -> None:
    pipelines: tuple[Any, ...] = (OPS, [RandomResizedCrop(24)], [Resize(40), CenterCrop(40)])
    filled_before = server.status()["rows_filled"]
    spec: dict[str, Any] = {"fields": "dict", "shuffle": True, "seed": 4, "batch_size": 40, "timeout_s": 1800}
    clients = [
        PrepClient(tree, ops, runtime_dir=server.runtime_dir, joining=Joining(wait_s=600, lag="wait"), **spec)
        for ops in pipelines
    ]
    try:
        for client in clients:
            len(client)
        lanes = [lane for stream in server.status()["streams"] for lane in stream["lanes"]]
        assert len(lanes) == 3
        got = together(clients)
        # The pass of the first, that of the two others, the batches of their early starts, and what was made ahead.
        filled = server.status()["rows_filled"] - filled_before
        assert filled <= 2 * COUNT + 2 * 2 * 40 + max(lane["rows"] for lane in lanes)
        expected = inline_rows(tree, ops=pipelines[0], shuffle=True, seed=4, batch_size=40)
        assert got[0] == expected
        for rows, other in zip(got[1:], pipelines[1:], strict=True):
            # A later lane begins at the next place where an epoch may begin; each gives all samples once.
            assert sorted(indices(rows)) == list(range(COUNT))
            once = dict(inline_rows(tree, epochs=1, ops=other, shuffle=True, seed=4, batch_size=40))
            assert set(once) == set(indices(rows))
    finally:
        for client in clients:
            client.close()


def test_jobs_with_one_and_two_views_share_the_decode(server: Server, client_process: Start, tree: ImageFolder) -> None:
    arguments: dict[str, Any] = {"shuffle": True, "batch_size": 40, "seed": 7}
    views = (1, 2, 2)
    # The first runs already, so the others' epoch is the pass after its first.
    joining = [Joining(wait_s=600, lag="wait", start=start) for start in (0, COUNT, COUNT)]
    clients = [
        client_process(server, tree, views=n, joining=each, **arguments) for n, each in zip(views, joining, strict=True)
    ]
    for client in clients:
        assert client.ask("attach") == COUNT // 40
    lanes = [lane for stream in server.status()["streams"] for lane in stream["lanes"]]
    images = [sum(name.startswith("image") for name in lane["fields"]) for lane in lanes]
    assert (images, [lane["jobs"] for lane in lanes]) == ([1, 2], [1, 2])
    one, two = (lane["ring_bytes"] / lane["rows"] for lane in lanes)
    assert 32 * 32 * 3 < one < 2 * 32 * 32 * 3 < two < 3 * 32 * 32 * 3
    shown = cli("status", "--runtime-dir", str(server.runtime_dir), COLUMNS="400").stdout
    assert shown.count("rows of image, image_1, label, index") == 1
    states = [client.ask("state") for client in clients]
    assert [state["position"] for state in states] == [0, COUNT, COUNT]
    clients[0].order("read")
    clients[0].order("read")
    for client in clients[1:]:
        client.order("read")
    first, *others = [client.collect() for client in clients]
    assert first + clients[0].collect() == inline_rows(tree, epochs=2, **arguments)
    with PrepClient(tree, OPS, views=2, fields="dict", inline=True, **arguments) as alone:
        alone.load_state_dict(states[1])
        assert others == [read(alone)] * 2
    # Each sample of the two passes was read and decoded once for both lanes, as were those that are made ahead; but
    # for the batches of the early start.
    stream = server.stream()
    assert 2 * COUNT <= stream["rows_filled"] <= 2 * COUNT + 2 * 40 + max(lane["rows"] for lane in stream["lanes"])
    assert stream["rows_delivered"] >= 4 * COUNT


def test_a_late_joiner_starts_at_a_block_and_sees_all_once(server: Server) -> None:
    source = SyntheticImages(16384 + 3, 16, seed=1)  # two blocks
    ops = [RandomResizedCrop(8)]
    arguments: dict[str, Any] = {"shuffle": True, "seed": 6, "batch_size": 512}
    with (
        PrepClient(source, ops, fields="dict", runtime_dir=server.runtime_dir, **arguments) as first,
        PrepClient(
            source, ops, fields="dict", runtime_dir=server.runtime_dir, joining=Joining(wait_s=600), **arguments
        ) as second,
    ):
        iterator = iter(first)
        rows: Rows = []
        for _ in range(5):  # too many for the first one to wait until the second one has caught up
            rows += rows_of(next(iterator))
        await_heard(server, first)
        assert len(second) == len(first)
        jobs = {job["id"]: job for job in server.status()["jobs"]}
        assert sorted(job["position"] for job in jobs.values())[0] == 2560
        block = second.state_dict()["position"]
        assert block == 8193  # the beginning of the second block
        late: Rows = []
        iterator2 = iter(second)
        while len(rows) < len(range(16387)):
            rows += rows_of(next(iterator))
            if len(rows) >= block + 1024:
                late += rows_of(next(iterator2))
        first_next = iter(first)
        while (batch := next(iterator2, None)) is not None:
            late += rows_of(batch)
            if len(late) < 16387:
                rows += rows_of(next(first_next))
        assert sorted(indices(late)) == list(range(16387))
        # What they both have seen of the line of rows is the same rows.
        assert late[: len(rows) - block] == rows[block:][: len(late)]
        stream = server.stream()
        # One pass, what is made ahead, and the two batches of the late one's early start.
        assert stream["rows_filled"] <= stream["position"] + stream["lanes"][0]["rows"] + 1024


@pytest.mark.parametrize(("shuffle", "drop_last"), [(True, False), ("full", True), (False, False)])
def test_three_ranks_get_equal_counts_and_everything_once(
    server: Server, client_process: Start, tree: ImageFolder, shuffle: bool | str, drop_last: bool
) -> None:
    arguments = {"shuffle": shuffle, "seed": 8, "batch_size": 32, "drop_last": drop_last, "job": "ranks"}
    ranks = [client_process(server, tree, sharding=Sharding(r, 3), **arguments) for r in range(3)]
    for client in ranks:
        client.order("read")
        client.order("read")
    epochs = [[client.collect() for client in ranks] for _ in range(2)]
    for epoch in epochs:
        counts = {len(rows) for rows in epoch}
        seen = [index for rows in epoch for index in indices(rows)]
        if drop_last:
            assert counts == {COUNT // 96 * 32}
            assert len(set(seen)) == len(seen) == COUNT // 96 * 96
        else:
            assert counts == {COUNT // 3}
            assert sorted(seen) == list(range(COUNT))
    lanes = {(job["stream"], job["lane"]) for job in server.status()["jobs"]}
    assert len(lanes) == 1
    if not drop_last:
        whole = inline_rows(tree, epochs=2, shuffle=shuffle, seed=8, batch_size=96)
        assert sorted(row for epoch in epochs for rows in epoch for row in rows) == sorted(whole)


def test_a_rank_that_is_taken_is_refused_with_what_to_do(server: Server, tree: ImageFolder) -> None:
    def rank(number: int) -> PrepClient:
        return PrepClient(
            tree, OPS, batch_size=8, sharding=Sharding(number, 2), job="same", runtime_dir=server.runtime_dir
        )

    with rank(0) as first, rank(1) as second, rank(0) as third:
        assert len(first) == len(second)
        with pytest.raises(InvalidSpec, match="job=") as caught:
            len(third)
        assert caught.value.field == "rank"
        assert len(list(zip(first, second, strict=True))) == len(first)


def test_set_epoch_goes_to_that_epoch(server: Server, tree: ImageFolder) -> None:
    arguments: dict[str, Any] = {"shuffle": "full", "seed": 3, "batch_size": 100}
    epochs = inline_rows(tree, epochs=4, **arguments)
    with PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **arguments) as client:
        client.set_epoch(2)
        assert read(client) == epochs[2 * COUNT : 3 * COUNT]
        client.set_epoch(3)
        assert read(client) == epochs[3 * COUNT :]
        client.set_epoch(1)
        assert read(client, batches=4) == epochs[COUNT : COUNT + 400]
        client.set_epoch(1)
        assert read(client) == epochs[COUNT : 2 * COUNT]
        assert client.epoch == 2


def test_a_state_resumes_at_the_next_sample_in_another_process(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    for shuffle in (True, "full"):
        arguments: dict[str, Any] = {"shuffle": shuffle, "seed": 5}
        expected = inline_rows(tree, epochs=2, batch_size=64, **arguments)
        first = client_process(server, tree, batch_size=48, **arguments)
        rows = first.read(5)
        state = first.ask("state")
        first.kill()
        second = client_process(server, tree, batch_size=70, **arguments)
        second.ask("load", state=state)
        rows += second.read(3)
        assert second.ask("state")["position"] == 5 * 48 + 3 * 70
        rows += second.read()
        assert rows == expected[:COUNT]
        again = second.ask("state")
        second.end()
        third = client_process(server, tree, batch_size=200, **arguments)
        third.ask("load", state=again)
        assert third.read() == expected[COUNT:]
        assert third.ask("state")["epoch"] == 2


def test_a_state_of_one_process_serves_ranks_and_inline_mode(server: Server, tree: ImageFolder) -> None:
    arguments: dict[str, Any] = {"shuffle": True, "seed": 5, "fields": "dict"}
    with PrepClient(tree, OPS, batch_size=40, runtime_dir=server.runtime_dir, **arguments) as whole:
        rows = read(whole, batches=7)
        state = whole.state_dict()
    with (
        PrepClient(
            tree, OPS, batch_size=25, sharding=Sharding(0, 2), job="r", runtime_dir=server.runtime_dir, **arguments
        ) as zero,
        PrepClient(
            tree, OPS, batch_size=25, sharding=Sharding(1, 2), job="r", runtime_dir=server.runtime_dir, **arguments
        ) as one,
    ):
        zero.load_state_dict(state)
        one.load_state_dict(state)
        pairs = list(zip(zero, one, strict=True))
    rows += [row for pair in pairs for batch in pair for row in rows_of(batch)]
    assert rows == inline_rows(tree, shuffle=True, seed=5, batch_size=40)
    with PrepClient(tree, OPS, batch_size=33, inline=True, **arguments) as alone:
        alone.load_state_dict(state)
        assert read(alone) == rows[280:]


def test_a_forked_child_neither_ends_nor_keeps_its_parents_job(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    client = client_process(server, tree, shuffle=True, batch_size=50)
    rows = client.read(2)
    child = client.ask("fork")
    try:
        rows += client.read(2)
        client.kill()
        # Its child still holds the connection, so the death itself is what the daemon sees. It has none of the memory.
        wait_until(lambda: server.status()["jobs"] == [], why=server.log)
        wait_until(lambda: server.status()["memory"]["rings_bytes"] == 0)
    finally:
        os.kill(child, signal.SIGKILL)
    assert rows == inline_rows(tree, shuffle=True, batch_size=50)[:200]


def test_a_job_can_tell_how_far_its_rows_are_shared(server: Server, tree: ImageFolder) -> None:
    arguments: dict[str, Any] = {"batch_size": 48, "seed": 5, "runtime_dir": server.runtime_dir}
    with PrepClient(tree, [RandomResizedCrop(16)], **arguments) as one:
        assert one.stats()["sharing_factor"] is None  # not attached yet
        with PrepClient(tree, [RandomResizedCrop(16)], **arguments) as other:
            assert len(one) == len(other)  # both attach before one of them is ahead
            for _ in zip(one, other, strict=True):
                pass
            for client in (one, other):
                assert 1.0 < client.stats()["sharing_factor"] <= 2.0


def test_what_a_daemon_that_is_gone_would_know_is_none(new_server: Callable[..., Server], tree: ImageFolder) -> None:
    server = new_server(workers=1)
    with PrepClient(tree, [RandomResizedCrop(16)], batch_size=48, runtime_dir=server.runtime_dir) as client:
        next(iter(client))
        assert client.stats()["sharing_factor"] > 0
        server.process.kill()
        server.process.wait()
        assert client.stats()["sharing_factor"] is None
        assert client.stats()["batches"] == 1
