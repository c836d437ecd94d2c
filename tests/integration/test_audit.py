"""``prepserver audit``, ``replay`` and ``quarantine`` with a real daemon and real clients."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from prepclient import Joining, Normalize, PrepClient, RandomResizedCrop, Sharding, SyntheticImages, ToDtype
from prepserver.audit import logfile
from prepserver.audit.records import from_line, to_line
from prepserver.cli import exits
from prepserver.daemon import quarantine
from tests.support.clients import OPS, ClientProcess, read
from tests.support.forked import cli
from tests.support.logged import await_logged
from tests.support.server import Server
from tests.support.tiny_images import photo_tree
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

NewServer = Callable[..., Server]
Start = Callable[..., ClientProcess]
SOURCE = SyntheticImages(200, 32)
SPEC: dict[str, Any] = {"shuffle": True, "seed": 3, "batch_size": 16}


def where(server: Server) -> tuple[str, ...]:
    return ("--runtime-dir", str(server.runtime_dir))


def audit(server: Server, job: str, code: int | None = exits.OK, *more: str) -> dict[str, Any]:
    """The verdicts on a job; `code` is None if the daemon may not have written enough yet."""
    done = cli("audit", job, "--json", *where(server), *more)
    assert code is None or done.returncode == code, f"{done.stderr}{done.stdout}{log_of(server, job).read_text()}"
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


def epochs(verdict: dict[str, Any]) -> list[tuple[str, int]]:
    return [(epoch["verdict"], epoch["once"]) for training in verdict["trainings"] for epoch in training["epochs"]]


def log_of(server: Server, job: str) -> Path:
    return logfile.path_of(server.home / "cache" / logfile.FOLDER, job, os.getuid())


def wait_left(server: Server, job: str, times: int) -> None:
    wait_until(lambda: log_of(server, job).read_bytes().count(b'"k":"left"') == times)


def test_a_job_is_proven_while_it_runs_and_after(server: Server) -> None:
    with PrepClient(SOURCE, OPS, job="one", runtime_dir=server.runtime_dir, **SPEC) as client:
        for _ in range(2):
            assert sum(len(images) for images, _ in client) == 200
        iterator = iter(client)
        for _ in range(5):
            next(iterator)
        wait_until(lambda: epochs(audit(server, "one", None)) == [("yes", 200), ("yes", 200), ("so far", 80)])
    wait_left(server, "one", 1)
    verdict = audit(server, "one")
    assert verdict["exactly_once"]
    assert epochs(verdict) == [("yes", 200), ("yes", 200), ("so far", 80)]
    text = cli("audit", "one", *where(server)).stdout
    assert "epoch 1: each sample exactly once (200 of 200 once)" in text
    assert text.endswith("verdict: exactly once so far\n")
    assert epochs(audit(server, "one", exits.OK, "--epoch", "1")) == [("yes", 200)]
    done = cli("audit", "one", "--epoch", "9", *where(server))
    assert (done.returncode, done.stderr) == (exits.FAILED, "prepserver audit: --epoch 9: the log has epochs 0, 1, 2\n")


def test_runs_of_one_name_are_proven_each_for_itself(server: Server) -> None:
    """The first is cut short, the second gets a wrong checkpoint, the third is whole: one name, as of one script."""
    spec: dict[str, Any] = {"job": "thrice", "fields": "dict", "runtime_dir": server.runtime_dir, **SPEC}
    for number, batches in enumerate((5, 4, None)):
        with PrepClient(SOURCE, OPS, **spec) as client:
            read(client, batches)
            if number == 1:
                client.load_state_dict({**client.state_dict(), "position": 80})
                read(client)
        await_logged(server)
        trainings = audit(server, "thrice", exits.OK if number == 0 else exits.FAILED)["trainings"]
        assert len(trainings) == number + 1
    found = [(t["verdict"], t["attachments"], [(e["once"], e["again"]) for e in t["epochs"]]) for t in trainings]
    assert found == [("so far", 1, [(80, 0)]), ("no", 2, [(184, 0)]), ("yes", 1, [(200, 0)])]
    assert trainings[0]["since"] <= trainings[1]["since"] <= trainings[2]["since"]
    lines = cli("audit", "thrice", *where(server)).stdout.splitlines()
    heads = [f"training {n} since {t['since']}: " for n, t in enumerate(trainings)]
    said = [line.removeprefix(head) for head in heads for line in lines if line.startswith(head)]
    assert said == ["exactly once so far", "NOT proven", "exactly once"]
    assert lines[-1] == "verdict: NOT proven"


def test_replay_is_of_the_last_run_unless_another_is_named(server: Server, tmp_path: Path) -> None:
    spec: dict[str, Any] = {"job": "anew", "runtime_dir": server.runtime_dir, "batch_size": 16, "fields": "dict"}
    for start in (0, 200):
        with PrepClient(SOURCE, OPS, joining=Joining(start=start), **spec) as client:
            read(client)
        await_logged(server)
    for more, position in (((), 200), (("--training", "0"), 0), (("--training", "1"), 200)):
        place = ("--job", "anew", "--batch", "0", *more, "-o", str(tmp_path / "x.npy"), *where(server))
        assert f"position {position}\n" in cli("replay", *place).stdout


def test_ranks_have_each_sample_once_together(server: Server, client_process: Start) -> None:
    ranks = [client_process(server, SOURCE, job="two", sharding=Sharding(r, 2), **SPEC) for r in range(2)]
    for rank in ranks:
        rank.order("read")
    for rank in ranks:
        rank.collect()
    wait_until(lambda: epochs(audit(server, "two", None)) == [("yes", 200)])
    for rank in ranks:
        rank.ask("close")


def test_an_epoch_that_was_left_early_is_named(server: Server) -> None:
    with PrepClient(SOURCE, OPS, job="early", fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        read(client, batches=4)
        read(client)
    wait_left(server, "early", 2)
    verdict = audit(server, "early", exits.FAILED)
    assert epochs(verdict) == [("no", 64), ("yes", 200)]
    assert verdict["trainings"][0]["epochs"][0]["untaken"] == 136


def test_training_and_validation_of_one_name_are_two_trainings(server: Server) -> None:
    both = [
        PrepClient(source, OPS, job="both", fields="dict", runtime_dir=server.runtime_dir, **SPEC)
        for source in (SOURCE, SyntheticImages(50, 32))
    ]
    for _ in range(2):
        for client in both:
            read(client)
    for client in both:
        client.close()
    wait_left(server, "both", 2)
    assert epochs(audit(server, "both")) == [("yes", 200), ("yes", 200), ("yes", 50), ("yes", 50)]


def test_a_job_that_outlives_killed_daemons_has_each_sample_once(server: Server, client_process: Start) -> None:
    # so few rows ahead that it cannot live on what a dead daemon has left in its ring
    client = client_process(server, SOURCE, job="through", prefetch=32, **SPEC)
    rows = client.read(4)
    for _ in range(2):
        server.kill()
        server.start()
        rows += client.read(3)
    rows += client.read()
    assert sorted(index for index, _ in rows) == list(range(200))
    client.ask("close")
    wait_left(server, "through", 1)
    verdict = audit(server, "through")
    assert epochs(verdict) == [("yes", 200)]
    assert verdict["trainings"][0]["attachments"] == 3


class Legs:
    """Runs of one job."""

    def __init__(self, job: str) -> None:
        self.job = job

    def __call__(
        self, server: Server, state: dict[str, Any] | None, batches: int | None, shards: int, index: int = 0
    ) -> Any:
        """One run, up to a checkpoint: it resumes from `state` and takes `batches`, None for all."""
        with PrepClient(
            SOURCE, OPS, job=self.job, fields="dict", runtime_dir=server.runtime_dir,
            sharding=Sharding(num_shards=shards, shard_index=index),
            **SPEC,
        ) as client:  # fmt: skip
            if state is not None:
                client.load_state_dict(state)
            rows = read(client, batches)
            return client.state_dict(), [index for index, _ in rows]

    def counted(self, server: Server, *keys: str) -> list[tuple[Any, ...]]:
        """What the audit says of each epoch of the one training, which is no failure."""
        await_logged(server)
        (training,) = audit(server, self.job)["trainings"]
        return [tuple(epoch[key] for key in ("verdict", *keys)) for epoch in training["epochs"]]


@pytest.fixture
def leg(request: pytest.FixtureRequest) -> Legs:
    return Legs(request.node.name)


@pytest.fixture(scope="module")
def other_machine() -> Iterator[Server]:
    with Server(workers=1) as server:
        yield server


@pytest.mark.parametrize("shards", [2, 3])
def test_each_machine_proves_its_part_of_an_epoch_cut_in_shards(
    server: Server, other_machine: Server, leg: Legs, shards: int
) -> None:
    """Two machines: the first began alone, and the log of the last of three shards is missing."""
    machines = [server, other_machine]
    state, rows = leg(machines[0], None, 6, 1)
    for index, machine in enumerate(machines):
        more = leg(machine, state, None, shards, index)[1]
        rows += more
        own = len(more)
        if index == 0:
            assert leg.counted(machine, "once", "elsewhere", "outside") == [("yes", 96 + own, 104 - own, 0)]
        else:
            assert leg.counted(machine, "samples", "once", "outside") == [
                ("in part", own + 96 // shards, own, 96 // shards)
            ]
    assert len(set(rows)) == len(rows) == (200 if shards == 2 else 96 + 35 + 35)
    text = cli("audit", leg.job, *where(machines[0])).stdout
    assert f"all, shard 0 of {shards} of 200 samples" in text
    assert text.endswith("verdict: exactly once\n")
    text = cli("audit", leg.job, *where(machines[1])).stdout
    assert f"{96 // shards} taken outside of this log, according to a checkpoint" in text
    assert text.endswith("verdict: exactly once, according to this log\n")


def test_an_epoch_that_changes_its_shards_repeatedly_is_proven(
    server: Server, other_machine: Server, leg: Legs
) -> None:
    here, there = server, other_machine
    halves = [leg(machine, None, 2, 2, index) for index, machine in enumerate((here, there))]
    rows = [row for _, taken in halves for row in taken]
    state, more = leg(here, halves[0][0], 2, 1)  # to 96 of all
    rows += more
    thirds = [leg(machine, state, 1, 3, index) for index, machine in enumerate((here, there, there))]
    rows += [row for _, taken in thirds for row in taken]
    # machines change places, and do not notice; then the first has all, to the end of the next epoch
    rows += leg(here, thirds[0][0], None, 2, 1)[1] + leg(there, thirds[0][0], None, 2, 0)[1]
    assert sorted(rows) == list(range(200))
    assert leg.counted(here, "once", "elsewhere", "outside") == [("yes", 32 + 32 + 16 + 28, 92, 0)]
    assert leg.counted(there, "once", "elsewhere", "outside") == [("in part", 32 + 32 + 28, 32 + 16 + 28, 32)]
    state = {**state, "epoch": 1, "epoch_start": 200, "position": 200}
    leg(here, state, None, 1)
    assert leg.counted(here, "once", "elsewhere") == [("yes", 108, 92), ("yes", 200, 0)]


def test_a_checkpoint_of_other_shards_has_the_last_word(server: Server, leg: Legs) -> None:
    """All on one machine, which holds the whole proof."""
    state, _ = leg(server, None, 4, 1)
    leg(server, state, None, 1)
    for index in range(2):
        leg(server, state, 1, 2, index)
    assert leg.counted(server, "once", "untaken", "again") == [("so far", 96, 104, 136)]
    for index in range(2):
        leg(server, state, None, 2, index)
    assert leg.counted(server, "once", "again") == [("yes", 200, 136 + 32)]
    state = {**state, "position": 72}  # nobody saved this: eight samples of a batch would come twice
    leg(server, state, None, 1)
    await_logged(server)
    assert cli("audit", leg.job, "--json", *where(server)).returncode == exits.FAILED


def test_a_log_that_was_tampered_with_is_found(server: Server) -> None:
    with PrepClient(SOURCE, OPS, job="tampered", fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        read(client)
        read(client)
    wait_left(server, "tampered", 1)
    path = log_of(server, "tampered")
    whole = path.read_bytes()
    assert audit(server, "tampered")["exactly_once"]

    path.write_bytes(whole.replace(b'"seed":3', b'"seed":4'))
    verdict = audit(server, "tampered", exits.FAILED)
    assert "line 2: its checksum is wrong" in verdict["damage"][0]

    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[4:]))
    verdict = audit(server, "tampered", exits.FAILED)
    assert "lines are missing before it" in verdict["damage"][0]

    # With checksums that fit, the numbers themselves must.
    first = from_line(2, lines[2].rstrip(b"\n"))
    lines[2] = to_line(2, type(first)(**{**{f: getattr(first, f) for f in first.__slots__}, "rounds": 2}))
    path.write_bytes(b"".join(lines))
    verdict = audit(server, "tampered", exits.FAILED)
    epoch = verdict["trainings"][0]["epochs"][0]
    assert (epoch["verdict"], epoch["missing_count"], verdict["damage"]) == ("no", 32, [])
    assert epoch["missing"][0]["path"]
    path.write_bytes(whole)


def test_a_job_without_a_log_is_named_with_those_that_have_one(server: Server) -> None:
    with PrepClient(SOURCE, OPS, job="there", fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        read(client, batches=1)
    wait_left(server, "there", 1)
    done = cli("audit", "not there", *where(server))
    assert done.returncode == exits.FAILED
    assert "no log of job 'not there'" in done.stderr
    assert "'there'" in done.stderr


def test_a_log_that_cannot_be_written_denies_no_batch(server: Server) -> None:
    """As on a full disk, the log is there and empty."""
    path = log_of(server, "full")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with PrepClient(SOURCE, OPS, job="full", fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
            read(client, batches=1)
        wait_until(lambda: "the audit log of job 'full'" in server.log())
    done = cli("audit", "full", *where(server))
    assert done.returncode == exits.FAILED
    assert done.stdout.endswith("verdict: no batch in the log: the job took none, or the log could not be written\n")


def test_a_replaced_sample_is_named_with_its_path(server: Server, tmp_path: Path) -> None:
    tree = photo_tree(tmp_path / "tree", 40)
    broken = sorted(Path(tree.root).rglob("*.jpg"))[7]
    broken.write_bytes(b"no image")
    with PrepClient(
        tree, OPS, job="bad", fields="dict", on_error="skip", runtime_dir=server.runtime_dir, **SPEC
    ) as client:
        got = [index for index, _ in read(client)]
    assert 7 not in got
    wait_left(server, "bad", 1)
    (epoch,) = audit(server, "bad", exits.FAILED)["trainings"][0]["epochs"]
    (replaced,) = epoch["replaced"]
    assert replaced["index"] == 7
    assert replaced["path"].endswith(broken.name)
    assert broken.name in replaced["reason"]
    assert (epoch["once"], epoch["missing_count"]) == (39, 0)


def test_replay_makes_the_very_pixels_again(server: Server, tmp_path: Path) -> None:
    tree = photo_tree(tmp_path / "tree", 60)
    where_ = {"job": "again", "fields": "dict", "runtime_dir": server.runtime_dir, **SPEC}
    with PrepClient(tree, OPS, **where_) as client:
        batches = [[{k: v.clone() for k, v in b.items()} for b in client] for _ in range(2)]
    wait_left(server, "again", 1)
    out = tmp_path / "x.png"
    done = cli("replay", "--job", "again", "--epoch", "1", "--batch", "2", "--row", "5", "-o", str(out), *where(server))
    assert done.returncode == exits.OK, done.stderr
    batch = batches[1][2]
    expected = batch["image"][5].permute(1, 2, 0).numpy()
    assert np.array_equal(np.asarray(Image.open(out)), expected)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert int(said["sample"]) == batch["index"][5]
    assert int(said["label"]) == batch["label"][5]
    assert (int(said["position"]), said["pass"], said["epoch"]) == (60 + 2 * 16 + 5, "1", "1")
    assert (Path(tree.root) / said["path"]).is_file()
    for wrong in (("--batch", "4"), ("--batch", "0", "--row", "16"), ("--batch", "0", "--rank", "1")):
        assert cli("replay", "--job", "again", *wrong, "-o", str(out), *where(server)).returncode == exits.FAILED
    assert cli("replay", "--job", "again", "--batch", "0", "-o", "x.gif", *where(server)).returncode == exits.USAGE


def test_replay_makes_each_view_again_or_all_of_them(server: Server, tmp_path: Path) -> None:
    with PrepClient(SOURCE, OPS, views=2, job="pair", fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        batches = [[view.permute(0, 2, 3, 1).numpy().copy() for view in batch["image"]] for batch in client]
    wait_left(server, "pair", 1)
    (epoch,) = audit(server, "pair")["trainings"][0]["epochs"]
    assert (epoch["verdict"], epoch["missing_count"]) == ("yes", 0)
    place = ("--job", "pair", "--batch", "1", "--row", "3", *where(server))
    rows = [view[3] for view in batches[1]]
    assert not np.array_equal(*rows)
    for view, row in enumerate(rows):
        for name in ("x.npy", "x.png"):
            done = cli("replay", *place, "--view", str(view), "-o", str(tmp_path / name))
            assert done.returncode == exits.OK, done.stderr
        assert np.array_equal(np.load(tmp_path / "x.npy"), row)
        assert np.array_equal(np.asarray(Image.open(tmp_path / "x.png")), row)
    for name in ("all.npy", "all.png"):
        assert cli("replay", *place, "-o", str(tmp_path / name)).returncode == exits.OK
    assert np.array_equal(np.load(tmp_path / "all.npy"), np.stack(rows))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "all.png")), np.concatenate(rows, axis=1))
    for wrong in ("2", "-1"):
        done = cli("replay", *place, "--view", wrong, "-o", str(tmp_path / "x.png"))
        assert (done.returncode, f"--view {wrong}: the job has views 0 to 1 of each sample" in done.stderr) == (
            exits.FAILED,
            True,
        )


def test_replay_of_floats_is_the_row_as_npy_and_a_picture_as_png(server: Server, tmp_path: Path) -> None:
    """Without a daemon the log is still there."""
    ops = (RandomResizedCrop(24), ToDtype("float32", scale=True), Normalize([0.5, 0.4, 0.3], [0.2, 0.2, 0.2]))
    plain = (RandomResizedCrop(24),)
    with PrepClient(SOURCE, ops, job="f", fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        row = next(iter(client))["image"][1].clone()
    with PrepClient(SOURCE, plain, fields="dict", inline=True, **SPEC) as client:
        seen = next(iter(client))["image"][1].permute(1, 2, 0).numpy()
    wait_left(server, "f", 1)
    place = ("--job", "f", "--batch", "0", "--row", "1", "--cache-dir", str(server.home / "cache"))
    for name in ("x.npy", "x.png"):
        done = cli("replay", *place, "-o", str(tmp_path / name))
        assert done.returncode == exits.OK, done.stderr
    assert np.array_equal(np.load(tmp_path / "x.npy").transpose(2, 0, 1), row.numpy())
    assert np.array_equal(np.asarray(Image.open(tmp_path / "x.png")), seen)


def test_a_quarantined_sample_is_remembered_listed_and_cleared(
    new_server: NewServer, client_process: Start, tmp_path: Path
) -> None:
    tree = photo_tree(tmp_path / "tree", 40)
    server = new_server(workers=1)
    spec = {**SPEC, "shuffle": False, "on_error": "skip"}
    client = client_process(server, tree, job="q", **spec)
    rows = client.read()
    client.ask("close")
    assert [index for index, _ in rows] == list(range(40))
    folder = server.home / "cache" / quarantine.FOLDER
    digest = audit(server, "q")["trainings"][0]["digest"]
    quarantine.Quarantine(folder).add(digest, 11, "workers crashed on it", tree.root)
    await_logged(server)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait()
    server.start()

    client = client_process(server, tree, job="q2", **spec)
    rows = client.read()
    assert [index for index, _ in rows] == [12 if k == 11 else k for k in range(40)]
    done = cli("quarantine", "--json", *where(server))
    (entry,) = json.loads(done.stdout)
    assert (entry["index"], entry["reason"], entry["dataset"]) == (11, "workers crashed on it", tree.root)
    shown = cli("quarantine", *where(server), COLUMNS="300").stdout
    assert "workers crashed on it" in shown

    assert cli("quarantine", "--clear", "nothing", *where(server)).returncode == exits.FAILED
    assert "sample 11" in cli("quarantine", "--clear", "11", *where(server)).stdout
    assert json.loads(cli("quarantine", "--json", *where(server)).stdout) == []
    assert server.status()["quarantined"] == {digest: [11]}  # the job goes on without it
    client.ask("close")
    wait_until(lambda: server.status()["quarantined"] == {})
    await_logged(server)
    client = client_process(server, tree, job="q3", **spec)
    assert [index for index, _ in client.read()] == list(range(40))
    client.ask("close")


def test_a_jobs_last_word_finds_room_with_a_slow_daemon(server: Server) -> None:
    """512 batches are released while the daemon is stopped, more messages than a connection buffers."""
    spec: dict[str, Any] = {"batch_size": 1, "zero_copy": True, "job": "talks"}
    with PrepClient(SyntheticImages(2000, size=(40, 40)), OPS, runtime_dir=server.runtime_dir, **spec) as client:
        batches = iter(client)
        next(batches)
        wait_until(lambda: server.status()["jobs"][0]["ready_rows"] > 400)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for _ in range(400):
                next(batches)
            client.close()
        finally:
            os.kill(server.pid, signal.SIGCONT)
    await_logged(server)
    assert [once for _, once in epochs(audit(server, "talks"))] == [401]
