"""Workers that come and go while jobs read, and `prepserver tune`, which measures how many there should be."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prepclient import Joining, Plugin, PluginOp, PrepClient, SyntheticImages, kinds
from prepserver.cli import command_line, main, tune
from prepserver.cli.exits import CommandError
from prepserver.config import auto_most_workers, load_settings
from prepserver.tune.measure import Job, bench
from prepserver.tune.points import Point
from tests.support.clients import OPS, inline_rows, rows_of
from tests.support.logged import await_logged
from tests.support.server import Server, cli, environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

OWNER = Path(__file__).parents[1] / "support" / "owner"
SOURCE = SyntheticImages(400, size=(48, 64))


@pytest.fixture(scope="module")
def resized() -> Iterator[Server]:
    path = os.pathsep.join([environment()["PYTHONPATH"], str(OWNER)])
    server = Server(
        workers=1, settings={"chunk_rows": 4}, arguments=["--plugin", "owner_code"], env={"PYTHONPATH": path}
    )
    server._arguments = [a for a in server._arguments if a not in ("--workers", "1")]  # the file says it
    with set_workers(server, 1):
        yield server


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
    for change in ("3 workers instead of 1", "1 worker instead of 3", "2 workers instead of 4"):
        assert f"{change}: the settings were read again" in log
    assert "ended: " not in log  # nothing was killed at work
    await_logged(resized)
    proof = cli("audit", "resized", "--cache-dir", str(resized.home / "cache"))
    assert proof.returncode == 0, proof.stdout + proof.stderr


@pytest.mark.skipif(auto_most_workers() < 2, reason="one core has room for one worker")
def test_auto_adds_a_worker_while_a_job_waits(resized: Server) -> None:
    """Its op sleeps, so a core is not missing, however busy the machine is."""
    set_workers(resized, 1)
    wait_until(lambda: len(resized.workers()) == 1, why=resized.log)
    set_workers(resized, "auto")
    columns = {"image": kinds.Image(size=(8, 8)), "label": kinds.Label()}
    source = Plugin("numbers", columns=columns, n=256, side=8, read_s=0.0)
    with PrepClient(
        source, [PluginOp("slow", seconds=0.01)], batch_size=8, runtime_dir=resized.runtime_dir, job="hungry"
    ) as train:
        end_s = time.monotonic() + PATIENCE_S
        while len(resized.workers()) == 1 and time.monotonic() < end_s:
            for _ in train:
                pass
    assert " workers instead of 1: a job waits " in resized.log()


def test_no_more_workers_than_open_files_allow(resized: Server) -> None:
    """Without descriptors, no client could attach."""
    set_workers(resized, 2)
    wait_until(lambda: len(resized.workers()) == 2, why=resized.log)
    resource.prlimit(resized.pid, resource.RLIMIT_NOFILE, (200, 200))
    set_workers(resized, 64)
    wait_until(lambda: "too low for 64 workers" in resized.log(), why=resized.log)
    assert len(resized.workers()) == 2


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
    assert 0.01 < found.step_s < PATIENCE_S
    wait_until(lambda: not resized.status()["jobs"], why=resized.log)
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
    assert 0.001 <= found.step_s < PATIENCE_S


def test_what_a_script_prints_is_not_the_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "noisy.py"
    script.write_text('print("read")\ndef loader():\n    print("called")\n')
    assert main(["tune", f"{script}:loader", "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("read\ncalled\n")


def test_a_tune_that_is_ended_leaves_nothing() -> None:
    """Before that, each cache serves its own form: a job uses any cache of its dataset, the decoded one first."""
    running = bench(Job(SOURCE, OPS, 8), 0.1, 1, lambda: False)
    measured = running.__enter__()
    assert all(measured.images_per_s(Point(1, cache=cache)) > 0 for cache in ("", "decoded", "encoded", "decoded"))
    caches = {cache["form"]: cache for cache in measured.server.status()["caches"]}
    assert len(caches) == len(measured.server.status()["caches"]) == 2  # measured again, a form finds its cache filled
    assert caches["encoded"]["samples"] != caches["decoded"]["samples"]
    assert caches["encoded"]["hits"] > 0
    pid, scratch = measured.server.pid, measured.scratch
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGTERM)
    running.__exit__(ended.type, ended.value, ended.tb)
    assert ended.value.code == 128 + signal.SIGTERM
    assert not Path(f"/proc/{pid}").exists()
    assert not scratch.exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


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
        (["SyntheticImages(9)", "--ops", "SyntheticImages(9)"], "is not a list of ops"),
        (["nowhere.py:loader"], "nowhere.py"),
        (["os:getcwd"], "returns str, not a PrepClient"),
        (["os:sep"], "os has no function sep"),
        (["train.py"], "train.py:NAME"),
        (["SyntheticImages(9)", "--plot", "a.gif"], ".png or .svg"),
        (["SyntheticImages(9)", "--write", "/nowhere/a.toml"], "no folder /nowhere"),
    ],
)
def test_what_cannot_be_tuned_is_said(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_dataset_that_is_gone_is_said_before_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(tmp_path / "gone"), "--ops", "CenterCrop(8)", "--step", "os:getcwd"]) == 1
    assert f"the folder {tmp_path}/gone does not exist" in capsys.readouterr().err


def test_too_few_samples_are_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "SyntheticImages(9)", "--ops", "CenterCrop(8)"]) == 1
    assert capsys.readouterr().err.count("an epoch of 9 samples has no batch of batch_size = 256") == 1
