"""What limits a job, said by a real daemon of jobs with planted limits; and nothing said of one that has none."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from prepclient import CenterCrop, Joining, Jsonl, Plugin, PluginOp, PrepClient, kinds
from prepserver.cli import exits
from tests.support.forked import cli
from tests.support.server import Server, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

OWNER = Path(__file__).parents[1] / "support" / "owner"
SLOW_S = 0.004


@pytest.fixture(scope="module")
def owned() -> Iterator[Server]:
    path = os.pathsep.join([environment()["PYTHONPATH"], str(OWNER)])
    with Server(workers=2, arguments=["--plugin", "owner_code"], env={"PYTHONPATH": path}) as server:
        yield server


def numbers(read_s: float = 0.0, side: int = 8) -> Plugin:
    columns = {"image": kinds.Image(size=(side, side)), "label": kinds.Label()}
    return Plugin("numbers", columns=columns, n=256, side=side, read_s=read_s)


def job(server: Server, name: str, source: Plugin, ops: Sequence[Any] = (), **options: Any) -> PrepClient:
    options = {"batch_size": 20, "shuffle": True, "fields": ("image", "label"), **options}
    return PrepClient(source, ops or [CenterCrop(8)], job=name, runtime_dir=server.runtime_dir, **options)


def verdicts(server: Server) -> dict[str, dict[str, Any]]:
    return {each["name"]: each["verdict"] for each in server.status()["jobs"]}


def assert_judged(
    server: Server,
    train: PrepClient | Callable[[], Iterator[Any]],
    own_s: float = 0.0,
    *,
    until: Callable[[dict[str, dict[str, Any]]], bool],
) -> None:
    """Judges all jobs, by name, while `train` takes batches and works so many seconds on each.

    It goes on until the verdicts are as they should be: the first ones may be of a ring that is still being filled.
    """
    asked_s, end_s = time.monotonic(), time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        for _ in train if isinstance(train, PrepClient) else train():
            time.sleep(own_s)
            if time.monotonic() > asked_s + 0.5:
                asked_s, found = time.monotonic(), verdicts(server)
                if all(each["kind"] != "not enough data" for each in found.values()) and until(found):
                    return
    raise AssertionError(verdicts(server))


SLOW_OP = PluginOp("slow", seconds=SLOW_S)


@pytest.mark.parametrize(
    ("read_s", "ops", "causes"),
    [
        (0.0, [SLOW_OP], {"op slow"}),
        (SLOW_S, [CenterCrop(8)], {"read"}),
        (SLOW_S, [SLOW_OP], {"op slow", "read"}),
    ],
)
def test_slow_stages_of_the_workers_are_named(owned: Server, read_s: float, ops: list[Any], causes: set[str]) -> None:
    with job(owned, "eager", numbers(read_s), ops) as train:
        named = causes | {"workers"}  # they sleep, so more of them would help

        def are_named(found: dict[str, dict[str, Any]]) -> bool:
            one = found["eager"]
            return one["kind"] == "data-bound" and set(one["causes"]) == named and "more worker" in one["next"]

        assert_judged(owned, train, until=are_named)


def test_samples_that_cannot_be_used_are_named(owned: Server, tmp_path: Path) -> None:
    """Two loops that wait for nothing: one learns zeros, as every label is text, and one has a few bad samples."""
    for name, bad in (("zeros", 100), ("few", 4)):
        lines = [f'{{"label": {json.dumps(str(n) if n < bad else n)}}}' for n in range(100)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    made = [Jsonl(tmp_path / f"{name}.jsonl", {"label": kinds.Label()}) for name in ("zeros", "few")]
    more: dict[str, Any] = {"batch_size": 20, "on_error": "skip", "runtime_dir": owned.runtime_dir}
    with PrepClient(made[0], [], job="zeros", **more) as train, PrepClient(made[1], [], job="few", **more) as other:
        others = itertools.chain.from_iterable(itertools.repeat(other))

        def are_named(found: dict[str, dict[str, Any]]) -> bool:
            return found["zeros"]["causes"] == ["bad samples"] and found["few"]["is_fine"] is True

        def both() -> Iterator[Any]:
            for each in train:
                next(others)
                yield each

        assert_judged(owned, both, 0.05, until=are_named)


def test_workers_that_are_killed_again_and_again_are_named(owned: Server) -> None:
    """The loop, which waits while they hardly work, is not to blame."""
    killer = threading.Thread(target=_kill, args=(owned, ended := threading.Event()))
    with job(owned, "victim", numbers(SLOW_S, side=9), on_error="skip", timeout_s=600.0) as train:
        killer.start()

        def are_named(found: dict[str, dict[str, Any]]) -> bool:
            return found["victim"]["causes"] == ["dying workers"] and "ended or were killed" in found["victim"]["why"]

        try:
            assert_judged(owned, train, until=are_named)
        finally:
            ended.set()
            killer.join()


def _kill(server: Server, ended: threading.Event) -> None:
    while not ended.wait(0.3):
        # Each may fill a chunk: on a loaded machine no row would ever come.
        for pid in [worker["pid"] for worker in server.status()["workers"] if worker.get("chunks")]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_slow_loop_is_no_matter_of_the_data(owned: Server) -> None:
    """Its op alone would be slow, too: the larger of two planted limits counts."""
    with job(owned, "thinker", numbers(), [PluginOp("slow", seconds=0.0005)], prefetch=40) as train:

        def is_fine(found: dict[str, dict[str, Any]]) -> bool:
            return (found["thinker"]["kind"], found["thinker"]["next"]) == ("compute-bound", "")

        assert_judged(owned, train, 0.2, until=is_fine)


def test_a_slow_job_on_the_stream_is_named(owned: Server) -> None:
    alike: dict[str, Any] = {"joining": Joining(lag="wait"), "prefetch": 40, "timeout_s": 600.0}
    with job(owned, "tortoise", numbers(), **alike) as slow, job(owned, "hare", numbers(), **alike) as quick:
        len(slow), len(quick)  # both are attached
        races = threading.Thread(target=_race, args=(quick, ended := threading.Event()))
        races.start()

        def is_named(found: dict[str, dict[str, Any]]) -> bool:
            hare, tortoise = found["hare"], found["tortoise"]
            return hare["causes"] == ["job tortoise"] and 'lag="detach"' in hare["next"] and tortoise["is_fine"]

        try:
            assert_judged(owned, slow, 0.2, until=is_named)
        finally:
            ended.set()
            slow.close()
            races.join()


def _race(train: PrepClient, ended: threading.Event) -> None:
    while not ended.is_set():
        for _ in train:
            if ended.is_set():
                break


def test_slow_copies_are_named(owned: Server) -> None:
    """Large rows, made at once by the workers, become floats of another layout in the training process."""
    source = numbers(side=512)
    looks: dict[str, Any] = {"dtype": torch.float32, "memory_format": torch.contiguous_format}
    with job(owned, "mover", source, [CenterCrop(512)], normalize=((0.5,) * 3, (0.2,) * 3), **looks) as train:

        def is_slow(found: dict[str, dict[str, Any]]) -> bool:
            return "copy-bound" in " ".join([found["mover"]["kind"], *found["mover"]["also"]])

        assert_judged(owned, train, until=is_slow)


def test_the_log_and_the_table_say_it_after_an_epoch(owned: Server, caplog: pytest.LogCaptureFixture) -> None:
    with job(owned, "logger", numbers(), [SLOW_OP]) as train:
        with caplog.at_level(logging.INFO, "prepclient"):
            end_s = time.monotonic() + PATIENCE_S
            while not (said := _said(caplog)) and time.monotonic() < end_s:
                for _ in train:
                    pass
            for _ in train:
                pass
        stats, text, plain = train.stats(), train.stats(table=True), owned.status()
        shown = cli("status", "--runtime-dir", str(owned.runtime_dir)).stdout
    assert _said(caplog) == said
    assert len(said) == 1
    for each in (said[0], text):
        assert "Verdict: data-bound (op slow" in each  # and workers, if a core is free for one
        assert "Next: " in each
    assert "Verdict:" in shown
    assert stats["verdict"]["kind"] == plain["jobs"][0]["verdict"]["kind"] == "data-bound"
    assert stats["wait_s"] > stats["own_s"]
    assert all(name in text for name in ("loading", "copying", "computing", "rest"))
    (stream,) = plain["streams"]
    assert stream["stages_ms_per_sample"]["op slow"] >= 1e3 * SLOW_S
    assert stream["announce_ms"] > 0


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Verdict" in record.getMessage()]


def test_top_runs_on_a_terminal_until_q_and_once_without_one(owned: Server) -> None:
    where = ("--runtime-dir", str(owned.runtime_dir))
    wait_until(lambda: not owned.status()["jobs"])
    assert "no jobs" in cli("top", *where).stdout
    assert "no jobs" in cli("top", *where, PYTHONIOENCODING="ascii").stdout  # which has no bars
    assert json.loads(cli("top", "--json", "--once", *where).stdout)["jobs"] == []
    assert cli("top", "--runtime-dir", "/nowhere").returncode == exits.NO_DAEMON
    master, slave = os.openpty()
    command = [sys.executable, "-m", "prepserver.cli", "top", "--every", "0.1", *where]
    with subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment(TERM="xterm")) as shows:
        os.close(slave)
        seen, asked = b"", False
        while not asked:
            seen += os.read(master, 65536)
            asked = seen.count(b"no jobs") > 1  # shown again by itself
        os.write(master, b"sfq")
        with contextlib.suppress(OSError):  # the end of the terminal
            while os.read(master, 65536):
                pass
        assert shows.wait(PATIENCE_S) == 0
    os.close(master)
