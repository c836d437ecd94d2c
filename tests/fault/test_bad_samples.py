"""Samples that are meant to hurt: none takes a worker down for good, and each is named."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepclient import BadSampleError, PrepClient, SourceUnavailable, SyntheticImages
from prepserver.source.container import Container
from tests.support import leaks
from tests.support.clients import OPS, Rows, inline_rows, read, rows_of
from tests.support.odd_images import encoded, header_bomb, listed, picture, scan_bomb
from tests.support.server import Server
from tests.support.tiny_images import jpeg, photo_tree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault

NewServer = Callable[..., Server]


@pytest.fixture(scope="module")
def slow_sample() -> bytes:
    """Decoding it takes minutes."""
    return scan_bomb()


def restarts(server: Server) -> int:
    return sum(int(worker["restarts"]) for worker in server.status()["workers"])


def test_damaged_files_give_the_same_rows_and_kill_no_worker(server: Server, tmp_path: Path) -> None:
    """A server of any number of workers and inline mode make the same rows."""
    rng = np.random.default_rng(5)
    source = photo_tree(tmp_path, 20)
    kinds = {"jpg": jpeg(1, 64, 64), "png": encoded(picture(2), "PNG"), "webp": encoded(picture(3), "WEBP")}
    for number in range(120):
        kind = ("jpg", "jpg", "png", "webp")[number % 4]
        data = bytearray(kinds[kind])
        for at in rng.integers(0, len(data), 1 + number % 7):
            data[at] = rng.integers(256)
        if number % 3 == 0:
            del data[int(rng.integers(len(data))) :]
        (tmp_path / "cats" / f"hurt{number:03d}.{kind}").write_bytes(bytes(data))
    before = restarts(server)
    arguments: dict[str, Any] = {"batch_size": 35, "shuffle": "full", "on_error": "skip"}
    expected = inline_rows(source, epochs=2, **arguments)
    with PrepClient(source, OPS, fields="dict", runtime_dir=server.runtime_dir, **arguments) as client:
        assert read(client) + read(client) == expected
        assert client.stats()["bad_samples"] > 0
    assert restarts(server) == before


def test_what_is_no_regular_file_is_a_bad_sample(server: Server, tmp_path: Path) -> None:
    names = ["good.jpg", "pipe.jpg", "folder.jpg", "dangling.jpg", "endless.jpg", "sparse.jpg", "empty.jpg", "bomb.png"]
    (tmp_path / "good.jpg").write_bytes(jpeg(1))
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    with (tmp_path / "sparse.jpg").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "bomb.png").write_bytes(header_bomb())
    source = listed(tmp_path / "list.txt", [(name, 0) for name in names])
    before = restarts(server)
    with PrepClient(
        source, OPS, fields="dict", batch_size=8, on_error="mask", runtime_dir=server.runtime_dir
    ) as client:
        (batch,) = list(client)
    assert batch["valid"].tolist() == [True] + [False] * 7
    with PrepClient(source, OPS, batch_size=2, runtime_dir=server.runtime_dir) as client:
        with pytest.raises(BadSampleError, match=r"pipe\.jpg") as caught:
            next(iter(client))
        assert caught.value.index == 1
    assert restarts(server) == before


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A daemon that gives a sample 5 s: no good one takes so long, however busy the machine is."""
    with Server(workers=2, settings={"sample_timeout_s": 5.0}) as server:
        yield server


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_that_twice_takes_too_long_is_quarantined(
    strict: Server, new_server: NewServer, tmp_path: Path, slow_sample: bytes, workers: int
) -> None:
    source = photo_tree(tmp_path, 40)
    (tmp_path / "cats" / "0007slow.jpg").write_bytes(slow_sample)
    server = strict if workers == 2 else new_server(workers=workers, settings={"sample_timeout_s": 5.0})
    with PrepClient(
        source, OPS, fields="dict", batch_size=41, on_error="mask", runtime_dir=server.runtime_dir
    ) as client:
        (batch,) = list(client)
        assert (~batch["valid"]).nonzero().flatten().tolist() == [8]
        # Its neighbour by index takes its place; everybody else is who he should be.
        assert batch["index"].tolist() == [n if n != 8 else 9 for n in range(41)]
        status = server.status()
        assert list(status["quarantined"].values()) == [[8]]
    with (
        PrepClient(source, OPS, batch_size=41, runtime_dir=server.runtime_dir) as client,
        pytest.raises(BadSampleError, match=r"0007slow\.jpg.*quarantined"),
    ):
        next(iter(client))
    # Two have died of it. With two workers both may be at it, in rows of different epochs, so that a third try is
    # under way when the second one dies: that is ended at once, whenever one hears of it, and there is no fourth.
    wait_until(lambda: len(server.workers()) == workers, why=server.log)
    assert 2 <= restarts(server) <= 1 + workers
    assert server.log().count("because it exceeded sample_timeout_s") == 2


def test_a_sample_that_keeps_killing_workers_is_quarantined(
    new_server: NewServer, tmp_path: Path, slow_sample: bytes
) -> None:
    source = photo_tree(tmp_path, 40)
    (tmp_path / "cats" / "0007slow.jpg").write_bytes(slow_sample)
    server = new_server(workers=2, settings={"sample_timeout_s": 600})
    with PrepClient(
        source, OPS, fields="dict", batch_size=41, on_error="mask", runtime_dir=server.runtime_dir
    ) as client:
        len(client)

        killed: list[int] = []
        filled = -1
        began_s: dict[int, float] = {}
        while not (status := server.status())["quarantined"]:
            assert len(killed) < 30, server.log()
            if status["rows_filled"] != filled:
                filled = status["rows_filled"]
                began_s.clear()
            for pid in [w["pid"] for w in status["workers"] if w["state"] == "busy"]:
                # A worker that computes for so long while no row gets done is at the slow sample.
                if leaks.cpu_s(pid) - began_s.setdefault(pid, leaks.cpu_s(pid)) > 0.3:
                    with contextlib.suppress(ProcessLookupError):  # the daemon ends one that is at a quarantined sample
                        os.kill(pid, signal.SIGKILL)
                    wait_until(partial(leaks.gone, pid))
                    killed.append(pid)
            time.sleep(0.01)
        (batch,) = list(client)
    assert (~batch["valid"]).nonzero().flatten().tolist() == [8]
    assert len(killed) >= 3


def test_a_hung_worker_is_replaced_and_its_good_sample_kept(strict: Server, tmp_path: Path) -> None:
    source = photo_tree(tmp_path, 1500)
    server, before = strict, strict.status()["quarantined"]
    rows: Rows = []
    with PrepClient(source, OPS, fields="dict", batch_size=50, runtime_dir=server.runtime_dir) as client:
        for number, batch in enumerate(client):
            rows += rows_of(batch)
            if number == 3:
                os.kill(server.workers()[0], signal.SIGSTOP)  # in whatever it does, as a hung disk would
    assert rows == inline_rows(source, batch_size=50)
    assert server.status()["quarantined"] == before
    for pid in leaks.marked(server.mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def cut(index: Path) -> None:
    os.truncate(index, 0)


def bend(index: Path) -> None:
    """Changes the label of sample 15000; a page holds 819 of them."""
    container = Container(index)
    with index.open("r+b") as file:
        file.seek(container._start + container._place("files")[0] + 20 * 15_000 + 8)
        file.write(b"\1")


def indices(server: Server) -> set[Path]:
    return {*(server.home / "cache").glob("*.idx")}


def is_at_rest(server: Server) -> bool:
    status = server.status()
    return not status["streams"] and all(worker["state"] == "idle" for worker in status["workers"])


def test_an_index_whose_damage_opening_meets_is_made_again(server: Server) -> None:
    source, others = SyntheticImages(100, size=(64, 64)), indices(server)
    with PrepClient(source, OPS, batch_size=8, runtime_dir=server.runtime_dir) as client:
        next(iter(client))
    wait_until(lambda: is_at_rest(server))  # no worker reads the index any more
    (index,) = indices(server) - others
    whole = index.read_bytes()
    at = whole.rindex(Container(index).section("ends"))  # which opening reads
    with index.open("r+b") as file:  # in place: chunks of the first job may still be under way, and read other parts
        file.seek(at)
        file.write(bytes([whole[at] ^ 1]))
    with (
        PrepClient(source, OPS, batch_size=8, seed=2, runtime_dir=server.runtime_dir) as client,
        pytest.raises(SourceUnavailable, match="damaged"),
    ):
        next(iter(client))
    with PrepClient(source, OPS, batch_size=8, seed=3, runtime_dir=server.runtime_dir) as client:
        next(iter(client))
    assert index.read_bytes() == whole


@pytest.mark.parametrize(
    ("damage", "why"),
    [(cut, "cut short while it is in use"), (bend, r"damaged: the checksum.*rebuilt \(met at sample 1[45]\d\d\d\)")],
)
def test_a_damaged_index_ends_its_job_and_is_made_again(
    damage: Callable[[Path], None], why: str, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "one.jpg").write_bytes(jpeg(1))
    source = listed(tmp_path / "list.txt", [("one.jpg", 0)] * 20_000)  # more than a ring holds
    before, others = restarts(server), indices(server)
    arguments: dict[str, Any] = {"batch_size": 8, "runtime_dir": server.runtime_dir}
    with PrepClient(source, OPS, **arguments) as client:
        batches = iter(client)
        next(batches)
        (index,) = indices(server) - others
        damage(index)
        with pytest.raises(SourceUnavailable, match=rf"{index}: {why}"):
            list(batches)
        assert not index.exists()
    with PrepClient(source, OPS, **arguments) as client:
        images, _ = next(iter(client))
        assert len(images) == 8
    Container(index).check()
    assert restarts(server) == before
