"""The orders of tf.data with a real daemon: shuffle-repeat-batch and batch-shuffle-repeat, against no server at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prepclient import InvalidSpec, PrepClient, Sharding
from prepserver.cli import exits
from prepserver.pipeline.sources import ImageFolder
from tests.support.clients import OPS, inline_rows, read, rows_of
from tests.support.forked import cli
from tests.support.logged import await_logged
from tests.support.server import Server

pytestmark = pytest.mark.integration

COUNT = 605
CROSSING = "shuffle-repeat-batch"
WHOLE = "batch-shuffle-repeat"


def open_client(server: Server, tree: ImageFolder, **arguments: Any) -> PrepClient:
    return PrepClient(tree, OPS, fields="dict", runtime_dir=server.runtime_dir, **arguments)


def audited(server: Server, job: str) -> list[tuple[str, int]]:
    await_logged(server)
    done = cli("audit", job, "--json", "--runtime-dir", str(server.runtime_dir))
    assert done.returncode == exits.OK, done.stdout
    verdict = json.loads(done.stdout)
    return [(epoch["verdict"], epoch["once"]) for training in verdict["trainings"] for epoch in training["epochs"]]


def replayed(server: Server, folder: Path, job: str, epoch: int, batch: int, row: int) -> int:
    """Which sample ``prepserver replay`` finds there."""
    place = ("--epoch", str(epoch), "--batch", str(batch), "--row", str(row), "-o", str(folder / "x.npy"))
    done = cli("replay", "--job", job, *place, "--runtime-dir", str(server.runtime_dir))
    assert done.returncode == exits.OK, done.stderr
    return int(done.stdout.split()[1])


@pytest.mark.parametrize("shuffle", [True, "full"])
def test_batches_that_cross_epochs_are_the_endless_line(
    server: Server, tree: ImageFolder, tmp_path: Path, shuffle: Any
) -> None:
    spec = {"shuffle": shuffle, "seed": 3, "batch_size": 32}
    line = inline_rows(tree, epochs=4, **spec)
    with open_client(server, tree, order=CROSSING, job=f"line {shuffle}", **spec) as client:
        epochs = [read(client) for _ in range(3)]
        state = client.state_dict()
    assert [len(rows) for rows in epochs] == [19 * 32, 19 * 32, 19 * 32]
    assert [row for rows in epochs for row in rows] == line[: 3 * 19 * 32]
    assert audited(server, f"line {shuffle}") == [("yes", COUNT)] * 3
    assert replayed(server, tmp_path, f"line {shuffle}", 0, 18, 31) == line[19 * 32 - 1][0]  # a row of epoch 1
    assert (state["epoch"], state["position"]) == (3, 3 * 19 * 32)
    with open_client(server, tree, order=CROSSING, **spec) as client:
        client.load_state_dict(state)
        assert len(client) == 19
        assert read(client, batches=5) == line[3 * 19 * 32 :][: 5 * 32]


def test_ranks_whose_batches_cross_epochs_share_the_decode(server: Server, tree: ImageFolder) -> None:
    """All ranks get the same number of batches."""
    spec: dict[str, Any] = {"shuffle": "full", "seed": 3, "batch_size": 24}
    line = inline_rows(tree, epochs=4, **spec)
    ranks = [open_client(server, tree, order=CROSSING, sharding=Sharding(r, 2), job="ranks", **spec) for r in range(2)]
    with ranks[0], ranks[1], open_client(server, tree, job="beside", **spec) as beside:
        # a job of the same line that is cut otherwise shares it
        begun = [iter(client) for client in (*ranks, beside)]
        assert len(server.status()["streams"]) == 1
        found = [row for _ in range(13) for it in begun[:2] for row in rows_of(next(it))]
        lengths = [13]
        for _ in range(2):
            rounds = list(zip(*ranks, strict=True))
            found += [row for batches in rounds for batch in batches for row in rows_of(batch)]
            lengths.append(len(rounds))
        assert lengths == [13, 13, 12]
        assert found == line[: len(found)]
    assert audited(server, "ranks") == [("yes", COUNT)] * 3


def test_whole_batches_are_shuffled_as_without_a_server(server: Server, tree: ImageFolder, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"shuffle": True, "seed": 3, "batch_size": 32, "order": WHOLE}
    expected = inline_rows(tree, epochs=2, **spec)
    with open_client(server, tree, job="whole", **spec) as client:
        rows = read(client, batches=5)
        state = client.state_dict()
    with open_client(server, tree, job="whole", **spec) as client:
        client.load_state_dict(state)
        rows += read(client) + read(client)
    assert rows == expected
    indices = [index for index, _ in rows]
    for at in range(0, COUNT, 32):
        batch = indices[at : min(at + 32, COUNT)]
        assert batch == list(range(batch[0], batch[0] + len(batch)))
    assert indices[COUNT // 32 * 32 : COUNT] == list(range(COUNT // 32 * 32, COUNT))
    assert audited(server, "whole") == [("yes", COUNT)] * 2
    assert replayed(server, tmp_path, "whole", 1, 7, 3) == indices[COUNT + 7 * 32 + 3]
    with open_client(server, tree, **{**spec, "batch_size": 31}) as other, pytest.raises(InvalidSpec):
        other.load_state_dict(state)


def test_a_round_that_is_longer_than_an_epoch_is_refused_by_name(server: Server, tree: ImageFolder) -> None:
    with (
        open_client(server, tree, order=CROSSING, batch_size=COUNT + 1) as client,
        pytest.raises(InvalidSpec, match=f"more than an epoch of {COUNT} rows"),
    ):
        iter(client)
