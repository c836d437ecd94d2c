"""`prepserver demo`, as a user runs it: its figures, its table, its errors, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from prepserver.demo.phase import JobFigures, PhaseFigures
from prepserver.demo.show import print_result, result_rows
from tests.support import leaks
from tests.support.server import environment
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration


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


def demo(short_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "prepserver.cli", "demo", *arguments]
    return subprocess.run(
        command, env=marked(short_path), capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
    )


def marked(short_path: Path) -> dict[str, str]:
    """The environment of a run whose temporary files all lie in `short_path`."""
    return environment(TMPDIR=str(short_path), **{leaks.MARK: short_path.name})


def assert_nothing_left(short_path: Path) -> None:
    wait_until(lambda: not leaks.marked(short_path.name), why=lambda: leaks.marked(short_path.name))
    assert not any(path.name.startswith("prepserver-demo-") for path in short_path.iterdir())


def test_it_measures_both_phases_and_leaves_nothing(photos: Path, short_path: Path) -> None:
    done = demo(short_path, "--data", str(photos), "--jobs", "2", "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["plan"] == {"jobs": 2, "workers": 1, "own_workers": 1}
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
    assert_nothing_left(short_path)


def test_a_damaged_file_is_told_in_one_sentence(photos: Path, short_path: Path) -> None:
    damaged = photos / "class0" / "42.jpg"
    damaged.write_bytes(b"no image")
    done = demo(short_path, "--data", str(photos), "--jobs", "1", "--workers", "1")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "class0/42.jpg" in line]
    assert line.startswith("prepserver demo: ")
    assert "Traceback" not in done.stderr
    assert_nothing_left(short_path)


def test_ended_in_the_middle_it_leaves_nothing(photos: Path, short_path: Path) -> None:
    command = [sys.executable, "-m", "prepserver.cli", "demo", "--data", str(photos), "--jobs", "1", "--workers", "1"]
    with subprocess.Popen(command, env=marked(short_path), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # the daemon runs when the first phase is announced
        assert any("1 of 2" in line for line in process.stderr)
        process.terminate()
        process.stderr.read()
        assert process.wait(PATIENCE_S) == 130
    assert_nothing_left(short_path)


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
