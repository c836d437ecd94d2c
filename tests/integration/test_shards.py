"""One run on two machines, which are two daemons here: each makes its own part, and together they make each sample."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prepclient import Joining, PrepClient, Sharding, SyntheticImages
from prepserver.cli import exits
from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import OPS, ClientProcess, Rows, inline_rows, read, rows_of
from tests.support.forked import cli
from tests.support.logged import await_logged
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

Start = Callable[..., ClientProcess]
COUNT = 605


@pytest.fixture(scope="module")
def other_machine() -> Iterator[Server]:
    with Server(workers=1) as server:
        yield server


@pytest.fixture
def machines(server: Server, other_machine: Server) -> list[Server]:
    """Two daemons."""
    return [server, other_machine]


def launched(machine: int, local: int, count: int = 2, machines: int = 2) -> dict[str, str]:
    """What torchrun says to a process."""
    return {
        "RANK": str(machine * count + local), "WORLD_SIZE": str(machines * count), "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": str(machine), "GROUP_WORLD_SIZE": str(machines),
        "MASTER_ADDR": "one", "MASTER_PORT": "29500",
    }  # fmt: skip


def in_turn(ranks: list[Rows], size: int) -> Rows:
    """Rows of a shard in the order of its line, from those of its ranks, of a whole number of rounds."""
    return [row for at in range(0, len(ranks[0]), size) for rows in ranks for row in rows[at : at + size]]


def test_two_machines_of_two_ranks_have_each_sample_once(
    machines: list[Server], client_process: Start, tree: ImageFolder, tmp_path: Path
) -> None:
    spec: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 16}
    ranks = [
        [client_process(machine, tree, env=launched(m, local), job="run", **spec) for local in range(2)]
        for m, machine in enumerate(machines)
    ]
    everybody = [client for machine in ranks for client in machine]
    whole = inline_rows(tree, epochs=2, **spec)
    for epoch in range(2):
        for client in everybody:
            client.order("read", new=True)
        read = [[client.collect() for client in machine] for machine in ranks]
        together = [row for machine in read for rows in machine for row in rows]
        assert sorted(together) == sorted(whole[epoch * COUNT : (epoch + 1) * COUNT])
        for m, machine in enumerate(read):
            # 303 places, of which machine 1 lacks the last: 9 whole rounds of 32, and one of what is left
            own = inline_rows(tree, epochs=2, sharding=Sharding(num_shards=2, shard_index=m), **spec)
            per_epoch = len(own) // 2
            assert per_epoch == 303 - m
            expected = own[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert in_turn([rows[:144] for rows in machine], 16) == expected[:288]
            assert sorted(row for rows in machine for row in rows) == sorted(expected)
    lengths = [client.ask("len") for client in everybody]
    assert lengths == [10] * 4
    for m, server in enumerate(machines):
        (stream,) = server.status()["streams"]
        # its own part and what is made ahead, not all of it
        assert stream["rows_filled"] <= 2 * 303 + stream["lanes"][0]["rows"]
        shown = cli("status", "--runtime-dir", str(server.runtime_dir), COLUMNS="300").stdout
        assert f"1/2 of shard {m}/2" in shown
    for client in everybody:
        client.ask("close")
    for m, server in enumerate(machines):
        await_logged(server)
        done = cli("audit", "run", "--runtime-dir", str(server.runtime_dir))
        assert done.returncode == exits.OK, done.stdout
        assert "of 2 of 605 samples" in done.stdout
        assert done.stdout.count("each sample exactly once") == 2
        place = (
            "--job",
            "run",
            "--epoch",
            "1",
            "--rank",
            "1",
            "--batch",
            "3",
            "--row",
            "5",
            "-o",
            str(tmp_path / "x.npy"),
        )
        done = cli("replay", *place, "--runtime-dir", str(server.runtime_dir))
        assert done.stdout.split()[1] == str(read[m][1][3 * 16 + 5][0])


@pytest.mark.parametrize("shuffle", ["full", False])
def test_shards_of_other_orders_have_each_sample_once_together(
    machines: list[Server], tree: ImageFolder, shuffle: Any
) -> None:
    spec = {"shuffle": shuffle, "seed": 4, "batch_size": 50, "drop_last": False}
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                PrepClient(
                    tree, OPS, fields="dict", runtime_dir=machines[s].runtime_dir, job="other order",
                    sharding=Sharding(rank, 2, 2, s), **spec,
                )
            )
            for s in range(2) for rank in range(2)
        ]  # fmt: skip
        rounds = list(zip(*clients, strict=True))
    found = [row for batches in rounds for batch in batches for row in rows_of(batch)]
    assert len(rounds) == 4
    assert sorted(found) == sorted(inline_rows(tree, **spec))


@pytest.mark.parametrize("explicit", [{}, {"sharding": Sharding(num_shards=1)}])
def test_machines_begin_at_one_place_though_one_could_join(
    server: Server, client_process: Start, explicit: dict[str, Sharding]
) -> None:
    """One of them has a stream that it could join elsewhere."""
    source = SyntheticImages(3 * 8192, 32)
    spec = {"shuffle": True, "seed": 4, "batch_size": 64, **explicit}
    part = {"sharding": Sharding(num_shards=2, shard_index=1)} if not explicit else {}
    earlier = client_process(server, source, job="earlier", **{**spec, **part})
    earlier.read(20)
    wait_until(lambda: server.stream()["position"] >= 20 * 64)
    later = client_process(server, source, job="later", env=launched(1, 0, 1), joining=Joining(wait_s=1e8), **spec)
    rows = later.read(1)
    state = later.ask("state")
    assert (state["epoch"], state["epoch_start"]) == (0, 0)
    if explicit:
        assert rows == inline_rows_of(source, spec, rank=1)[: len(rows)]
    else:
        assert rows == inline_rows_of(source, {**spec, **part})[: len(rows)]
    assert len(server.status()["streams"]) == 2


def inline_rows_of(source: SyntheticImages, spec: dict[str, Any], rank: int = 0) -> Rows:
    """The first batch of a rank."""
    if rank:
        spec = {**spec, "sharding": Sharding(rank, 2), "job": "x"}
    with PrepClient(source, OPS, fields="dict", inline=True, **spec) as client:
        return read(client, batches=1)


def test_a_shard_goes_on_after_its_daemon_was_started_again(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    spec: dict[str, Any] = {"shuffle": "full", "seed": 4, "batch_size": 20}
    spec["sharding"] = Sharding(num_shards=3, shard_index=2)
    client = client_process(server, tree, **spec)
    rows = client.read() + client.read(4, new=True)
    server.kill()
    server.start()
    rows += client.read()
    assert rows == inline_rows(tree, epochs=2, **spec)


def test_a_shard_of_a_job_that_joined_late_returns_to_its_pass(
    server: Server, client_process: Start, tree: ImageFolder
) -> None:
    """The other machines' daemons were not started again: they are in the second pass after that of the state."""
    spec: dict[str, Any] = {"shuffle": True, "seed": 4, "batch_size": 20}
    with PrepClient(tree, OPS, inline=True, **spec) as alone:
        state = {**alone.state_dict(), "epoch_start": 3 * COUNT, "position": 3 * COUNT + 200}
    spec |= {"sharding": Sharding(num_shards=2, shard_index=1)}
    with PrepClient(tree, OPS, fields="dict", inline=True, **spec) as stays:
        stays.load_state_dict(state)
        expected = [row for _ in range(3) for row in read(stays)]
    client = client_process(server, tree, **spec)
    client.ask("load", state=state)
    rows = client.read() + client.read(4, new=True)
    server.kill()
    server.start()
    rows += client.read() + client.read(new=True)
    assert rows == expected
