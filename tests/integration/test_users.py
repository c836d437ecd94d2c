"""One daemon for several users: what they share, and what is kept from them. With real uids, so as root only.

The packages may lie in a folder that only root may enter. So a client starts as root, imports everything and then
becomes its user, before it looks for the daemon; and the daemon runs as its user from the start, with the one
capability CAP_DAC_READ_SEARCH, which lets it and its workers read any file of the machine. That makes the tests
stricter: nothing but its own rules keeps the daemon from reading a secret for somebody.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepclient import Joining, PrepClient, Sharding
from prepserver.cli import exits
from prepserver.pipeline.ops import CenterCrop, ColorJitter, Op, Resize
from prepserver.pipeline.sources import Concat, FileList, ImageFolder, Repeat, SourceSpec, Subset, SyntheticImages
from prepserver.protocol.codec import encode
from prepserver.protocol.messages import AskStop, Scanning, Welcome
from tests.support import leaks
from tests.support.clients import ClientError, ClientProcess, inline_rows, read
from tests.support.forked import cli_of
from tests.support.hostile import Stranger
from tests.support.server import Server, environment
from tests.support.tiny_images import photo_tree
from tests.support.waiting import wait_until

DAEMON = 60990
"""The daemon's user."""

MEMBER = 60991
"""A user; the group of the same number is the one that may connect."""

STRANGER = 60992
"""A user outside the group."""

N = 64

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is not on this machine"),
]

Start = Callable[..., ClientProcess]


class OthersServer(Server):
    """A daemon of `DAEMON`, open to the group of `MEMBER`."""

    def __init__(self) -> None:
        within = [
            *("setpriv", f"--reuid={DAEMON}", f"--regid={DAEMON}", f"--groups={MEMBER}"),
            *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
        ]
        super().__init__(workers=1, settings={"socket_group": str(MEMBER), "drain_s": 0.2}, within=within)
        self._config = self.home / "config.toml"
        self._common = self._config.read_text()
        for path in (self.home, self._config):
            os.chown(path, DAEMON, DAEMON)
        self.home.chmod(0o711)
        self.settings = ""

    def reload(self, settings: str) -> None:
        """Applies other settings."""
        if settings != self.settings:
            reloads = self.log().count("reloaded: ")
            self._config.write_text(f"{self._common}{settings}\n")
            self.process.send_signal(signal.SIGHUP)
            wait_until(lambda: self.log().count("reloaded: ") > reloads, why=self.log)
            self.settings = settings


class World:
    """A dataset below the roots, a secret elsewhere, and a daemon."""

    def __init__(self, public: Path, secret: Path, server: OthersServer, client_process: Start) -> None:
        self._client_process = client_process
        self.server = server
        self.public, self.secret = public, secret
        self.source = photo_tree(self.public / "set", N)
        self.hidden = photo_tree(self.secret / "set", N)
        self.secret.chmod(0o700)

    def limit(self, limits: str) -> None:
        """Sets limits of each user."""
        self.server.reload(f"{self.server.settings}\n[limits]\n{limits}")

    def client(self, uid: int | None, source: SourceSpec | None = None, **arguments: Any) -> ClientProcess:
        arguments = {"batch_size": 16, "shuffle": True, "seed": 5} | arguments
        return self._client_process(self.server, source or self.source, uid=uid, **arguments)

    def refused(self, uid: int | None, source: SourceSpec | None = None, **arguments: Any) -> ClientError:
        client = self.client(uid, source, **arguments)
        with pytest.raises(ClientError) as caught:
            client.ask("attach")
        client.end()
        return caught.value


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source root."""
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def shared_server(root: Path) -> Iterator[OthersServer]:
    """Without limits."""
    with OthersServer() as server:
        server.reload(f"[sources]\nroots = ['{root}']")
        yield server


@pytest.fixture
def world(root: Path, tmp_path: Path, server: OthersServer, client_process: Start) -> Iterator[World]:
    settings = server.settings
    yield World(root / tmp_path.name, tmp_path / "secret", server, client_process)
    server.reload(settings)


def test_two_users_share_the_decode_and_no_memory(world: World) -> None:
    # The second one joins where the next epoch begins: the first must not be far ahead of its reading by then.
    first = world.client(DAEMON, prefetch=32)
    assert first.ask("attach") == 4
    second = world.client(MEMBER, prefetch=32)
    assert second.ask("attach") == 4
    lanes = [lane for stream in world.server.status()["streams"] for lane in stream["lanes"]]
    assert sorted(lane["uid"] for lane in lanes) == [DAEMON, MEMBER]
    assert sorted(job["uid"] for job in world.server.status()["jobs"]) == [DAEMON, MEMBER]
    mapped = [set(leaks.rings(client.pid)) for client in (first, second)]
    assert all(mapped)
    assert not mapped[0] & mapped[1]
    mine, theirs = first.read(), []
    for _ in range(
        2 * 5
    ):  # in step, because a job that holds up one of another user parts from it; 4 batches and an end
        for client in (first, second):
            client.order("read", batches=1)
        mine += first.collect()
        theirs += second.collect()
    assert mine == inline_rows(world.source, epochs=3, batch_size=16, shuffle=True, seed=5)
    assert theirs == mine[N:]
    # One stream; all but the first epoch was decoded once for both of them (and an early start of two rounds).
    assert world.server.stream()["sharing_factor"] > 1.25
    for client in (first, second):
        client.ask("close")


def test_a_user_outside_the_group_is_refused_and_told_the_group(world: World) -> None:
    assert stat.S_IMODE(world.server.runtime_dir.stat().st_mode) == 0o710
    assert world.refused(STRANGER).kind == "NoPermission"
    world.server.runtime_dir.chmod(0o755)  # as systemd makes it: the sockets decide
    refused = world.refused(STRANGER)
    assert refused.kind == "NoPermission"
    assert f"the socket belongs to uid {DAEMON}, gid {MEMBER}, mode 660" in refused.text
    outside = ("setpriv", "--groups=0", "--bounding-set=-all", "--inh-caps=-all")
    for name in ("status", "stop", "quarantine"):
        command = [*outside, sys.executable, "-m", "prepserver.cli", name, "--runtime-dir", world.server.runtime_dir]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (exits.NO_PERMISSION, "")
        assert f"gid {MEMBER}, mode 660. Ask its operator to add you to that group" in done.stderr
    world.server.runtime_dir.chmod(0o710)


def test_a_user_cannot_stop_the_daemon(world: World) -> None:
    with Stranger(world.server, uid=MEMBER, gid=MEMBER) as stranger:
        stranger.send(encode(AskStop()))
        answer = stranger.receive()
    assert answer is not None
    assert answer.code == "permission"
    assert world.server.status()["state"] == "running"


def test_nothing_outside_the_roots_is_read_for_a_user(world: World) -> None:
    (world.public / "link").symlink_to(world.hidden.root)
    (world.public / "list.txt").write_text(f"{world.hidden.root}/cats/0000.jpg 0\n")
    (world.public / "linked.txt").symlink_to(world.secret / "list.txt")
    (world.secret / "list.txt").write_text("set/cats/0000.jpg 0\n")
    np.save(world.secret / "chosen.npy", [0])
    for source in (
        world.hidden,
        ImageFolder(str(world.public / "link")),
        FileList(str(world.public / "list.txt")),
        FileList(str(world.public / "linked.txt")),
        FileList(str(world.secret / "list.txt")),
        Repeat(Concat([world.source, world.hidden]), 2),
        Subset(world.source, file=world.secret / "chosen.npy"),
    ):
        refused = world.refused(MEMBER, source, batch_size=1)
        assert refused.kind == "SourceUnavailable"
        assert (
            f"source roots of the server, the only folders it reads for other users: {world.public.parent}"
            in refused.text
        )
        assert "[sources]" in refused.text
    # The daemon's own user could read these without it.
    own = world.client(DAEMON, world.hidden)
    assert own.read() == inline_rows(world.hidden, batch_size=16, shuffle=True, seed=5)
    own.ask("close")


def test_a_link_that_is_laid_while_a_job_runs_leads_nowhere(world: World) -> None:
    said = world.server.log()
    client = world.client(MEMBER, batch_size=4, shuffle=False, prefetch=8, on_error="mask")
    client.read(1)
    victim = sorted(Path(world.source.root).rglob("*.jpg"))[-1]
    victim.unlink()
    victim.symlink_to(f"{world.hidden.root}/dogs/{victim.name}")
    client.read()
    # In the next pass at the latest, it is opened anew.
    client.read(new=True)
    wait_until(lambda: "outside the source roots" in world.server.log().removeprefix(said))
    client.ask("close")


def test_without_roots_a_user_gets_only_what_is_made_not_read(world: World) -> None:
    """Synthetic samples are made; whatever is read from files is refused."""
    world.server.reload("")
    refused = world.refused(MEMBER)
    assert refused.kind == "NoPermission"
    assert "no source roots" in refused.text
    assert "--root" in refused.text
    made = world.client(MEMBER, SyntheticImages(32, size=32))
    assert made.ask("attach") == 2
    made.ask("close")


def test_another_user_is_told_of_a_missing_cache_folder(world: World) -> None:
    folder = world.server.home / "disk"
    world.server.reload(f"{world.server.settings}\n[cache]\nfolders = ['{folder}']")
    refused = world.refused(MEMBER, cache=str(folder / "mine"))
    assert refused.kind == "InvalidSpec"
    assert f"cache = {folder}/mine: there is no folder {folder}, and the daemon makes one only" in refused.text


def test_limits_hold_for_each_user_and_name_themselves(world: World) -> None:
    world.limit("jobs_per_uid = 2\nstreams_per_uid = 1\nmemory_per_uid = '4M'")
    first = world.client(MEMBER, job="one")
    first.ask("attach")
    other_stream = world.refused(MEMBER, seed=6)
    assert other_stream.kind == "NoPermission"
    assert f"uid {MEMBER} has 1 stream, and streams_per_uid = 1 allows no more" in other_stream.text
    second = world.client(MEMBER, job="two")
    second.ask("attach")
    third = world.refused(MEMBER, job="three")
    assert "has 2 jobs, and jobs_per_uid = 2" in third.text
    # Another user has limits of its own, and room comes back when a job ends.
    other = world.client(None, job="roots")
    assert other.ask("attach") == 4
    second.ask("close")
    wait_until(lambda: len(world.server.status()["jobs"]) == 2)
    again = world.client(MEMBER, job="three")
    assert again.ask("attach") == 4
    for client in (first, again, other):
        client.ask("close")


def test_a_ring_over_a_users_limit_is_refused_with_its_figures(world: World) -> None:
    world.limit("memory_per_uid = '64K'")
    refused = world.refused(MEMBER)
    assert refused.kind == "MemoryRefused"
    assert "memory_per_uid" in refused.text
    assert f"uid {MEMBER}" in refused.text


def test_a_descriptor_that_is_kept_counts_against_its_user(world: World) -> None:
    world.limit("memory_per_uid = '1600K'")  # for one ring, and not even the smallest second one
    stranger = Stranger(world.server, uid=MEMBER, gid=MEMBER)
    stranger.send_map(stranger.attach(world.source))
    ring = os.dup(stranger.fds[stranger.welcomed().ring])
    stranger.close()
    wait_until(lambda: not world.server.status()["jobs"])
    assert "memory_per_uid" in world.refused(MEMBER).text
    other = world.client(None)
    assert other.ask("attach") == 4
    os.close(ring)
    again = world.client(MEMBER)
    assert again.ask("attach") == 4
    for client in (other, again):
        client.ask("close")


def test_a_job_that_comes_back_at_once_finds_its_memory_free(world: World) -> None:
    world.limit("memory_per_uid = '1600K'")
    for _ in range(30):
        stranger = Stranger(world.server, uid=MEMBER, gid=MEMBER)
        stranger.send_map({**stranger.attach(world.source), "batch_size": 16})
        while isinstance(answer := stranger.receive(), Scanning):
            pass
        assert isinstance(answer, Welcome)
        stranger.close()


def test_a_name_that_is_used_again_is_another_job(world: World) -> None:
    world.limit("jobs_per_uid = 2")
    same = [world.client(MEMBER, job="same") for _ in range(2)]
    for client in same:
        client.ask("attach")
    assert "has 2 jobs, and jobs_per_uid = 2" in world.refused(MEMBER, job="same").text
    ranks = [world.client(None, job="ranks", sharding=Sharding(rank, 3)) for rank in range(3)]
    for client in ranks:
        client.ask("attach")
    other = world.client(None, job="one more")
    other.ask("attach")
    assert "has 2 jobs, and jobs_per_uid = 2" in world.refused(None, job="another").text
    for client in (*same, *ranks, other):
        client.ask("close")


def test_an_indexer_ends_with_who_asked_for_it(world: World) -> None:
    listed = world.public / "set" / "long.txt"
    listed.write_text("cats/0000.jpg 1\n" * 2_000_000)
    known = set(leaks.children(world.server.zygote))
    stranger = Stranger(world.server, uid=MEMBER, gid=MEMBER)
    stranger.send_map(stranger.attach(FileList(str(listed))))
    assert isinstance(stranger.receive(), Scanning)
    (indexer,) = set(leaks.children(world.server.zygote)) - known
    os.kill(indexer, signal.SIGSTOP)  # as one whose storage hangs: it reads nothing, and notices nothing
    stranger.close()
    wait_until(lambda: not Path(f"/proc/{indexer}").exists())


def test_roots_removed_by_a_reload_are_closed_to_new_jobs(world: World) -> None:
    running = world.client(MEMBER)
    rows = running.read(1)
    world.server.reload(f"[sources]\nroots = ['{world.public}/set/cats']")
    assert world.refused(MEMBER).kind == "SourceUnavailable"
    rows += running.read()
    assert rows == inline_rows(world.source, batch_size=16, shuffle=True, seed=5)
    running.ask("close")


LINE = SyntheticImages(2000, size=(48, 64))
"""Many times what a ring holds."""

LINE_ARGUMENTS: dict[str, Any] = {
    "batch_size": 50, "prefetch": 100, "timeout_s": 600.0, "joining": Joining(wait_s=600.0, lag="wait")
}  # fmt: skip
"""A busy machine makes few rows a second: whoever is to share a stream waits for its place there, however long."""


def read_on(client: ClientProcess, epochs: int) -> None:
    """What is left of the running epoch and so many more, in the background and not faster than others can follow."""
    for number in range(1 + epochs):
        client.order("read", new=number > 0, pause_s=0.02)


def test_a_stopped_job_stops_no_job_of_another_user(world: World) -> None:
    """Whatever its policy: it parts, and continues at the same batch."""
    expected = inline_rows(LINE, epochs=4, batch_size=50, shuffle=True, seed=5)
    stops, other = (world.client(uid, LINE, **LINE_ARGUMENTS) for uid in (DAEMON, MEMBER))
    had = stops.read(1)
    assert other.ask("attach") == 40  # its place is where the second epoch of the first one begins
    read_on(stops, 3)
    read_on(other, 1)
    wait_until(lambda: sorted(len(stream["lanes"]) for stream in world.server.status()["streams"]) == [2])
    stops.kill(signal.SIGSTOP)
    wait_until(stops.stopped)
    assert [row for _ in range(2) for row in other.collect()] == expected[2000 : 3 * 2000]
    stops.kill(signal.SIGCONT)
    assert had + [row for _ in range(4) for row in stops.collect()] == expected
    for client in (stops, other):
        client.ask("close")


SLOW_OPS: tuple[Op, ...] = (Resize((2000, 2000)), ColorJitter(0.4, 0.4, 0.4, 0.1), CenterCrop(8))
"""Some 0.2 s for a row."""


def test_a_slow_pipeline_of_one_user_slows_no_job_of_another(world: World) -> None:
    """It is parted from them, for good; both have all their rows."""
    line = SyntheticImages(700, size=(48, 64))
    arguments = {**LINE_ARGUMENTS, "shuffle": "full", "timeout_s": 600.0}
    slow_arguments = {**arguments, "batch_size": 2, "prefetch": 16}
    other = world.client(MEMBER, line, **arguments)
    rows = other.read(12)
    slow = world.client(DAEMON, line, ops=SLOW_OPS, job="slow", **slow_arguments)
    slow.ask("set_epoch", epoch=1)  # to begin where the other is in a moment
    assert slow.ask("attach") == 350
    assert len(world.server.stream()["lanes"]) == 2
    slow.order("read", batches=5)
    rows += other.read() + other.read(new=True)
    assert rows == inline_rows(line, epochs=2, batch_size=50, shuffle="full", seed=5)
    # In one stream they would be a ring apart at most: 512 rows in both lanes would have been made for the 700.
    shared, apart = world.server.status()["streams"]
    assert (shared["apart"], apart["apart"]) == (False, True)
    assert apart["rows_filled"] <= 2 * 16
    with PrepClient(line, SLOW_OPS, fields="dict", inline=True, seed=5, **slow_arguments) as alone:
        alone.set_epoch(1)
        assert slow.collect() == read(alone, 5)
    (said,) = [line for line in world.server.log().splitlines() if "job 'slow' holds others back" in line]
    assert f"job 'slow' holds others back (uid {DAEMON}: its pipeline takes " in said
    for client in (slow, other):
        client.ask("close")


def test_ranks_that_never_attach_stop_no_job_of_another_user(world: World) -> None:
    expected = inline_rows(LINE, epochs=3, batch_size=50, shuffle="full", seed=5)
    arguments = {**LINE_ARGUMENTS, "shuffle": "full"}
    other = world.client(MEMBER, LINE, **arguments)
    rows = other.read(37)
    # It is to begin where the other is in a moment, and to wait there for its rank 1.
    rank = world.client(DAEMON, LINE, **{**arguments, "batch_size": 25}, sharding=Sharding(0, 2), job="pair")
    rank.ask("set_epoch", epoch=1)
    assert rank.ask("attach") == 40
    rows += other.read() + other.read(new=True) + other.read(new=True)
    assert rows == expected
    late = world.client(DAEMON, LINE, **{**arguments, "batch_size": 25}, sharding=Sharding(1, 2), job="pair")
    late.ask("set_epoch", epoch=1)
    for client in (rank, late):  # side by side: ranks wait for each other
        client.order("read")
    halves = [client.collect() for client in (rank, late)]
    both = [row for n in range(0, 1000, 25) for half in halves for row in half[n : n + 25]]
    assert both == expected[2000:4000]
    for client in (rank, late, other):
        client.ask("close")


def command(uid: int, world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user of the group."""
    return cli_of((uid, MEMBER), *arguments, "--runtime-dir", str(world.server.runtime_dir))


def test_a_user_sees_its_own_runs_and_those_of_nobody_else(world: World) -> None:
    """The logs lie in a folder that only the daemon's user may enter; it gives each user those of its jobs."""
    client = world.client(MEMBER, job="mine")
    assert len(client.read()) == N
    client.ask("close")
    ended = command(MEMBER, world, "audit", "mine", "--json")
    assert ended.returncode == exits.OK, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["uid"], found["exactly_once"]) == (MEMBER, True)
    page = command(MEMBER, world, "report", "mine", "-o", "-")
    assert "<html" in page.stdout or "too few batches" in page.stderr
    for job, uid in (("other", MEMBER), ("mine", MEMBER + 10)):
        refused = command(uid, world, "audit", job)
        assert refused.returncode == exits.NO_PERMISSION
        assert f"this daemon has no log of a job {job!r} of uid {uid}" in refused.stderr
    shut = command(MEMBER, world, "replay", "--job", "mine", "--batch", "0", "-o", "/tmp/none.png")
    assert shut.returncode == exits.NO_PERMISSION
    assert "only the daemon's own user may read it" in shut.stderr
