"""`prepserver demo`, as a user runs it: its figures, its table, its errors, and what it leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

import prepserver
from prepserver.demo.phase import JobFigures, PhaseFigures
from prepserver.demo.show import print_result, result_rows
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

_ROOT = Path(prepserver.__file__).resolve().parents[1]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes with 48 small photos each."""
    rng = np.random.default_rng(0)
    for number in range(96):
        coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(coarse.repeat(16, 0).repeat(16, 1))))
    return tmp_path / "photos"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """For temporary files of the demo: a short path, because it holds sockets."""
    with tempfile.TemporaryDirectory(prefix="psd-", dir="/tmp") as name:
        yield Path(name)


def demo(scratch: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prepserver.cli", "demo", *arguments],
        env=environment(scratch), capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False,
    )  # fmt: skip


def environment(scratch: Path) -> dict[str, str]:
    """Of a run whose temporary files all lie in `scratch`."""
    paths = (str(_ROOT), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def processes_of(scratch: Path) -> list[int]:
    """Processes that were started with `scratch` as their place for temporary files."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"TMPDIR={scratch}\0".encode() in environ:
                found.append(int(entry.name))
    return found


def wait_until_none(scratch: Path) -> list[int]:
    """What is left of the processes when they had some time to end."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (left := processes_of(scratch)) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return left


def test_it_measures_both_phases_and_leaves_nothing(photos: Path, scratch: Path) -> None:
    done = demo(scratch, "--data", str(photos), "--jobs", "2", "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["plan"] == {"jobs": 2, "workers": 1, "own_workers": 1, "epochs": 1}
    for phase in ("shared", "own"):
        assert len(found[phase]["jobs"]) == 2
        for job in found[phase]["jobs"]:
            assert job["images_per_s"] > 0
            assert job["first_batch_s"] > 0
            assert job["loss"] > 0
        assert found[phase]["cpu_s_per_image"] > 0
    assert found["shared"]["sharing_factor"] > 1.5  # two jobs, one stream; up to a ring apart at the window's edges
    assert found["own"]["sharing_factor"] == 1
    assert "1 of 2" in done.stderr
    assert "2 of 2" in done.stderr
    assert wait_until_none(scratch) == []
    assert not any(p.name.startswith("prepserver-demo-") for p in scratch.iterdir())


def test_a_damaged_file_is_told_in_one_sentence(photos: Path, scratch: Path) -> None:
    damaged = photos / "class0" / "42.jpg"
    damaged.write_bytes(b"no image")
    done = demo(scratch, "--data", str(photos), "--jobs", "1", "--workers", "1")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "class0/42.jpg" in line]
    assert line.startswith("prepserver demo: ")
    assert "Traceback" not in done.stderr
    assert processes_of(scratch) == []


def test_a_folder_that_is_not_there_is_named(scratch: Path) -> None:
    done = demo(scratch, "--data", str(scratch / "nowhere"))
    assert done.returncode == 1
    assert str(scratch / "nowhere") in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("--jobs", "0"), ("--workers", "many"), ("--epochs", "0")])
def test_an_impossible_argument_is_named(arguments: tuple[str, str], scratch: Path) -> None:
    done = demo(scratch, *arguments)
    assert done.returncode == 2
    assert arguments[0].lstrip("-") in done.stderr
    assert arguments[1] in done.stderr


def test_ended_in_the_middle_it_leaves_nothing(photos: Path, scratch: Path) -> None:
    command = [sys.executable, "-m", "prepserver.cli", "demo", "--data", str(photos), "--jobs", "1", "--workers", "1"]
    with subprocess.Popen(command, env=environment(scratch), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # the daemon runs when the first phase is announced
        assert any("1 of 2" in line for line in process.stderr)
        process.terminate()
        process.stderr.read()
        assert process.wait(30) == 130
    assert wait_until_none(scratch) == []
    assert not any(p.name.startswith("prepserver-demo-") for p in scratch.iterdir())


@pytest.fixture
def figures() -> tuple[PhaseFigures, PhaseFigures]:
    shared = PhaseFigures([JobFigures(800.0, 0.2, 1.0)] * 3, "cpu", 10.0, 0.0004, 3.0)
    own = PhaseFigures([JobFigures(200.0, 1.5, 1.0)] * 3, "cpu", 10.0, 0.002, 1.0)
    return shared, own


def test_the_table_has_rates_costs_sharing_and_the_first_batch(figures: tuple[PhaseFigures, PhaseFigures]) -> None:
    assert result_rows(*figures) == [
        ("job 1, images/s", "800", "200", "4.0x"),
        ("job 2, images/s", "800", "200", "4.0x"),
        ("job 3, images/s", "800", "200", "4.0x"),
        ("all jobs, images/s", "2400", "600", "4.0x"),
        ("CPU ms per image delivered", "0.40", "2.00", "5.0x less"),
        ("images delivered per image made", "3.00", "1.00", ""),
        ("time to first batch (slowest), s", "0.20", "1.50", ""),
    ]


def test_in_a_pipe_the_table_is_plain_text(
    figures: tuple[PhaseFigures, PhaseFigures], capsys: pytest.CaptureFixture[str]
) -> None:
    print_result(*figures, ["a note"])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "2400" in printed
    assert "a note" in printed
