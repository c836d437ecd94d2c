"""Workers that come and go while jobs read, and `prepserver tune`, which measures how many there should be."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepclient import Joining, PrepClient, SyntheticImages
from prepserver.cli import command_line, main, tune
from prepserver.cli.exits import CommandError
from prepserver.config import load_settings
from tests.support.clients import OPS, inline_rows, rows_of
from tests.support.server import Server, cli
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SOURCE = SyntheticImages(400, size=(48, 64))


@pytest.fixture(scope="module")
def resized() -> Iterator[Server]:
    server = Server(workers=1, settings={"chunk_rows": 4})
    server._arguments = [a for a in server._arguments if a not in ("--workers", "1")]  # the file says it
    try:
        yield set_workers(server, 1).start()
    finally:
        server.stop()
        server.discard()


def set_workers(server: Server, workers: int | str) -> Server:
    config = server.home / "config.toml"
    config.write_text(f"chunk_rows = 4\nworkers = {json.dumps(workers)}\n")
    if server._process is not None:
        os.kill(server.pid, signal.SIGHUP)
    return server


def test_rows_are_the_same_while_workers_come_and_go(resized: Server) -> None:
    """A headspace amid it all takes no sample from the stream, as the audit of the daemon's log proves."""
    with PrepClient(
        SOURCE, OPS, batch_size=8, shuffle=True, seed=5, fields="dict", runtime_dir=resized.runtime_dir,
        joining=Joining(start="first"), job="resized", prefetch=16, headspace=7,
    ) as train:  # fmt: skip
        had, replays, sizes = [], range(17, 24), {0: 3, 25: 1, 35: 4, 45: 2}
        for number, batch in enumerate(train):
            if number in sizes:
                set_workers(resized, sizes[number])
                wait_until(lambda number=number: len(resized.workers()) == sizes[number], why=resized.log)  # type: ignore[misc]
            if number not in replays:
                had += rows_of(batch)
    assert had == inline_rows(SOURCE, epochs=1, ops=OPS, batch_size=8, shuffle=True, seed=5)
    log = resized.log()
    for change in ("3 workers instead of 1", "1 workers instead of 3", "2 workers instead of 4"):
        assert f"{change}: the settings were read again" in log
    assert "ended: " not in log  # nothing was killed at work
    proof = cli("audit", "resized", "--cache-dir", str(resized.home / "cache"))
    assert proof.returncode == 0, proof.stdout + proof.stderr


def test_auto_is_a_number_that_may_change(resized: Server) -> None:
    set_workers(resized, "auto")
    wait_until(lambda: "reloaded: workers" in resized.log().splitlines()[-1], why=resized.log)
    assert resized.status()["state"] == "running"


def asked(*words: str) -> argparse.Namespace:
    return command_line().parse_args(["tune", *words])


def test_tune_takes_data_and_step_from_a_running_job(resized: Server) -> None:
    where = ["--runtime-dir", str(resized.runtime_dir), "--cache-dir", str(resized.home / "cache")]
    with PrepClient(
        SOURCE, OPS, batch_size=8, shuffle="full", runtime_dir=resized.runtime_dir, job="step",
    ) as train:  # fmt: skip
        for number, _ in enumerate(train):
            time.sleep(0.02)
            if number == 12:
                break
        wait_until(lambda: resized.status()["jobs"][0]["own_s"] > 0, why=resized.log)
        found = tune._job(asked("--job", "step", *where))
    assert (found.source, found.ops[-len(OPS) :], found.batch_size, found.shuffle) == (SOURCE, OPS, 8, "full")
    assert 0.01 < found.step_s < 1.0
    with pytest.raises(CommandError, match="--step-ms"):
        tune._job(asked("--job", "step", *where))
    assert tune._job(asked("--job", "step", "--step-ms", "4", *where)).step_s == 0.004


SCRIPT = """
import time
from prepclient import CenterCrop, PrepClient, SyntheticImages
def loader():
    return PrepClient(SyntheticImages(64, size=(32, 32)), [CenterCrop(16)], batch_size=8, shuffle=True)
def step(batch):
    time.sleep(0.001)
"""


def test_tune_takes_data_and_step_from_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train_of_a_user.py"
    script.write_text(SCRIPT)
    found = tune._job(asked(f"{script}:loader", "--step", f"{script}:step"))
    assert (found.source, found.batch_size, found.shuffle) == (SyntheticImages(64, size=(32, 32)), 8, True)
    assert 0.001 <= found.step_s < 1.0


def test_tune_measures_all_forms_draws_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"--write": tmp_path / "best.toml"}
    if importlib.util.find_spec("matplotlib"):
        files["--plot"] = tmp_path / "curve.svg"
    words = ["SyntheticImages(64, size=(32, 32))", "--ops", "CenterCrop(16)", "--batch-size", "8", "--seconds", "0.1"]
    words += ["--most-workers", "1", "--json", *(str(part) for pair in files.items() for part in pair)]
    assert main(["tune", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["not_measured"]
    assert {(p["cache"], p["packed"]) for p in found["points"]} == {*tune._FORMS}
    assert {p["workers"] for p in found["points"]} == {1, 2}
    assert {p["prefetch"] for p in found["points"]} == {0, 16}
    assert all(point["images_per_s"] > 0 for point in found["points"])
    assert found["choice"] in found["points"]
    assert "--plot" not in files or "<svg" in files["--plot"].read_text()
    assert load_settings(files["--write"], {}).workers == found["choice"]["workers"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "SCRIPT.py:FUNCTION"),
        (["SyntheticImages(9)"], "--ops"),
        (["SyntheticImages(9)", "--ops", "print(1)"], "print"),
        (["SyntheticImages(9)", "--ops", "SyntheticImages(9)"], "no list of ops"),
        (["nowhere.py:loader"], "nowhere.py"),
        (["os:getcwd"], "returns str, not a PrepClient"),
        (["os:sep"], "is no function"),
        (["SyntheticImages(9)", "--plot", "a.gif"], ".png or .svg"),
    ],
)
def test_what_cannot_be_tuned_is_said(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *words]) == 2
    assert says in capsys.readouterr().err
